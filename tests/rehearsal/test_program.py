"""A program of the user's own, rehearsed on Batch and on EKS as `rehearsal run --program` does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from rehearsal.deployment.state import RehearsalFolder
from tests.support.schemas import conforms
from trainium_catalogue import contract
from trainium_catalogue.workloads import WORKLOADS

# One deployment serves all tests of a group: `make test` gives a file to one worker.
# `make rehearse` runs a program on Batch, so `make test` leaves it out.
pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "tests" / "programs" / "sample" / "train.py"
ODD = Path(__file__).with_name("odd")
ORCHESTRATORS = ("batch", "eks")


def rehearse(
    folder: Path, *words: str, addresses: str, program: Path = SAMPLE, code: int = 0
) -> dict[str, Any]:
    """Rehearse a program; the sample runs long enough for a snapshot on a slow machine too."""
    command = [
        *(sys.executable, "-m", "rehearsal", "run", "--program", str(program), "--json"),
        *("--orchestrators", "batch,eks", "--processes-per-node", "1"),
        *("--folder", str(folder), "--addresses", addresses, *words),
    ]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert done.returncode == code, done.stdout
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("program")


@pytest.fixture(scope="module")
def receipt(folder: Path) -> dict[str, Any]:
    argv = ("--set", "snapshot-every-s=1", "--", "--epochs", "100", "--seconds", "0.2")
    return rehearse(folder, *argv, addresses="127.0.47")


def run_on(receipt: dict[str, Any], orchestrator: str) -> dict[str, Any]:
    (found,) = [run for run in receipt["programs"] if run["orchestrator"] == orchestrator]
    return dict(found)


def check_of(run: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [check for check in run["checks"] if check["name"].startswith(name)]
    return dict(found)


def test_it_passes_and_leaves_nothing(receipt: dict[str, Any]) -> None:
    assert receipt["problems"] == []
    assert (receipt["outcome"], receipt["proven_empty"]) == ("passed", True)


def test_the_receipt_fits_its_schema(receipt: dict[str, Any]) -> None:
    conforms("rehearsal-receipt", receipt)


@pytest.mark.parametrize("orchestrator", ORCHESTRATORS)
def test_a_node_is_killed_and_the_job_continues_by_itself(
    receipt: dict[str, Any], orchestrator: str
) -> None:
    run = run_on(receipt, orchestrator)["run"]

    assert (run["fault"], run["status"], len(run["attempts"])) == ("kill-child", "SUCCEEDED", 2)


@pytest.mark.parametrize("orchestrator", ORCHESTRATORS)
def test_it_gets_back_what_it_had_saved(receipt: dict[str, Any], orchestrator: str) -> None:
    run = run_on(receipt, orchestrator)
    assert "1 files" in check_of(run, "the second attempt got")["detail"]
    assert check_of(run, "the second attempt used")["detail"] == "it read latest.pt"


@pytest.mark.parametrize("orchestrator", ORCHESTRATORS)
def test_its_last_loss_is_read_from_what_it_printed(
    receipt: dict[str, Any], orchestrator: str
) -> None:
    assert check_of(run_on(receipt, orchestrator), "the last loss")["ok"]


def test_the_same_files_have_the_same_bundle_everywhere(receipt: dict[str, Any]) -> None:
    bundles = {check_of(run_on(receipt, name), "the nodes ran")["detail"] for name in ORCHESTRATORS}

    assert len(bundles) == 1


def test_nodes_ask_for_no_more_than_their_role_grants(
    receipt: dict[str, Any], folder: Path
) -> None:
    """Of what the command line does, only what it puts there is known from here."""
    log = re.sub(r"\x1b\[\d*m", "", RehearsalFolder(folder).server_log.read_text())
    asked = set(re.findall(r'"(PUT|DELETE|GET) /[^/ ?]+-storage-[^/ ?]+/(runs/[^ ?]+)[ ?]', log))
    workload = WORKLOADS[contract.PROGRAM]
    results = tuple(contract.run_prefix("*", name) for name in ("results", "metrics", "logs"))
    code = (
        contract.run_prefix("*", "code"),
        contract.run_key("*", contract.RUN_PROGRAM),
        contract.run_key("*", contract.RUN_SUBMISSION),
    )
    granted = {
        "PUT": (*workload.writes, *results, *code),
        "DELETE": workload.writes,
        # submit looks for a run of a built-in workload, and for another submission of the name;
        # status and logs read results. tests/training/program/test_rights.py judges nodes alone.
        "GET": (
            *(*workload.reads, *workload.writes, *results),
            *(contract.run_key("*", "run.json"), contract.run_key("*", contract.RUN_SUBMISSION)),
        ),
    }

    assert len({method for method, _ in asked}) > 1
    assert [
        (method, key)
        for method, key in asked
        if not any(fnmatchcase(key, f"{prefix}*") for prefix in granted[method])
    ] == []


@pytest.mark.timeout(900)
def test_a_program_on_a_host_that_is_taken_back_continues(tmp_path: Path) -> None:
    faults = ("--fault", "reclaim-child", "--fault", "reclaim-main")
    argv = ("--set", "snapshot-every-s=1", "--", "--epochs", "100", "--seconds", "0.2")

    receipt = rehearse(tmp_path, *faults, *argv, addresses="127.0.48")

    assert receipt["problems"] == []
    assert {(run["orchestrator"], run["run"]["fault"]) for run in receipt["programs"]} == {
        (name, fault) for name in ORCHESTRATORS for fault in ("reclaim-child", "reclaim-main")
    }


@pytest.mark.timeout(900)
def test_a_program_that_begins_again_is_not_shown_to_continue(tmp_path: Path) -> None:
    program = ODD / "begins_again.py"

    receipt = rehearse(tmp_path, addresses="127.0.51", program=program, code=1)

    assert (receipt["outcome"], receipt["proven_empty"]) == ("failed", True)
    for orchestrator in ORCHESTRATORS:
        run = run_on(receipt, orchestrator)
        assert [check["name"] for check in run["checks"] if not check["ok"]] == [
            "the second attempt used what it got back"
        ]
        detail = check_of(run, "the second attempt used")["detail"]
        assert detail.startswith("not shown: it has read none of the 1 files that were restored")
        assert detail.endswith("--resume-arguments")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["daemon", "small_files"])
def test_an_odd_program_continues_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    """It has a child that ignores SIGTERM, or a checkpoint of 2,000 small files."""
    receipt = rehearse(tmp_path, addresses="127.0.51", program=ODD / f"{name}.py")

    assert (receipt["problems"], receipt["outcome"]) == ([], "passed")
    for orchestrator in ORCHESTRATORS:
        assert check_of(run_on(receipt, orchestrator), "the second attempt used")["ok"]
