"""An all-reduce with every fault on one deployment; test_whole.py has the other workloads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rehearsal.proofs.endings import FAULTS
from tests.support.schemas import conforms

# One deployment serves all tests of this file: `make test` gives a file to one worker.
# `make test` covers each fault without a deployment, in tests/training/launcher.
pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
FAULTY = ("--workload", "all-reduce", "--fault", "all", "--json")
SHORT = ("max-bytes=65536", "iterations=5", "seconds-per-size=1", "stop-grace-s=3")


def command(folder: Path, *words: str, addresses: str) -> list[str]:
    """A rehearsal with its own files and addresses."""
    place = ["--folder", str(folder), "--addresses", addresses]
    return [sys.executable, "-m", "rehearsal", "run", "--nodes", "3", *place, *words]


@pytest.fixture(scope="module")
def receipt(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The rehearsal's output with --json, regardless of its result."""
    folder = tmp_path_factory.mktemp("rehearsal")
    settings = [word for pair in SHORT for word in ("--set", pair)]
    done = subprocess.run(
        command(folder, *FAULTY, *settings, addresses="127.0.41"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    document: dict[str, Any] = json.loads(done.stdout)
    return {"exit_code": done.returncode, **document}


def run_of(receipt: dict[str, Any], fault: str | None) -> dict[str, Any]:
    (found,) = [run for run in receipt["runs"] if run["fault"] == fault]
    return dict(found)


def test_rehearsal_passes(receipt: dict[str, Any]) -> None:
    assert (receipt["problems"], receipt["proven_empty"]) == ([], True)
    assert (receipt["exit_code"], receipt["outcome"]) == (0, "passed")


def test_receipt_fits_its_schema(receipt: dict[str, Any]) -> None:
    document = {key: value for key, value in receipt.items() if key != "exit_code"}

    conforms("rehearsal-receipt", document)


def test_every_stack_is_deployed(receipt: dict[str, Any]) -> None:
    parts = [stack["name"].rpartition("-")[2] for stack in receipt["stacks"]]

    assert sorted(parts) == ["batch", "data", "image", "lustre", "network", "storage"]


def test_image_is_built_from_the_real_dockerfile_for_the_hosts_platform(
    receipt: dict[str, Any],
) -> None:
    image = receipt["image"]

    assert (image["dockerfile"], image["platform"]) == ("docker/neuron/Dockerfile", "linux/amd64")
    assert "pytorch-training-neuronx" in image["base_image"]


def test_build_context_has_only_node_code(receipt: dict[str, Any]) -> None:
    roots = {Path(name).parts[0] for name in receipt["image"]["context_files"]}

    assert roots <= {"docker", "training", "node_scaler", "trainium_catalogue", ".dockerignore"}


def test_successful_job_measures_every_size_correctly(receipt: dict[str, Any]) -> None:
    sizes = run_of(receipt, None)["sizes"]

    assert [size["bytes"] for size in sizes] == [1024, 4096, 16384, 65536]
    assert all(size["correct"] for size in sizes)


def test_node_has_only_documented_extra_variables(receipt: dict[str, Any]) -> None:
    assert set(receipt["environment_extras"]) <= {
        "AWS_ENDPOINT_URL",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "TRAINIUM_DEVICE",
        "TRAINIUM_PROCESSES_PER_NODE",
        "TRAINIUM_NODE_ADDRESS",
        "PYTHONPATH",
    }


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_outcome_matches_failure_model(receipt: dict[str, Any], fault: str) -> None:
    assert run_of(receipt, fault)["differences"] == []


@pytest.mark.parametrize("fault", ["kill-child", "kill-main", "hang-child"])
def test_nodes_end_within_minute_of_lost_node(receipt: dict[str, Any], fault: str) -> None:
    ends = [end for end in run_of(receipt, fault)["nodes"] if end["attempt"] == 1]

    assert len(ends) == 3
    assert all(end["exit_code"] != 0 for end in ends)
    assert max(end["seconds"] for end in ends) - min(end["seconds"] for end in ends) < 60
