"""Helpers to follow a fake job."""

from __future__ import annotations

from collections.abc import Callable

from jobs.aws import BatchClient, LogsClient
from jobs.batch.describe import describe_job, find_logs
from jobs.job import Explanation, Job
from jobs.output.follow import (
    Event,
    Follower,
    Pace,
)
from jobs.output.streams import LogLine, Streams
from tests.jobs.fakes import (
    JOB_ID,
    LOG_GROUP,
    FakeClock,
)

T0 = 1_000_000.0


def follow(
    clock: FakeClock,
    batch: BatchClient,
    logs: LogsClient,
    *,
    only_node: int | None = None,
    is_selective: bool = False,
    pace: Pace | None = None,
    why_waiting: Callable[[Job], Explanation | None] = lambda job: None,
) -> list[Event]:
    follower = Follower(
        describe=lambda job_id, shape: describe_job(batch, job_id, shape=shape),
        streams=Streams(
            logs=logs,
            log_group=LOG_GROUP,
            only_node=only_node,
            is_selective=is_selective,
            find_more=lambda job, nodes: find_logs(batch, job, nodes),
        ),
        job_id=JOB_ID,
        clock=clock.as_clock(),
        pace=pace or Pace(),
        why_waiting=why_waiting,
    )
    return list(follower.events())


def messages(events: list[Event]) -> list[str]:
    return [event.message for event in events if isinstance(event, LogLine)]
