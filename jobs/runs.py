"""Finding the job of a run, and reading its attempts and nodes from Batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.aws import BatchClient
from trainium_catalogue import contract

ENDED = frozenset({"SUCCEEDED", "FAILED"})
ON_HOSTS = frozenset({"STARTING", "RUNNING"})
_DESCRIBE_LIMIT = 100  # jobs of one DescribeJobs call (API reference)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One line of a list of runs."""

    run: str
    job_id: str
    status: str
    status_reason: str | None
    created_at_ms: int
    started_at_ms: int | None
    stopped_at_ms: int | None
    num_nodes: int | None

    @property
    def ended(self) -> bool:
        """Nothing more will happen."""
        return self.status in ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt of a job, or of one of its nodes."""

    number: int
    """From 1."""
    exit_code: int | None
    reason: str | None
    """What ECS says of the container."""
    status_reason: str | None
    """What Batch says of the attempt."""
    log_stream: str | None
    started_at_ms: int | None
    stopped_at_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node of a multi-node job."""

    index: int
    status: str
    status_reason: str | None
    attempts: tuple[Attempt, ...]

    @property
    def last(self) -> Attempt | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job with its nodes; its status is the status of the main node (node 0)."""

    job_id: str
    run: str
    workload: str | None
    status: str
    status_reason: str | None
    created_at_ms: int | None
    started_at_ms: int | None
    stopped_at_ms: int | None
    num_nodes: int
    max_attempts: int | None
    """None where Batch does not say."""
    attempts: tuple[Attempt, ...]
    """Attempts that ended."""
    nodes: tuple[Node, ...]

    @property
    def ended(self) -> bool:
        """Nothing more will happen."""
        return self.status in ENDED

    @property
    def succeeded(self) -> bool:
        """The main node exited with 0."""
        return self.status == "SUCCEEDED"


def list_runs(batch: BatchClient, job_queue: str, *, run: str | None = None) -> list[RunSummary]:
    """List the jobs of a queue, or those of one run; newest first."""
    # One filter returns the jobs of every status; without a filter Batch lists RUNNING ones only.
    wanted = (
        {"name": "AFTER_CREATED_AT", "values": ["0"]}
        if run is None
        else {"name": "JOB_NAME", "values": [run]}
    )
    found = [
        _summary(item)
        for page in _pages(batch, jobQueue=job_queue, filters=[wanted])
        for item in page["jobSummaryList"]
        # Batch compares names without case.
        if run is None or item["jobName"] == run
    ]
    return sorted(found, key=lambda summary: summary.created_at_ms, reverse=True)


def find_run(batch: BatchClient, job_queue: str, run: str) -> RunSummary | None:
    """Find the newest job of a run; one that has not ended comes before one that has."""
    found = list_runs(batch, job_queue, run=run)
    going_on = [summary for summary in found if not summary.ended]
    return next(iter(going_on or found), None)


def describe_job(batch: BatchClient, job_id: str, *, num_nodes: int | None = None) -> Job | None:
    """Read a job and its nodes; ``num_nodes``, where known, saves a call."""
    if num_nodes is None:
        parents = batch.describe_jobs(jobs=[job_id])["jobs"]
        if not parents:
            return None
        num_nodes = _num_nodes(parents[0])
    ids = [job_id, *(f"{job_id}#{index}" for index in range(num_nodes))]
    details: dict[str, Mapping[str, Any]] = {}
    for start in range(0, len(ids), _DESCRIBE_LIMIT):
        chunk = ids[start : start + _DESCRIBE_LIMIT]
        details |= {item["jobId"]: item for item in batch.describe_jobs(jobs=chunk)["jobs"]}
    if job_id not in details:
        return None
    children = [details.get(child) for child in ids[1:]]
    return _job(details[job_id], children)


def _pages(batch: BatchClient, **kwargs: Any) -> Iterator[Mapping[str, Any]]:
    token: dict[str, str] = {}
    while True:
        page = batch.list_jobs(**kwargs, **token)
        yield page
        if not page.get("nextToken"):
            return
        token = {"nextToken": page["nextToken"]}


def _summary(item: Mapping[str, Any]) -> RunSummary:
    return RunSummary(
        run=item["jobName"],
        job_id=item["jobId"],
        status=item["status"],
        status_reason=item.get("statusReason"),
        created_at_ms=int(item.get("createdAt", 0)),
        started_at_ms=item.get("startedAt"),
        stopped_at_ms=item.get("stoppedAt"),
        num_nodes=item.get("nodeProperties", {}).get("numNodes"),
    )


def _num_nodes(detail: Mapping[str, Any]) -> int:
    return int(detail.get("nodeProperties", {}).get("numNodes", 1))


def _job(detail: Mapping[str, Any], children: Sequence[Mapping[str, Any] | None]) -> Job:
    attempts = tuple(
        _attempt(item, number) for number, item in enumerate(detail.get("attempts", ()), start=1)
    )
    nodes = tuple(
        _node(index, child, attempts) for index, child in enumerate(children) if child is not None
    )
    return Job(
        job_id=detail["jobId"],
        run=detail["jobName"],
        workload=detail.get("tags", {}).get(contract.TAG_WORKLOAD),
        status=detail["status"],
        status_reason=detail.get("statusReason"),
        created_at_ms=detail.get("createdAt"),
        started_at_ms=detail.get("startedAt"),
        stopped_at_ms=detail.get("stoppedAt"),
        num_nodes=_num_nodes(detail),
        max_attempts=detail.get("retryStrategy", {}).get("attempts"),
        attempts=attempts,
        nodes=nodes,
    )


def _node(index: int, detail: Mapping[str, Any], of_job: Sequence[Attempt]) -> Node:
    attempts: list[Attempt] = []
    for item in detail.get("attempts", ()):
        attempts.append(_attempt(item, _number(item, len(attempts), of_job)))
    current = _current_attempt(detail, attempts, of_job)
    if current is not None:
        attempts.append(current)
    return Node(
        index=index,
        status=detail["status"],
        status_reason=detail.get("statusReason"),
        attempts=tuple(attempts),
    )


def _current_attempt(
    detail: Mapping[str, Any], known: Sequence[Attempt], of_job: Sequence[Attempt]
) -> Attempt | None:
    """The attempt that ``container`` shows, unless it is listed among the attempts already."""
    container = detail.get("container") or {}
    stream = container.get("logStreamName")
    if not stream or any(attempt.log_stream == stream for attempt in known):
        return None
    return _attempt(
        {
            "container": container,
            "startedAt": detail.get("startedAt"),
            "stoppedAt": detail.get("stoppedAt"),
            "statusReason": detail.get("statusReason"),
        },
        _number(detail, len(known), of_job),
    )


def _number(item: Mapping[str, Any], known: int, of_job: Sequence[Attempt]) -> int:
    """Number of a node's attempt.

    A child that never started in one attempt of the job has fewer attempts than the job, so
    counting is not enough: what started after the job's k-th attempt had stopped is of a later
    one.
    """
    started = item.get("startedAt")
    if started is None:
        return known + 1
    over = sum(
        1 for attempt in of_job if attempt.stopped_at_ms and attempt.stopped_at_ms <= started
    )
    return max(known, over) + 1


def _attempt(item: Mapping[str, Any], number: int) -> Attempt:
    container = item.get("container") or {}
    return Attempt(
        number=number,
        exit_code=container.get("exitCode"),
        reason=container.get("reason"),
        status_reason=item.get("statusReason"),
        log_stream=container.get("logStreamName"),
        started_at_ms=item.get("startedAt"),
        stopped_at_ms=item.get("stoppedAt"),
    )
