"""Jobs of more nodes than a user can follow line by line, or one call describes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jobs.batch.describe import describe_job, find_logs
from jobs.eks.log_streams import list_streams
from jobs.job import JobKind, Node, Shape
from jobs.output.streams import LogLine
from jobs.output.tables import node_table
from tests.jobs.eks.test_log_streams import Listing, stream
from tests.jobs.fakes import (
    JOB_ID,
    FakeBatch,
    FakeClock,
    FakeLogs,
    attempt,
    child,
    lines,
    parent,
    scene,
)
from tests.jobs.following import T0, follow
from tests.jobs.probes.world import job

CULPRIT = 300
VERDICT = f"launch: exit 75 (a peer was lost, a node hung or a host failed): node {CULPRIT} was"


def described(status: str, *, size: int, code: int = 0) -> dict[str, Any]:
    """Return Batch's descriptions of a job whose nodes are all in the same state."""
    times: dict[str, Any] = {"startedAt": round(T0 * 1000)}
    stopped_s = T0 + 20
    ended = status in ("SUCCEEDED", "FAILED")
    if ended:
        times["stoppedAt"] = round(stopped_s * 1000)
    nodes = []
    for index in range(size):
        name = f"s{index}"
        past = attempt(stream=name, exit_code=code, started_s=T0, stopped_s=stopped_s)
        nodes.append(child(status, stream=name, attempts=[past] if ended else [], **times))
    mine = nodes[0]["attempts"]
    return scene(parent(status, num_nodes=size, attempts=mine, **times), *nodes)


def batch_of(status: str, *, size: int) -> FakeBatch:
    return FakeBatch(FakeClock(), scenes=[(T0, described(status, size=size))])


@pytest.mark.parametrize("status", ["RUNNING", "SUCCEEDED"])
def test_job_of_any_size_is_described_with_two_calls(status: str) -> None:
    batch = batch_of(status, size=512)

    found = describe_job(batch, JOB_ID, shape=Shape(kind=JobKind.NODES, size=512))

    assert found is not None
    assert [node.status for node in found.nodes] == [status] * 512
    assert [call for call, _ in batch.calls] == ["describe_jobs", "list_jobs"]


def test_nodes_in_several_states_are_found() -> None:
    batch = batch_of("RUNNING", size=512)
    batch.scenes[0][1][f"{JOB_ID}#7"]["status"] = "STARTING"  # type: ignore[index]

    found = describe_job(batch, JOB_ID)

    assert found is not None
    assert {node.index for node in found.nodes if node.status == "STARTING"} == {7}
    assert len(found.nodes) == 512


def test_log_stream_of_one_of_many_nodes_is_found() -> None:
    batch = batch_of("RUNNING", size=512)
    found = describe_job(batch, JOB_ID)
    assert found is not None

    assert [each.name for each in found.node_logs] == ["s0"]
    assert [each.name for each in find_logs(batch, found, {0, CULPRIT})] == [f"s{CULPRIT}"]
    batch.calls.clear()
    assert len(find_logs(batch, found, None)) == 511
    # The limit of DescribeJobs (API reference).
    assert [len(kwargs["jobs"]) for _, kwargs in batch.calls] == [100, 100, 100, 100, 100, 11]


def fails(clock: FakeClock, *, size: int) -> tuple[FakeBatch, FakeLogs]:
    """Return a job that runs 20 s, then its main node reports a lost node."""
    ended = described("FAILED", size=size, code=75)
    batch = FakeBatch(clock, scenes=[(T0, described("RUNNING", size=size)), (T0 + 20, ended)])
    streams = {f"s{index}": lines(T0, [f"of {index}"]) for index in range(size)}
    streams["s0"] += lines(T0 + 19, [VERDICT])
    streams[f"s{CULPRIT}"] = lines(T0 - 80, [str(number) for number in range(80)])
    return batch, FakeLogs(clock, streams=streams)


def test_follow_of_large_job_shows_main_node_and_failed_node() -> None:
    clock = FakeClock()

    events = follow(clock, *fails(clock, size=512), is_selective=True)

    printed = [(event.node, event.message) for event in events if isinstance(event, LogLine)]
    ends = [(CULPRIT, str(number)) for number in range(30, 80)]
    # Sorted by time: the verdict is the very last line.
    assert printed == [(0, "of 0"), *ends, (0, VERDICT)]


def test_ended_large_job_shows_end_of_failed_node() -> None:
    clock = FakeClock(T0 + 10_000)

    events = follow(clock, *fails(clock, size=512), is_selective=True)

    assert {e.node for e in events if isinstance(e, LogLine)} == {0, CULPRIT}


def test_end_of_failed_child_of_large_array_is_shown() -> None:
    """Batch keeps the parent PENDING while children run."""
    clock, size = FakeClock(), 200

    def array(said: str, status: str) -> dict[str, Any]:
        children = {
            f"{JOB_ID}:{index}": child(status, stream=f"s{index}", startedAt=1, stoppedAt=2)
            for index in range(size)
        }
        children[f"{JOB_ID}:7"]["status"] = "FAILED"
        job = {**parent(said), "arrayProperties": {"size": size}, "stoppedAt": (T0 + 20) * 1000}
        del job["nodeProperties"]
        return {JOB_ID: job, **children}

    batch = FakeBatch(
        clock,
        scenes=[(T0, array("PENDING", "RUNNING")), (T0 + 20, array("FAILED", "SUCCEEDED"))],
    )
    logs = FakeLogs(clock, streams={f"s{index}": lines(T0, ["x"]) for index in range(size)})
    running = describe_job(batch, JOB_ID)
    events = follow(clock, batch, logs, is_selective=True)

    assert running is not None and running.status == "RUNNING"
    assert {e.node for e in events if isinstance(e, LogLine)} == {0, 7}


@pytest.mark.parametrize("size", [4, 512])
def test_number_of_follow_calls_is_independent_of_nodes(size: int) -> None:
    clock = FakeClock()
    batch = FakeBatch(
        clock,
        scenes=[
            (T0, described("RUNNING", size=size)),
            (T0 + 120, described("SUCCEEDED", size=size)),
        ],
    )
    logs = FakeLogs(clock, streams={f"s{index}": lines(T0, ["x"]) for index in range(size)})

    follow(clock, batch, logs, is_selective=True)

    assert (logs.calls + len(batch.calls)) / (clock.seconds - T0) <= 6


def test_one_of_many_nodes_can_be_followed() -> None:
    clock = FakeClock()
    batch, logs = fails(clock, size=512)
    # More than are shown of a failed node.
    logs.streams["s9"] = lines(T0 - 100, [str(number) for number in range(90)])

    events = follow(clock, batch, logs, is_selective=True, only_node=9)

    assert [e.node for e in events if isinstance(e, LogLine)] == [9] * 90


def test_streams_of_one_pod_are_listed_separately() -> None:
    names = [stream(node, "a") for node in range(20)]
    listing = Listing(*names)

    found = list_streams(listing, "group", job(), {1})

    assert [each.node for each in found] == [1]


def test_nodes_in_same_state_share_row() -> None:
    def node(index: int, status: str) -> Node:
        return Node(index=index, status=status, status_reason=None, attempts=())

    states = ["RUNNING"] * 20
    states[3] = states[7] = "STARTING"
    nodes = tuple(node(index, status) for index, status in enumerate(states))
    shape = Shape(kind=JobKind.NODES, size=20)

    table = node_table(replace(job(nodes=nodes), shape=shape, status="RUNNING"))

    assert list(table.columns[0].cells) == ["0-2, 4-6, 8-19", "3, 7"]
