"""The receipt: when a rehearsal passed, and that the file fits its schema."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from rehearsal.deployment.state import RehearsalFolder, RehearsalState, load_state
from rehearsal.proofs.leftovers import AccountResource, ExpectedResource
from rehearsal.receipt import (
    CommandRecord,
    NodeAttempt,
    PhaseRecord,
    ProgramRun,
    PushedImage,
    Receipt,
    ReceiptCheck,
    ReceiptStack,
    RunRecord,
    Size,
)
from rehearsal.report import tables as report
from tests.rehearsal.rehearsals import settings
from tests.support.schemas import conforms

SIZE = Size(bytes=1024, correct=True, p50_us=90, p99_us=120, algbw_gib_per_s=1, busbw_gib_per_s=2)


def finished(**changes: object) -> Receipt:
    """A receipt of a successful rehearsal."""
    receipt = Receipt(
        settings=settings(nodes=2),
        seconds=42.0,
        region="us-west-2",
        endpoint="http://localhost:1",
        phases=[PhaseRecord(name="deploy", seconds=1.5, outcome="ok")],
        stacks=[ReceiptStack(name="trainium-default-network", resources=20)],
        image=PushedImage(
            name="repository:tag",
            digest="sha256:0",
            base_image="public.ecr.aws/neuron/pytorch-training-neuronx:2.9.0-neuronx-py312",
            platform="linux/amd64",
            dockerfile="docker/neuron/Dockerfile",
            dockerfile_sha256="0" * 64,
            context_files=["training/launch.py"],
            built=False,
        ),
        runs=[run()],
        proven_empty=True,
        expected_left=[ExpectedResource("s3", "bucket", "cdk-assets", "created by cdk bootstrap")],
    )
    for name, value in changes.items():
        setattr(receipt, name, value)
    return receipt


def run(**changes: object) -> RunRecord:
    record = RunRecord(
        run="rehearsal-1",
        fault=None,
        summary="no fault",
        expected="0 SUCCEEDED",
        seen="0 SUCCEEDED",
        differences=[],
        job_id="id",
        status="SUCCEEDED",
        status_reason=None,
        jobs_exit_code=0,
        attempts=[0],
        nodes=[NodeAttempt(node=0, attempt=1, exit_code=0, reason=None, seconds=3.2)],
        sizes=[SIZE],
        seconds=4.0,
    )
    for name, value in changes.items():
        setattr(record, name, value)
    return record


def printed(receipt: Receipt) -> str:
    """The report on a pipe, which rich takes for 80 columns."""
    stream = io.StringIO()
    report.show(receipt, Console(file=stream, width=80))
    return stream.getvalue()


def program_run(**changes: object) -> ProgramRun:
    record = ProgramRun(
        orchestrator="batch",
        steps=[CommandRecord(name="program", command="jobs submit", exit_code=0, seconds=3.0)],
        run=run(fault="kill-child", attempts=[75, 0], sizes=[]),
        checks=[ReceiptCheck(name="the program exited with 0", ok=True, detail="SUCCEEDED")],
        unproven=[],
    )
    for name, value in changes.items():
        setattr(record, name, value)
    return record


WRONG = ReceiptCheck(name="the program exited with 0", ok=False, detail="FAILED")
LEFT = [AccountResource("ec2", "VPC", "vpc-1")]


@pytest.mark.parametrize(
    "changes",
    [
        {"leftovers": LEFT},
        {"errors": ["cdk deploy ended with 1"]},
        {"runs": [run(differences=["the job is FAILED instead of SUCCEEDED"])]},
        {"proven_empty": False},
        {"programs": [program_run(checks=[WRONG])]},
    ],
    ids=[
        *("a leftover", "an error", "a run that ended otherwise", "no look after destroy"),
        "a program that failed",
    ],
)
def test_rehearsal_fails_with(changes: dict[str, object]) -> None:
    assert finished(**changes).outcome == "failed"
    assert finished(**changes, interrupted=True).outcome == "interrupted"


@pytest.mark.parametrize(
    "receipt",
    [
        finished(leftovers=LEFT),
        Receipt(settings=finished().settings, interrupted=True),
        finished(programs=[program_run(), program_run(orchestrator="eks", run=None)]),
    ],
    ids=["failed", "interrupted at once", "with a program"],
)
def test_file_fits_its_schema(receipt: Receipt, tmp_path: Path) -> None:
    path = tmp_path / "receipt.json"
    receipt.write(path)

    conforms("rehearsal-receipt", json.loads(path.read_text()))


def test_program_ending_too_soon_proves_less() -> None:
    receipt = finished(programs=[program_run(unproven=["that it survives; give it more to do"])])

    assert receipt.outcome == "passed"
    assert "give it more to do" in " ".join(printed(receipt).split())


def test_terminal_shows_proofs_and_file_shows_everything(tmp_path: Path) -> None:
    receipt = finished(programs=[program_run()])
    report.write(receipt, tmp_path / "report.txt")
    shown, whole = printed(receipt), (tmp_path / "report.txt").read_text()

    assert "Checked with a program of your own on emulated batch" in shown
    assert "the program exited with 0" in shown and "the program exited with 0" in whole
    for detail in ("Deployed for 2 x trn1.32xlarge", "podman", "Time"):
        assert detail in whole and detail not in shown
    assert whole.splitlines()[-1] == shown.splitlines()[-1]
    # Of a failed one, the terminal shows everything.
    failed = printed(finished(leftovers=LEFT))
    assert all(each in failed for each in ("Deployed for 2 x trn1.32xlarge", "LEFT OVER", "vpc-1"))


def test_state_of_live_process_is_loaded(tmp_path: Path) -> None:
    RehearsalState.here().save(RehearsalFolder(tmp_path))

    assert load_state(RehearsalFolder(tmp_path)) == RehearsalState.here()


def test_state_of_dead_process_is_ignored(tmp_path: Path) -> None:
    RehearsalState(pid=RehearsalState.here().pid, started="another process of this id").save(
        RehearsalFolder(tmp_path)
    )

    assert load_state(RehearsalFolder(tmp_path)) is None
