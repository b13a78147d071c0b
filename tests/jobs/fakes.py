"""Fakes of Batch and CloudWatch Logs on a simulated clock, for the follower.

moto does not run multi-node jobs, and no emulator delays, pages or throttles on purpose.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError

from jobs.output.follow import Clock

JOB_ID = "0b1c"
LOG_GROUP = "group"
_LISTED = ("status", "statusReason", "startedAt", "stoppedAt")


def client_error(code: str, *, operation: str = "Operation", status: int = 400) -> ClientError:
    """Return the error that boto3 raises for ``code``."""
    return ClientError(
        {"Error": {"Code": code, "Message": "said AWS"}, "ResponseMetadata": _http(status)},
        operation,
    )


def _http(status: int) -> Any:
    return {"HTTPStatusCode": status}


@dataclass(slots=True)
class FakeClock:
    """Time that advances only on sleep."""

    seconds: float = 1_000_000.0

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.seconds += seconds

    def as_clock(self) -> Clock:
        return Clock(now=self.now, sleep=self.sleep)


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """A line and the time at which CloudWatch shows it."""

    timestamp_ms: int
    message: str
    visible_at: float


@dataclass(slots=True)
class FakeLogs:
    """Streams whose lines become visible over time."""

    clock: FakeClock
    streams: dict[str, list[Printed]] = field(default_factory=dict)
    page_size: int = 10_000
    random: random.Random = field(default_factory=random.Random)
    throttled: float = 0.0
    """Share of throttled calls."""
    empty_pages: float = 0.0
    """Share of empty pages although more lines follow."""
    calls: int = 0

    def get_log_events(self, **kwargs: Any) -> Mapping[str, Any]:
        assert kwargs["logGroupName"] == LOG_GROUP
        assert kwargs["startFromHead"] is ("limit" not in kwargs)
        self.calls += 1
        if self.random.random() < self.throttled:
            raise client_error("ThrottlingException", operation="GetLogEvents")
        visible = [
            line
            for line in self.streams.get(kwargs["logStreamName"], [])
            if line.visible_at <= self.clock.seconds
        ]
        if not visible:
            raise client_error("ResourceNotFoundException", operation="GetLogEvents")
        # As on AWS, the token is a position, and an empty page may come with a new token.
        first = 0 if kwargs["startFromHead"] else max(0, len(visible) - kwargs["limit"])
        start, nonce = map(int, kwargs.get("nextToken", f"{first}/0").split("/"))
        if start < len(visible) and self.random.random() < self.empty_pages:
            return {"events": [], "nextForwardToken": f"{start}/{nonce + 1}"}
        page = visible[start : start + self.page_size]
        events = [{"timestamp": line.timestamp_ms, "message": line.message} for line in page]
        token = f"{start + len(page)}/{nonce}"
        return {"events": events, "nextForwardToken": token}


@dataclass(slots=True)
class FakeBatch:
    """A job whose description changes at given times."""

    clock: FakeClock
    scenes: list[tuple[float, Mapping[str, Mapping[str, Any]]]] = field(default_factory=list)
    """Descriptions by job id, each with its start time."""
    random: random.Random = field(default_factory=random.Random)
    throttled: float = 0.0
    calls: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    def describe_jobs(self, **kwargs: Any) -> Mapping[str, Any]:
        self.calls.append(("describe_jobs", kwargs))
        assert len(kwargs["jobs"]) <= 100
        if self.random.random() < self.throttled:
            raise client_error("TooManyRequestsException", operation="DescribeJobs")
        jobs = self._now()
        return {"jobs": [{"jobId": i, **jobs[i]} for i in kwargs["jobs"] if i in jobs]}

    def _now(self) -> Mapping[str, Mapping[str, Any]]:
        now = [scene for since, scene in self.scenes if since <= self.clock.seconds]
        return now[-1] if now else {}

    def list_jobs(self, **kwargs: Any) -> Mapping[str, Any]:
        """Return the children in one status, as in ListJobs: without attempts and log streams."""
        self.calls.append(("list_jobs", kwargs))
        is_array = "arrayJobId" in kwargs
        prefix = f"{kwargs['arrayJobId']}:" if is_array else f"{kwargs['multiNodeJobId']}#"
        found = [
            {"jobId": i, **{name: job[name] for name in _LISTED if name in job}}
            for i, job in self._now().items()
            if i.startswith(prefix) and job["status"] == kwargs["jobStatus"]
        ]
        return {"jobSummaryList": found}

    def submit_job(self, **kwargs: Any) -> Mapping[str, Any]:
        raise AssertionError("a follower only reads jobs and logs")

    terminate_job = cancel_job = submit_job
    describe_job_queues = describe_job_definitions = describe_compute_environments = submit_job


def parent(status: str, *, num_nodes: int = 2, **more: Any) -> dict[str, Any]:
    """Return a job as in DescribeJobs."""
    return {
        "jobName": "nightly",
        "status": status,
        "nodeProperties": {"numNodes": num_nodes},
        "retryStrategy": {"attempts": 3},
        **more,
    }


def child(status: str, *, stream: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a node as in DescribeJobs."""
    container = {} if stream is None else {"logStreamName": stream}
    return {"jobName": "nightly", "status": status, "container": container, **more}


def attempt(*, stream: str, exit_code: int, started_s: float, stopped_s: float) -> dict[str, Any]:
    """Return an attempt of a job or a node as in DescribeJobs."""
    return {
        "container": {"logStreamName": stream, "exitCode": exit_code, "reason": None},
        "startedAt": round(started_s * 1000),
        "stoppedAt": round(stopped_s * 1000),
        "statusReason": "Essential container in task exited",
    }


def scene(job: Mapping[str, Any], *nodes: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return Batch's descriptions at one time."""
    return {JOB_ID: job, **{f"{JOB_ID}#{index}": node for index, node in enumerate(nodes)}}


def lines(start_s: float, messages: Sequence[str], *, lag_s: float = 0.0) -> list[Printed]:
    """Return one line a second from ``start_s``, each visible ``lag_s`` later."""
    return [
        Printed(
            timestamp_ms=round((start_s + index) * 1000),
            message=message,
            visible_at=start_s + index + lag_s,
        )
        for index, message in enumerate(messages)
    ]
