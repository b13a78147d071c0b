"""Reading a job from Batch, with its attempts and its nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from jobs.aws import BatchClient
from jobs.job import ENDED, Attempt, Job, JobKind, Node, Shape
from trainium_catalogue import contract

_DESCRIBE_LIMIT = 100  # jobs of one DescribeJobs call (API reference)
# Furthest along first: an array job takes the first status that any child has.
_AS_CHILDREN = ("RUNNING", "STARTING", "RUNNABLE")


def describe_job(batch: BatchClient, job_id: str, *, shape: Shape | None = None) -> Job | None:
    """Read a job and its nodes; a known ``shape`` saves a call."""
    if shape is None:
        parents = batch.describe_jobs(jobs=[job_id])["jobs"]
        if not parents:
            return None
        shape = _shape(parents[0])
    ids = [job_id, *shape.part_ids(job_id)]
    details: dict[str, Mapping[str, Any]] = {}
    for start in range(0, len(ids), _DESCRIBE_LIMIT):
        chunk = ids[start : start + _DESCRIBE_LIMIT]
        details |= {item["jobId"]: item for item in batch.describe_jobs(jobs=chunk)["jobs"]}
    if job_id not in details:
        return None
    return _job(details[job_id], [details.get(part) for part in ids[1:]], shape)


def _shape(detail: Mapping[str, Any]) -> Shape:
    if detail.get("nodeProperties"):
        return Shape(kind=JobKind.NODES, size=int(detail["nodeProperties"].get("numNodes", 1)))
    array = (detail.get("arrayProperties") or {}).get("size")
    if array:
        return Shape(kind=JobKind.ARRAY, size=int(array))
    return Shape(kind=JobKind.CONTAINER, size=1)


def _job(detail: Mapping[str, Any], parts: Sequence[Mapping[str, Any] | None], shape: Shape) -> Job:
    attempts = tuple(
        _attempt(item, number) for number, item in enumerate(detail.get("attempts", ()), start=1)
    )
    if shape.kind is JobKind.CONTAINER:
        parts = [detail]
    nodes = tuple(
        _node(index, part, attempts) for index, part in enumerate(parts) if part is not None
    )
    status = detail["status"]
    if shape.kind is JobKind.ARRAY:
        status = array_status(status, Counter(node.status for node in nodes))
    return Job(
        job_id=detail["jobId"],
        run=detail["jobName"],
        workload=detail.get("tags", {}).get(contract.TAG_WORKLOAD),
        status=status,
        status_reason=detail.get("statusReason"),
        created_at_ms=detail.get("createdAt"),
        started_at_ms=detail.get("startedAt"),
        stopped_at_ms=detail.get("stoppedAt"),
        shape=shape,
        job_queue=detail.get("jobQueue"),
        depends_on=tuple(
            str(item["jobId"]) for item in detail.get("dependsOn") or () if item.get("jobId")
        ),
        max_attempts=detail.get("retryStrategy", {}).get("attempts"),
        attempts=attempts,
        nodes=nodes,
        command=_command(detail),
    )


def _command(detail: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the container's command, as SubmitJob overrode the job definition's."""
    ranges = (detail.get("nodeProperties") or {}).get("nodeRangeProperties") or [{}]
    container = ranges[0].get("container") or detail.get("container") or {}
    return tuple(container.get("command") or ())


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
    """Return the attempt shown by ``container``, unless the attempts already include it."""
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
    """Return the number of a node's attempt.

    A child that never started in one of the job's attempts has fewer attempts than the job, so
    counting is not enough: what started after the job's k-th attempt had stopped belongs to a
    later one.
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


def array_status(said: str, children: Mapping[str, int]) -> str:
    """Return the status of an array job; ``children`` counts its children by status."""
    if said in ENDED:
        return said
    return next((status for status in _AS_CHILDREN if children.get(status)), said)
