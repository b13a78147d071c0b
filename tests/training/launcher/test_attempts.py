"""The main node's record of its attempt, in a bucket."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.limits import scaled
from tests.training.checkpoint.documents import assert_valid
from tests.training.nodes import CPU_NODE
from training.core.contract import NodeContract
from training.launcher import attempts
from training.launcher.attempts import AttemptRecorder
from training.launcher.verdict import Verdict
from training.storage import LocalObjects
from trainium_catalogue.exit_codes import ExitCode

NODE = replace(CPU_NODE, bucket="bucket", region="us-east-1", num_nodes=2)
LOST = Verdict(code=ExitCode.HOST, reason="node 1 was lost: it is silent")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the run's attempts; records are written to it immediately."""
    monkeypatch.setattr(attempts, "_QUIET_S", 0.0)
    monkeypatch.setattr(attempts, "open_folder", lambda node, name: LocalObjects(tmp_path / name))
    return tmp_path / "runs/run/results/attempts/job"


def record(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_bytes())
    assert_valid(document, "attempt.schema.json")
    return document


def quietly() -> None:
    """Ignore the heartbeat."""


def started(node: NodeContract, workload: str) -> AttemptRecorder:
    recorder = AttemptRecorder(node, workload)
    recorder.start()
    return recorder


def test_an_attempt_is_recorded_while_it_runs_and_once_it_has_ended(folder: Path) -> None:
    recorder = started(NODE, "llama-tiny")
    recorder.joined()
    path, deadline = folder / "1.json", time.monotonic() + scaled(20)
    while not path.exists() or record(path)["joined_at"] is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert record(path)["ended_at"] is None

    recorder.lose(1, "it is silent")
    recorder.steps = 7
    recorder.end(LOST, quietly)
    last = record(path)

    assert (last["code"], last["reason"], last["steps"]) == (75, LOST.reason, 7)
    assert [(loss["node"], loss["reason"]) for loss in last["lost"]] == [(1, "it is silent")]
    assert last["started_at"] <= last["joined_at"] <= last["ended_at"]


def test_array_children_have_their_own_records(folder: Path) -> None:
    for index in range(2):
        child = replace(NODE, num_nodes=1, array_index=index, array_size=2)
        started(child, "tokenize").end(LOST, quietly)

    assert sorted(path.name for path in folder.iterdir()) == ["1-child-1.json", "1.json"]


def test_only_the_main_node_writes(folder: Path) -> None:
    started(replace(NODE, node_index=1), "all-reduce").end(LOST, quietly)

    assert not folder.exists()


def test_an_unresponsive_bucket_does_not_delay_the_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_QUIET_S", 0.0)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    recorder = started(replace(NODE, endpoint_url="http://127.0.0.1:9"), "all-reduce")
    beats: list[None] = []
    began_s = time.monotonic()
    recorder.end(LOST, lambda: beats.append(None))

    assert time.monotonic() - began_s < scaled(5)
    assert len(beats) > 2


def test_the_last_record_has_the_end_even_while_an_earlier_one_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends, written = threading.Event(), list[dict[str, Any]]()

    class SlowFolder:
        def put(self, name: str, data: bytes) -> None:
            ends.wait(scaled(20))
            written.append(json.loads(data))

    def slow_clock() -> str:
        """Shorten the final time in which the thread may write what is due."""
        ends.set()
        time.sleep(0.2)
        return "2026-11-26T00:00:00Z"

    monkeypatch.setattr(attempts, "_QUIET_S", 0.0)
    monkeypatch.setattr(attempts, "open_folder", lambda node, prefix: SlowFolder())
    recorder = started(NODE, "all-reduce")
    recorder.joined()
    monkeypatch.setattr(attempts, "now_utc", slow_clock)
    recorder.end(LOST, quietly)

    assert written[-1]["ended_at"] == "2026-11-26T00:00:00Z"


def test_no_thread_runs_before_the_guardian_has_forked(folder: Path) -> None:
    AttemptRecorder(NODE, "all-reduce").end(LOST, quietly)

    assert not folder.exists()
