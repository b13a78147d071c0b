"""What `make rehearse` has recorded about its first part, which deploys Batch and a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rehearsal.receipts import receipt_of
from tests.support.schemas import conforms

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def receipt() -> dict[str, Any]:
    receipt = receipt_of("rehearsal")
    assert receipt["settings"]["orchestrators"] == ["batch", "eks"], (
        "run make rehearse without QUICK"
    )
    return receipt


def test_rehearsal_passes_without_leftovers(receipt: dict[str, Any]) -> None:
    assert receipt["problems"] == []
    assert (receipt["outcome"], receipt["proven_empty"]) == ("passed", True)


def test_receipt_fits_its_schema(receipt: dict[str, Any]) -> None:
    conforms("rehearsal-receipt", receipt)


def test_stacks_of_both_orchestrators_are_deployed(receipt: dict[str, Any]) -> None:
    parts = [stack["name"].rpartition("-")[2] for stack in receipt["stacks"]]

    assert sorted(parts) == ["batch", "data", "eks", "image", "lustre", "network", "storage"]


def test_every_chart_is_installed_once_and_uninstalled(receipt: dict[str, Any]) -> None:
    releases = [chart["release"] for chart in receipt["charts"]]

    assert sorted(releases) == ["efa", "fsx", "neuron", "volcano"]
    assert all(chart["uninstalled"] for chart in receipt["charts"])


def test_killed_node_loses_steps_since_last_checkpoint(receipt: dict[str, Any]) -> None:
    assert receipt["training"]["run"]["attempts"] == [75, 0]
    assert receipt["training"]["resumed_from"] == 6


def test_killed_pod_loses_steps_since_last_checkpoint(receipt: dict[str, Any]) -> None:
    cluster = receipt["cluster"]

    assert (cluster["killed_after"], cluster["resumed_from"]) == (11, 6)
    assert [attempt["steps"][0] for attempt in cluster["attempts"]] == [1, 7]


def test_program_resumes_from_its_snapshot(receipt: dict[str, Any]) -> None:
    (program,) = receipt["programs"]

    assert all(check["ok"] for check in program["checks"]), program["checks"]
