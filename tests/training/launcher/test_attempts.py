"""The main node's record of its attempt, in a bucket."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.support.limits import scaled
from tests.training.checkpoint.documents import assert_valid
from tests.training.nodes import CPU_NODE
from tests.training.s3_server import REGION, s3_client, s3_server
from training.core.contract import NodeContract
from training.launcher import attempts
from training.launcher.attempts import AttemptRecorder
from training.launcher.verdict import Verdict
from trainium_catalogue.exit_codes import ExitCode

BUCKET = "bucket-of-attempts"
PREFIX = "runs/run/results/attempts/job/"
LOST = Verdict(code=ExitCode.HOST, reason="node 1 was lost: it is silent")


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeContract]:
    """The main node of two, which writes immediately."""
    monkeypatch.setattr(attempts, "_QUIET_S", 0.0)
    with s3_server(BUCKET) as url:
        yield replace(CPU_NODE, bucket=BUCKET, region=REGION, endpoint_url=url, num_nodes=2)


def records(node: NodeContract) -> dict[str, dict[str, Any]]:
    client = s3_client(str(node.endpoint_url))
    keys = [item["Key"] for item in client.list_objects_v2(Bucket=BUCKET).get("Contents", ())]
    found = {}
    for key in keys:
        document = json.loads(client.get_object(Bucket=BUCKET, Key=key)["Body"].read())
        assert_valid(document, "attempt.schema.json")
        found[key.removeprefix(PREFIX)] = document
    return found


def quietly() -> None:
    """Ignore the heartbeat."""


def started(node: NodeContract, workload: str) -> AttemptRecorder:
    recorder = AttemptRecorder(node, workload)
    recorder.start()
    return recorder


def test_an_attempt_is_recorded_while_it_runs_and_once_it_has_ended(node: NodeContract) -> None:
    recorder = started(node, "llama-tiny")
    recorder.joined()
    deadline = time.monotonic() + scaled(20)
    while not (begun := records(node)) or begun["1.json"]["joined_at"] is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert begun["1.json"]["ended_at"] is None

    recorder.lose(1, "it is silent")
    recorder.steps = 7
    recorder.end(LOST, quietly)
    record = records(node)["1.json"]

    assert (record["code"], record["reason"], record["steps"]) == (75, LOST.reason, 7)
    assert [(loss["node"], loss["reason"]) for loss in record["lost"]] == [(1, "it is silent")]
    assert record["started_at"] <= record["joined_at"] <= record["ended_at"]


def test_array_children_have_their_own_records(node: NodeContract) -> None:
    for index in range(2):
        child = replace(node, num_nodes=1, array_index=index, array_size=2)
        started(child, "tokenize").end(LOST, quietly)

    assert sorted(records(node)) == ["1-child-1.json", "1.json"]


def test_only_the_main_node_writes(node: NodeContract) -> None:
    recorder = started(replace(node, node_index=1), "all-reduce")
    recorder.end(LOST, quietly)

    assert records(node) == {}
    assert "attempt-record" not in [thread.name for thread in threading.enumerate()]


def test_an_unresponsive_bucket_does_not_delay_the_exit(node: NodeContract) -> None:
    recorder = started(replace(node, endpoint_url="http://127.0.0.1:9"), "all-reduce")
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
    recorder = started(replace(CPU_NODE, bucket=BUCKET), "all-reduce")
    recorder.joined()
    monkeypatch.setattr(attempts, "now_utc", slow_clock)
    recorder.end(LOST, quietly)

    assert written[-1]["ended_at"] == "2026-11-26T00:00:00Z"


def test_no_thread_runs_before_the_guardian_has_forked(node: NodeContract) -> None:
    before = set(threading.enumerate())  # those of other tests may not have ended
    recorder = AttemptRecorder(node, "all-reduce")

    assert "attempt-record" not in {thread.name for thread in {*threading.enumerate()} - before}
    recorder.end(LOST, quietly)  # as on a machine that starts no thread
    assert records(node) == {}
