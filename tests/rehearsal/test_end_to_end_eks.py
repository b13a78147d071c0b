"""The cluster's half of the rehearsal, as `make rehearse ORCHESTRATORS=eks` runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.schemas import conforms

# `make rehearse` runs the same, so `make test` leaves it out.
pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def receipt(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the rehearsal printed with --json, whatever it found."""
    folder = tmp_path_factory.mktemp("rehearsal")
    words = ("--orchestrators", "eks", "--folder", str(folder), "--addresses", "127.0.43", "--json")
    done = subprocess.run(
        [sys.executable, "-m", "rehearsal", "run", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_it_passes_and_leaves_nothing(receipt: dict[str, Any]) -> None:
    assert receipt["problems"] == []
    assert (receipt["outcome"], receipt["proven_empty"]) == ("passed", True)


def test_the_receipt_fits_its_schema(receipt: dict[str, Any]) -> None:
    conforms("rehearsal-receipt", receipt)


def test_only_the_cluster_and_what_all_share_is_deployed(receipt: dict[str, Any]) -> None:
    parts = [stack["name"].rpartition("-")[2] for stack in receipt["stacks"]]

    assert sorted(parts) == ["data", "eks", "image", "lustre", "network", "storage"]


def test_every_chart_is_installed_once_and_uninstalled(receipt: dict[str, Any]) -> None:
    releases = [chart["release"] for chart in receipt["charts"]]

    assert sorted(releases) == ["efa", "fsx", "neuron", "volcano"]
    assert all(chart["uninstalled"] for chart in receipt["charts"])


def test_a_killed_pod_costs_the_steps_since_the_last_checkpoint(receipt: dict[str, Any]) -> None:
    cluster = receipt["cluster"]

    assert (cluster["killed_after"], cluster["resumed_from"]) == (11, 6)
    assert [attempt["steps"][0] for attempt in cluster["attempts"]] == [1, 7]
