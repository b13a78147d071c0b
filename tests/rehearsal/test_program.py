"""A user's own program, rehearsed on Batch and on EKS as `rehearsal run --program` does."""

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
pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "tests" / "programs" / "sample" / "train.py"
ODD = Path(__file__).with_name("odd")
ORCHESTRATORS = ("batch", "eks")
FAULTS = ("kill-child", "reclaim-main")


def rehearse(
    folder: Path,
    *words: str,
    addresses: str,
    program: Path = SAMPLE,
    orchestrators: str = "batch,eks",
    code: int = 0,
) -> dict[str, Any]:
    """Rehearse a program; the sample runs long enough for a snapshot on a slow machine too."""
    command = [
        *(sys.executable, "-m", "rehearsal", "run", "--program", str(program), "--json"),
        *("--orchestrators", orchestrators, "--processes-per-node", "1"),
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
    faults = [word for fault in FAULTS for word in ("--fault", fault)]
    argv = ("--set", "snapshot-every-s=1", "--", "--epochs", "100", "--seconds", "0.2")
    return rehearse(folder, *faults, *argv, addresses="127.0.47")


def run_on(receipt: dict[str, Any], orchestrator: str) -> dict[str, Any]:
    """Return the first run on an orchestrator: a node is killed."""
    return next(dict(run) for run in receipt["programs"] if run["orchestrator"] == orchestrator)


def check_of(run: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [check for check in run["checks"] if check["name"].startswith(name)]
    return dict(found)


def test_rehearsal_passes_without_leftovers(receipt: dict[str, Any]) -> None:
    assert receipt["problems"] == []
    assert (receipt["outcome"], receipt["proven_empty"]) == ("passed", True)


def test_receipt_fits_its_schema(receipt: dict[str, Any]) -> None:
    conforms("rehearsal-receipt", receipt)


@pytest.mark.parametrize("orchestrator", ORCHESTRATORS)
def test_job_resumes_after_node_kill(receipt: dict[str, Any], orchestrator: str) -> None:
    run = run_on(receipt, orchestrator)["run"]

    assert (run["fault"], run["status"], len(run["attempts"])) == ("kill-child", "SUCCEEDED", 2)


@pytest.mark.parametrize("orchestrator", ORCHESTRATORS)
def test_program_on_reclaimed_host_resumes(receipt: dict[str, Any], orchestrator: str) -> None:
    runs = [run["run"] for run in receipt["programs"] if run["orchestrator"] == orchestrator]

    assert [(run["fault"], run["status"]) for run in runs] == [(f, "SUCCEEDED") for f in FAULTS]


@pytest.mark.parametrize("orchestrator", ORCHESTRATORS)
def test_program_gets_saved_files_back(receipt: dict[str, Any], orchestrator: str) -> None:
    run = run_on(receipt, orchestrator)
    assert "1 file" in check_of(run, "the second attempt received")["detail"]
    assert check_of(run, "the second attempt used")["detail"] == "it read latest.pt"


@pytest.mark.parametrize("orchestrator", ORCHESTRATORS)
def test_last_loss_is_read_from_output(receipt: dict[str, Any], orchestrator: str) -> None:
    assert check_of(run_on(receipt, orchestrator), "the last printed loss")["ok"]


def test_same_files_have_same_bundle_on_all_planes(receipt: dict[str, Any]) -> None:
    bundles = {check_of(run_on(receipt, name), "the nodes ran")["detail"] for name in ORCHESTRATORS}

    assert len(bundles) == 1


def test_nodes_request_only_granted_permissions(receipt: dict[str, Any], folder: Path) -> None:
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


def test_restarting_program_is_not_reported_as_resuming(tmp_path: Path) -> None:
    program = ODD / "begins_again.py"

    receipt = rehearse(tmp_path, addresses="127.0.51", program=program, orchestrators="eks", code=1)

    assert (receipt["outcome"], receipt["proven_empty"]) == ("failed", True)
    run = run_on(receipt, "eks")
    assert [check["name"] for check in run["checks"] if not check["ok"]] == [
        "the second attempt used the restored files"
    ]
    detail = check_of(run, "the second attempt used")["detail"]
    assert detail.startswith("not shown: it read none of the restored files (1 file)")
    assert detail.endswith("--resume-arguments")


def test_program_with_child_that_ignores_sigterm_resumes_without_leftovers(
    tmp_path: Path,
) -> None:
    program = ODD / "daemon.py"

    receipt = rehearse(tmp_path, addresses="127.0.51", program=program, orchestrators="eks")

    assert (receipt["problems"], receipt["outcome"]) == ([], "passed")
    assert check_of(run_on(receipt, "eks"), "the second attempt used")["ok"]
