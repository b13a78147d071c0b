"""Signs in the bucket: of a job that compiles for another, and of children unable to join."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.training.checkpoint.documents import assert_valid
from tests.training.nodes import CPU_NODE
from training import launch
from training.core.arguments import parse
from training.launcher import bucket_records
from training.launcher.bucket_records import JoinDiagnostics, StartedRecord, likely_causes
from training.launcher.verdict import Verdict
from training.storage import LocalObjects, Objects, StorageRefused, StorageUnavailable
from trainium_catalogue.contract import ENV_JOB_ID
from trainium_catalogue.exit_codes import ExitCode

NODE = replace(CPU_NODE, job_id="compile-x7")


def leave(folder: Path, code: ExitCode, *, attempt: int = 1) -> LocalObjects:
    results = LocalObjects(folder)
    verdict = Verdict(code=code, reason="because")
    bucket_records.write_result(results, replace(NODE, attempt=attempt), verdict)
    return results


def wait(results: LocalObjects, *, looks: int = 1) -> Verdict | None:
    """Request a stop after this many polls."""
    turns = iter(range(looks))
    return bucket_records.wait_for_result(
        results,
        "compile-x7",
        heartbeat=lambda: None,
        stopped=lambda: next(turns, None) is None,
    )


def test_a_job_whose_compilation_failed_fails_with_the_reason(tmp_path: Path) -> None:
    verdict = wait(leave(tmp_path, ExitCode.CONFIGURATION))

    assert verdict is not None and verdict.code is ExitCode.WORKLOAD
    assert verdict.reason == "job compile-x7, which compiles for this one, has failed: because"


@pytest.mark.parametrize(("attempt", "told"), [(2, False), (3, True)])
def test_only_the_last_attempt_reports_a_retried_failure(
    tmp_path: Path, attempt: int, told: bool
) -> None:
    results = leave(tmp_path, ExitCode.HOST, attempt=attempt)

    assert [entry.key for entry in results.list()] == (["compile-x7.json"] if told else [])


def test_a_job_releases_its_host_for_a_silent_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_records, "_HEARTBEAT_TIMEOUT_S", 0.0)
    monkeypatch.setattr(bucket_records, "_POLL_S", 0.0)
    bucket_records.write_heartbeat(LocalObjects(tmp_path), "compile-x7")

    patient = wait(LocalObjects(tmp_path), looks=1)
    verdict = wait(LocalObjects(tmp_path), looks=9)

    assert patient is not None and patient.code is ExitCode.STOPPED
    assert verdict is not None and verdict.code is ExitCode.HOST
    assert "has sent no heartbeat for 0 s; this job exits to make room for it" in verdict.reason


def test_an_attempts_outcome_is_written_to_the_runs_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def open_bucket(uri: str, **_: object) -> LocalObjects:
        opened.append(uri)
        return LocalObjects(tmp_path)

    monkeypatch.setattr("training.storage.open_objects", open_bucket)
    node = replace(NODE, bucket="bucket", attempt=2, node_index=1, num_nodes=2)
    verdict = Verdict(code=ExitCode.HOST, reason="node 0 was lost")
    bucket_records.record_ending(node, verdict)
    folder = tmp_path / "runs" / "run" / "results" / "attempts" / "compile-x7"
    document = json.loads((folder / "2-node-1.json").read_text())

    assert opened == ["s3://bucket"]
    assert document == {"schema": 1, "code": 75, "reason": "node 0 was lost"}
    assert_valid(document, "attempt-ending.schema.json")


@pytest.mark.parametrize("name", ["open_folder", "record_ending"])
def test_an_error_in_the_final_message_keeps_the_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """If it raised, the launcher would blame the host and start another attempt."""

    def fail(*_: object) -> None:
        raise TypeError("not what was meant")

    monkeypatch.setattr(bucket_records, name, fail)
    launch.record_ending(
        parse(["llama-tiny", "--compile-only"]),
        replace(NODE, bucket="bucket"),
        {ENV_JOB_ID: NODE.job_id},
        Verdict(code=ExitCode.HOST, reason="because"),
    )

    assert capsys.readouterr().out == (
        "launch: the end of this attempt could not be recorded in the bucket: "
        "TypeError: not what was meant\n"
    )


MAIN = replace(CPU_NODE, num_nodes=3, node_index=0, attempt=2, bucket="bucket")
CHILD = replace(MAIN, node_index=2)


class Clock:
    """Time that passes only while something waits for it."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(bucket_records, "time", made)
    return made


def test_a_waiting_job_does_not_look_frozen_and_learns_the_result_promptly(
    tmp_path: Path, clock: Clock
) -> None:
    """The guardian ends a launcher that sends no heartbeat for some seconds."""
    beats: list[float] = []

    def stopped() -> bool:
        if clock.now >= 60 and not list(tmp_path.iterdir()):
            leave(tmp_path, ExitCode.OK)
        return clock.now > 120

    verdict = bucket_records.wait_for_result(
        LocalObjects(tmp_path), "compile-x7", heartbeat=lambda: beats.append(clock.now),
        stopped=stopped,
    )  # fmt: skip

    assert verdict is None
    assert clock.now < 70
    assert max(after - before for before, after in pairwise(beats)) < 1


def test_a_late_child_is_detected_within_seconds(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = LocalObjects(tmp_path)
    monkeypatch.setattr(bucket_records, "open_folder", lambda node, place: folder)
    join_diagnostics = JoinDiagnostics(MAIN)

    class Pause(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            clock.sleep(timeout)
            if clock.now >= 60:
                StartedRecord(CHILD)._act(folder)
            return clock.now > 600

    join_diagnostics._ended = Pause()
    join_diagnostics._run()

    assert join_diagnostics.evidence == "node 2 has started, according to its record in the bucket"
    assert clock.now < 75


def test_a_heartbeat_of_an_earlier_attempt_does_not_count(tmp_path: Path) -> None:
    folder = LocalObjects(tmp_path)
    join_diagnostics = JoinDiagnostics(MAIN)

    StartedRecord(replace(CHILD, attempt=1))._act(folder)

    assert not join_diagnostics._act(folder)
    assert join_diagnostics.evidence is None


def test_an_unreachable_bucket_is_evidence_until_it_responds() -> None:
    join_diagnostics, folder = JoinDiagnostics(MAIN), Mock(Objects)

    folder.list.side_effect = StorageUnavailable("no answer")
    assert not join_diagnostics._act(folder)
    assert join_diagnostics.evidence == "this node cannot reach the bucket either"

    folder.list.side_effect = StorageRefused("no permission")
    assert not join_diagnostics._act(folder)
    assert join_diagnostics.evidence is None


def test_on_a_cluster_the_first_cause_is_the_group_of_the_nodes() -> None:
    causes = likely_causes(replace(MAIN, on_cluster=True))

    assert causes.startswith("likely causes, in this order: the nodes' security groups")
