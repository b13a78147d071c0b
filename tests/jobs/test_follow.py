"""Events while following a job, from the queue to the last line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from jobs.batch.describe import describe_job
from jobs.errors import Refusal
from jobs.job import Explanation, Job, JobKind, Shape
from jobs.output.follow import (
    AttemptEnded,
    AttemptStarted,
    Event,
    Follower,
    JobEnd,
    NoResponse,
    Pace,
    StatusChanged,
    StillWaiting,
)
from jobs.output.startup import StartupFilter
from jobs.output.streams import LogLine, Streams
from tests.jobs.fakes import (
    JOB_ID,
    LOG_GROUP,
    FakeBatch,
    FakeClock,
    FakeLogs,
    attempt,
    child,
    client_error,
    lines,
    parent,
    scene,
)
from tests.jobs.following import T0, follow, messages


def statuses(events: list[Event]) -> list[tuple[str, str | None]]:
    return [(e.status, e.reason) for e in events if isinstance(e, StatusChanged)]


def two_nodes_that_succeed(clock: FakeClock) -> tuple[FakeBatch, FakeLogs]:
    """Return a job that waits 20 s and runs 10 s on two nodes."""
    running = scene(parent("RUNNING"), child("RUNNING", stream="a"), child("RUNNING", stream="b"))
    ended_at = T0 + 30
    batch = FakeBatch(
        clock,
        scenes=[
            (T0, scene(parent("SUBMITTED"))),
            (T0 + 2, scene(parent("RUNNABLE"))),
            (T0 + 15, scene(parent("STARTING"))),
            (T0 + 20, running),
            (
                ended_at,
                scene(
                    parent(
                        "SUCCEEDED",
                        startedAt=(T0 + 20) * 1000,
                        stoppedAt=ended_at * 1000,
                        attempts=[
                            attempt(stream="a", exit_code=0, started_s=T0, stopped_s=ended_at)
                        ],
                    ),
                    child("SUCCEEDED", stream="a"),
                    child("SUCCEEDED", stream="b"),
                ),
            ),
        ],
    )
    logs = FakeLogs(
        clock,
        streams={
            "a": lines(T0 + 21, ["a0", "a1", "a2"]),
            "b": lines(T0 + 21.5, ["b0", "b1", "b2"]),
        },
    )
    return batch, logs


def test_every_status_change_is_reported() -> None:
    clock = FakeClock()

    events = follow(clock, *two_nodes_that_succeed(clock))

    told = [status for status, _ in statuses(events)]
    assert told[0] == "SUBMITTED"
    assert "RUNNABLE" in told
    assert told[-1] == "SUCCEEDED"


def test_reason_of_waiting_job_is_reported() -> None:
    clock = FakeClock()
    batch, logs = two_nodes_that_succeed(clock)
    reason = "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - Service cannot fulfill the capacity"
    batch.scenes.insert(2, (T0 + 8, scene(parent("RUNNABLE", statusReason=reason))))

    events = follow(clock, batch, logs)

    assert ("RUNNABLE", reason) in statuses(events)


def test_long_wait_without_reason_is_investigated() -> None:
    clock = FakeClock()
    batch, logs = two_nodes_that_succeed(clock)
    batch.scenes = [(T0, scene(parent("RUNNABLE"))), *((t + 200, s) for t, s in batch.scenes[2:])]
    found = Explanation(pattern="", meaning="the queue is DISABLED", remedy="enable it")

    events = follow(clock, batch, logs, why_waiting=lambda job: found)

    remarks = [event for event in events if isinstance(event, StillWaiting)]
    assert [remark.explanation for remark in remarks] == [found]


def test_denied_investigation_does_not_end_follow() -> None:
    clock = FakeClock()
    batch, logs = two_nodes_that_succeed(clock)
    batch.scenes = [(T0, scene(parent("RUNNABLE"))), *((t + 200, s) for t, s in batch.scenes[2:])]

    def denied(job: Job) -> Explanation | None:
        raise client_error("AccessDeniedException")

    events = follow(clock, batch, logs, why_waiting=denied)

    assert [e.explanation for e in events if isinstance(e, StillWaiting)] == [None]
    assert isinstance(events[-1], JobEnd)


def test_end_waits_for_stopping_nodes() -> None:
    clock = FakeClock()
    batch, logs = two_nodes_that_succeed(clock)
    since, ended = batch.scenes[-1]
    batch.scenes[-1] = (since, {**ended, f"{JOB_ID}#1": child("RUNNING", stream="b")})
    batch.scenes.append((since + 20, ended))

    events = follow(clock, batch, logs)

    assert isinstance(events[-1], JobEnd)
    assert events[-1].job.nodes[1].status == "SUCCEEDED"


def second_attempt(clock: FakeClock) -> tuple[FakeBatch, FakeLogs]:
    """Return a job whose attempt 1 exits with 75 after 10 s, and whose attempt 2 succeeds."""
    first = attempt(stream="a1", exit_code=75, started_s=T0 + 1, stopped_s=T0 + 10)
    second = attempt(stream="a2", exit_code=0, started_s=T0 + 20, stopped_s=T0 + 30)
    children = [
        attempt(stream="b1", exit_code=75, started_s=T0 + 2, stopped_s=T0 + 10),
        attempt(stream="b2", exit_code=0, started_s=T0 + 21, stopped_s=T0 + 30),
    ]
    batch = FakeBatch(
        clock,
        scenes=[
            (T0, scene(parent("RUNNING"), child("RUNNING", stream="a1"), child("STARTING"))),
            (
                T0 + 2,
                scene(
                    parent("RUNNING"),
                    child("RUNNING", stream="a1"),
                    child("RUNNING", stream="b1"),
                ),
            ),
            (
                T0 + 10,
                scene(
                    parent("RUNNABLE", attempts=[first]),
                    child("RUNNABLE", stream="a1", attempts=[first]),
                    child("RUNNABLE", stream="b1", attempts=children[:1]),
                ),
            ),
            (
                T0 + 20,
                scene(
                    parent("RUNNING", attempts=[first]),
                    child("RUNNING", stream="a2", attempts=[first]),
                    child("RUNNING", stream="b2", attempts=children[:1]),
                ),
            ),
            (
                T0 + 30,
                scene(
                    parent("SUCCEEDED", attempts=[first, second], stoppedAt=(T0 + 30) * 1000),
                    child("SUCCEEDED", stream="a2", attempts=[first, second]),
                    child("SUCCEEDED", stream="b2", attempts=children),
                ),
            ),
        ],
    )
    logs = FakeLogs(
        clock,
        streams={
            "a1": lines(T0 + 2, ["a1-0", "a1-1"]),
            "b1": lines(T0 + 2.5, ["b1-0", "b1-1"]),
            "a2": lines(T0 + 22, ["a2-0", "a2-1"]),
            "b2": lines(T0 + 22.5, ["b2-0", "b2-1"]),
        },
    )
    return batch, logs


def test_new_attempt_is_announced_before_its_first_line() -> None:
    clock = FakeClock()

    events = follow(clock, *second_attempt(clock))

    told = [e for e in events if isinstance(e, LogLine | AttemptStarted)]
    assert told.index(AttemptStarted(number=2)) == 4


def test_end_shows_lines_of_array_child_in_second_attempt() -> None:
    clock = FakeClock()
    batch, logs = second_attempt(clock)
    logs.streams["a2"] = lines(T0 + 22, ["launch: one"])
    array = Shape(kind=JobKind.ARRAY, size=2)

    def describe(job_id: str, shape: Shape | None) -> Job:
        job = describe_job(batch, job_id, shape=None)
        assert job is not None
        return replace(job, shape=array)

    follower = Follower(
        describe=describe,
        streams=Streams(logs=logs, log_group=LOG_GROUP),
        job_id=JOB_ID,
        clock=clock.as_clock(),
        startup=StartupFilter(),
    )

    assert "launch: one" in messages(list(follower.events()))


def test_end_of_previous_attempt_is_explained() -> None:
    clock = FakeClock()

    events = follow(clock, *second_attempt(clock))

    (ended,) = [e for e in events if isinstance(e, AttemptEnded)]
    assert (ended.attempt.number, ended.attempt.exit_code, ended.max_attempts) == (1, 75, 3)


@pytest.mark.parametrize(("code", "number"), [(0, 0), (1, 0), (64, 0), (75, 1)])
def test_end_of_attempt_is_reported_only_before_retry(code: int, number: int) -> None:
    clock = FakeClock()
    only = attempt(stream="a", exit_code=code, started_s=T0, stopped_s=T0 + 5)
    status = "SUCCEEDED" if code == 0 else "FAILED"
    batch = FakeBatch(
        clock,
        scenes=[
            (T0, scene(parent("RUNNING"), child("RUNNING", stream="a"))),
            (T0 + 5, scene(parent("RUNNING", attempts=[only]), child("RUNNING", stream="a"))),
            (
                T0 + 8,
                scene(
                    parent(status, attempts=[only], stoppedAt=(T0 + 8) * 1000),
                    child(status, stream="a"),
                ),
            ),
        ],
    )

    events = follow(clock, batch, FakeLogs(clock, streams={"a": lines(T0 + 1, ["a0"])}))

    assert len([e for e in events if isinstance(e, AttemptEnded)]) == number


def test_lines_of_new_attempt_follow_previous_attempt() -> None:
    clock = FakeClock()

    events = follow(clock, *second_attempt(clock))

    assert messages(events) == [
        "a1-0", "b1-0", "a1-1", "b1-1", "a2-0", "b2-0", "a2-1", "b2-1",
    ]  # fmt: skip
    assert [e.attempt for e in events if isinstance(e, LogLine)] == [1] * 4 + [2] * 4


def test_follow_after_end_reports_only_lines_and_end_without_waiting() -> None:
    clock = FakeClock(T0 + 10_000)

    events = follow(clock, *second_attempt(clock))

    assert {type(event) for event in events} == {LogLine, AttemptStarted, JobEnd}
    assert clock.seconds == T0 + 10_000


class Unreachable(FakeBatch):
    """Does not respond between two times."""

    def describe_jobs(self, **kwargs: Any) -> Any:
        if T0 + 5 <= self.clock.seconds < T0 + 25:
            raise EndpointConnectionError(endpoint_url="https://batch")
        return FakeBatch.describe_jobs(self, **kwargs)


def test_lost_connection_is_reported_and_retried() -> None:
    clock = FakeClock()
    batch, logs = two_nodes_that_succeed(clock)

    events = follow(clock, Unreachable(clock, scenes=batch.scenes), logs)

    assert len([e for e in events if isinstance(e, NoResponse)]) == 1
    assert isinstance(events[-1], JobEnd)


def test_persistent_connection_loss_ends_follow() -> None:
    clock = FakeClock()
    batch, logs = two_nodes_that_succeed(clock)
    pace = Pace(give_up_s=10)

    with pytest.raises(EndpointConnectionError):
        follow(clock, Unreachable(clock, scenes=batch.scenes), logs, pace=pace)


def test_deleted_job_ends_follow_with_remaining_lines() -> None:
    clock = FakeClock()
    running = scene(parent("RUNNING"), child("RUNNING", stream="s0"))
    batch = FakeBatch(clock, scenes=[(T0, running), (T0 + 20, {})])

    with pytest.raises(
        Refusal, match=r"no longer exists.*cluster was destroyed.*still in the bucket"
    ):
        follow(clock, batch, FakeLogs(clock), pace=Pace(give_up_s=10))


def test_denied_call_ends_follow_immediately() -> None:
    clock = FakeClock()

    class Denied(FakeLogs):
        def get_log_events(self, **kwargs: Any) -> Any:
            raise client_error("AccessDeniedException")

    with pytest.raises(Exception, match="AccessDenied"):
        follow(clock, two_nodes_that_succeed(clock)[0], Denied(clock))


def test_log_reads_stay_below_cloudwatch_limit() -> None:
    clock = FakeClock()
    names = [f"s{index}" for index in range(200)]
    running = scene(
        parent("RUNNING", num_nodes=200), *(child("RUNNING", stream=name) for name in names)
    )
    ended = scene(
        parent("SUCCEEDED", num_nodes=200, stoppedAt=(T0 + 120) * 1000),
        *(child("SUCCEEDED", stream=name) for name in names),
    )
    batch = FakeBatch(clock, scenes=[(T0, running), (T0 + 120, ended)])
    logs = FakeLogs(clock, streams={name: lines(T0, ["x"]) for name in names})

    follow(clock, batch, logs)

    assert logs.calls / (clock.seconds - T0) <= 15


LAST_LINE = "launch: exit 0 (finished): every node finished"


@pytest.mark.parametrize(
    ("last_of_a", "last_of_b", "waits"),
    [
        (LAST_LINE, LAST_LINE, False),
        (LAST_LINE, "b2", True),  # killed, or not visible yet
    ],
)
def test_follow_waits_for_lines_until_every_launcher_ended(
    last_of_a: str, last_of_b: str, waits: bool
) -> None:
    clock = FakeClock()
    batch, _ = two_nodes_that_succeed(clock)
    logs = FakeLogs(
        clock,
        streams={
            "a": lines(T0 + 27, ["a0", "a1", last_of_a]),
            "b": lines(T0 + 27, ["b0", "b1", last_of_b]),
        },
    )

    events = follow(clock, batch, logs)

    assert messages(events) == ["a0", "b0", "a1", "b1", last_of_a, last_of_b]
    assert clock.now() - (T0 + 30) == pytest.approx(Pace().quiet_s if waits else 0.0, abs=2.0)
    assert (clock.now() - (T0 + 30) >= Pace().quiet_s) == waits


def test_late_line_before_last_line_is_shown() -> None:
    clock = FakeClock()
    batch, _ = two_nodes_that_succeed(clock)
    logs = FakeLogs(
        clock,
        streams={
            "a": lines(T0 + 27, ["a0", LAST_LINE]),
            "b": lines(T0 + 27, ["b0", LAST_LINE], lag_s=4.0),
        },
    )

    events = follow(clock, batch, logs)

    assert messages(events) == ["a0", LAST_LINE, "b0", LAST_LINE]
