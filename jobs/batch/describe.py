"""Descriptions of Batch jobs, with their attempts and nodes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jobs.aws import BatchClient, pages
from jobs.job import ENDED, ON_HOSTS, Attempt, Job, JobKind, Node, NodeLog, Shape
from trainium_catalogue import contract

_DESCRIBE_LIMIT = 100  # jobs per DescribeJobs call (API reference)
# Most likely first: most parts of a job have the same status, and ListJobs accepts one status per
# call.
_STATUSES = ("RUNNING", "FAILED", "SUCCEEDED", "STARTING", "RUNNABLE", "PENDING", "SUBMITTED")
# Most advanced first: an array job has the first status in this list that any child has.
_CHILD_STATUSES = ("RUNNING", "STARTING", "RUNNABLE")


def describe_job(batch: BatchClient, job_id: str, *, shape: Shape | None = None) -> Job | None:
    """Read a job and its nodes; None if it is unknown. A known ``shape`` saves a call.

    If a job has more parts than one call can describe, all parts except the first are read from
    lists, so that the number of calls does not grow with the job.
    """
    if shape is None:
        parents = batch.describe_jobs(jobs=[job_id])["jobs"]
        if not parents:
            return None
        shape = _shape(parents[0])
    part_ids = shape.part_ids(job_id)
    is_listed = _is_listed(shape)
    details = _details(batch, [job_id, *(part_ids[:1] if is_listed else part_ids)])
    if job_id not in details:
        return None
    detail = details[job_id]
    job = _job(detail, [details.get(part) for part in part_ids], shape)
    has_parts = shape.kind is JobKind.ARRAY or job.status in ENDED | ON_HOSTS
    return _add_listed_parts(job, batch, detail["status"]) if is_listed and has_parts else job


def find_logs(batch: BatchClient, job: Job, nodes: Iterable[int] | None) -> list[NodeLog]:
    """Find the log streams missing from the list of a large job's parts."""
    if not _is_listed(job.shape):
        return []
    part_ids = job.shape.part_ids(job.job_id)
    started = {node.index for node in job.nodes if node.attempts} - {0}
    indexes = sorted(started if nodes is None else started.intersection(nodes))
    details = _details(batch, [part_ids[index] for index in indexes])
    described = [
        _node(index, details[part_ids[index]], job.attempts)
        for index in indexes
        if part_ids[index] in details
    ]
    return replace(job, nodes=tuple(described)).node_logs


def _is_listed(shape: Shape) -> bool:
    return len(shape.part_ids("")) >= _DESCRIBE_LIMIT


def _details(batch: BatchClient, ids: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    details: dict[str, Mapping[str, Any]] = {}
    for start in range(0, len(ids), _DESCRIBE_LIMIT):
        chunk = ids[start : start + _DESCRIBE_LIMIT]
        details |= {item["jobId"]: item for item in batch.describe_jobs(jobs=chunk)["jobs"]}
    return details


def _add_listed_parts(job: Job, batch: BatchClient, parent_status: str) -> Job:
    """Add the parts that are missing from the description, from the list of parts.

    Also update the status of an array job from all of its children.
    """
    parent = "arrayJobId" if job.shape.kind is JobKind.ARRAY else "multiNodeJobId"
    nodes = {node.index: node for node in job.nodes}
    for status in sorted(_STATUSES, key=lambda status: status != job.status):
        if len(nodes) == job.shape.size:
            break
        for page in pages(batch.list_jobs, jobStatus=status, **{parent: job.job_id}):
            for item in page["jobSummaryList"]:
                node = _listed_node(item, job.attempts)
                nodes.setdefault(node.index, node)
    is_array = job.shape.kind is JobKind.ARRAY
    counts = Counter(node.status for node in nodes.values())
    return replace(
        job,
        nodes=tuple(nodes[index] for index in sorted(nodes)),
        status=array_status(parent_status, counts) if is_array else parent_status,
    )


def _listed_node(item: Mapping[str, Any], job_attempts: Sequence[Attempt]) -> Node:
    """Describe a node from a list item, which has only the last attempt and no log stream."""
    attempt = _attempt(item, _number(item, 0, job_attempts))
    return Node(
        index=int(re.split("[#:]", item["jobId"])[-1]),
        status=item["status"],
        status_reason=item.get("statusReason"),
        attempts=(attempt,) if item.get("startedAt") else (),
    )


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
    status, tags = detail["status"], detail.get("tags", {})
    if shape.kind is JobKind.ARRAY:
        status = array_status(status, Counter(node.status for node in nodes))
    patience = tags.get(contract.TAG_ZONE_PATIENCE)
    return Job(
        job_id=detail["jobId"],
        run=detail["jobName"],
        workload=tags.get(contract.TAG_WORKLOAD),
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
        time_limit_s=(detail.get("timeout") or {}).get("attemptDurationSeconds"),
        zone_patience_minutes=None if patience is None else int(patience),
        request_digest=tags.get(contract.TAG_REQUEST),
    )


def _command(detail: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the described command; a multi-node job's may lack the submission's overrides."""
    ranges = (detail.get("nodeProperties") or {}).get("nodeRangeProperties") or [{}]
    container = ranges[0].get("container") or detail.get("container") or {}
    return tuple(container.get("command") or ())


def _node(index: int, detail: Mapping[str, Any], job_attempts: Sequence[Attempt]) -> Node:
    attempts: list[Attempt] = []
    for item in detail.get("attempts", ()):
        attempts.append(_attempt(item, _number(item, len(attempts), job_attempts)))
    current = _current_attempt(detail, attempts, job_attempts)
    if current is not None:
        attempts.append(current)
    return Node(
        index=index,
        status=detail["status"],
        status_reason=detail.get("statusReason"),
        attempts=tuple(attempts),
    )


def _current_attempt(
    detail: Mapping[str, Any], known: Sequence[Attempt], job_attempts: Sequence[Attempt]
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
        _number(detail, len(known), job_attempts),
    )


def _number(item: Mapping[str, Any], known: int, job_attempts: Sequence[Attempt]) -> int:
    """Return the number of a node's attempt.

    A child that never started in one of the job's attempts has fewer attempts than the job, so
    counting is not enough: an attempt that started after the job's k-th attempt stopped belongs to
    a later one.
    """
    started = item.get("startedAt")
    if started is None:
        return known + 1
    num_stopped = sum(
        1 for attempt in job_attempts if attempt.stopped_at_ms and attempt.stopped_at_ms <= started
    )
    return max(known, num_stopped) + 1


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


def array_status(status: str, children: Mapping[str, int]) -> str:
    """Return the status of an array job; ``children`` counts its children by status."""
    if status in ENDED:
        return status
    return next((each for each in _CHILD_STATUSES if children.get(each)), status)
