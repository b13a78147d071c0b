"""A job that waits for the one that compiles for it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from tests.training.nodes import CPU_NODE
from training import launch
from training.core.arguments import parse
from training.launcher import job_results
from training.launcher.verdict import Verdict
from training.storage import LocalObjects
from trainium_catalogue.contract import ENV_JOB_ID
from trainium_catalogue.exit_codes import ExitCode

SCHEMA = Path(__file__).parents[3] / "docs/schemas/attempt-ending.schema.json"
NODE = replace(CPU_NODE, job_id="compile-x7")


def leave(folder: Path, code: ExitCode, *, attempt: int = 1) -> LocalObjects:
    results = LocalObjects(folder)
    verdict = Verdict(code=code, reason="because")
    job_results.leave_result(results, replace(NODE, attempt=attempt), verdict, print)
    return results


def wait(results: LocalObjects, *, looks: int = 1) -> Verdict | None:
    """Ask to stop after so many looks."""
    beats = iter(range(looks))
    return job_results.wait_for(
        results,
        "compile-x7",
        beat=lambda: None,
        stopped=lambda: next(beats, None) is None,
        say=print,
    )


def test_a_job_goes_on_once_the_other_has_compiled(tmp_path: Path) -> None:
    assert wait(leave(tmp_path, ExitCode.OK)) is None


@pytest.mark.parametrize("code", [ExitCode.WORKLOAD, ExitCode.CONFIGURATION, ExitCode.STOPPED])
def test_a_job_whose_compilation_failed_fails_and_says_why(tmp_path: Path, code: ExitCode) -> None:
    verdict = wait(leave(tmp_path, code))

    assert verdict is not None and verdict.code is ExitCode.WORKLOAD
    assert verdict.reason == "job compile-x7, which compiles for this one, has failed: because"


@pytest.mark.parametrize(("attempt", "told"), [(1, False), (2, False), (3, True)])
def test_only_the_last_attempt_tells_of_a_failure_that_is_retried(
    tmp_path: Path, attempt: int, told: bool
) -> None:
    results = leave(tmp_path, ExitCode.HOST, attempt=attempt)

    assert [entry.key for entry in results.list()] == (["compile-x7.json"] if told else [])


def test_a_job_that_waits_can_be_stopped(tmp_path: Path) -> None:
    verdict = wait(LocalObjects(tmp_path), looks=2)

    assert verdict is not None and verdict.code is ExitCode.STOPPED


def test_a_job_makes_room_for_one_that_shows_no_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_results, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(job_results, "_LOOK_S", 0.0)
    job_results.leave_sign(LocalObjects(tmp_path), "compile-x7")

    patient = wait(LocalObjects(tmp_path), looks=1)
    verdict = wait(LocalObjects(tmp_path), looks=9)

    assert patient is not None and patient.code is ExitCode.STOPPED
    assert verdict is not None and verdict.code is ExitCode.HOST
    assert "has shown no sign of life for 0 s; this job makes room for it" in verdict.reason


def test_a_result_says_how_the_job_ended(tmp_path: Path) -> None:
    leave(tmp_path, ExitCode.OK)

    document = json.loads((tmp_path / "compile-x7.json").read_text())
    assert document == {"schema": 1, "code": 0, "reason": "because"}


def test_how_an_attempt_ended_is_left_below_the_runs_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def open_folder(uri: str, **_: object) -> LocalObjects:
        opened.append(uri)
        return LocalObjects(tmp_path)

    monkeypatch.setattr("training.storage.open_objects", open_folder)
    node = replace(NODE, bucket="bucket", attempt=2, node_index=1, num_nodes=2)
    verdict = Verdict(code=ExitCode.HOST, reason="node 0 was lost")
    job_results.leave_ending(node, verdict, print)
    document = json.loads((tmp_path / "2-node-1.json").read_text())

    assert opened == ["s3://bucket/runs/run/results/attempts/compile-x7"]
    assert document == {"schema": 1, "code": 75, "reason": "node 0 was lost"}
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))


@pytest.mark.parametrize("name", ["open_results", "leave_ending"])
def test_a_mistake_in_the_last_word_leaves_the_verdict_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Were it to raise, the launcher would take it for the host's fault: another attempt."""

    def fail(*_: object) -> None:
        raise TypeError("not what was meant")

    monkeypatch.setattr(job_results, name, fail)
    launch.leave_word(
        parse(["llama-tiny", "--compile-only"]),
        replace(NODE, bucket="bucket"),
        {ENV_JOB_ID: NODE.job_id},
        Verdict(code=ExitCode.HOST, reason="because"),
    )

    assert capsys.readouterr().out == (
        "launch: the bucket could not be told how this attempt ended: "
        "TypeError: not what was meant\n"
    )
