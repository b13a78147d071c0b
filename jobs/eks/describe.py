"""How a Volcano job and its pods stand, in the words that the helper has for jobs of Batch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jobs.eks.volcano_job import AFTER
from jobs.orchestrators import Orchestrator
from jobs.runs import Attempt, Job, Kind, Node, RunSummary, Shape
from trainium_catalogue import kubernetes
from trainium_catalogue.workloads import Hardware

Json = Mapping[str, Any]

STOPPED_BY = "trainium/stopped-by"
"""Annotation: who asked for the end."""
RETRY_COUNT = "volcano.sh/job-retry-count"

# Phases: volcano.sh/apis, batch/v1alpha1/job.go.
_STATUSES = {
    "Pending": "RUNNABLE",
    "Restarting": "RUNNABLE",
    "Running": "RUNNING",
    "Completing": "RUNNING",
    "Terminating": "RUNNING",
    "Aborting": "RUNNING",
    "Completed": "SUCCEEDED",
    "Terminated": "FAILED",
    "Aborted": "FAILED",
    "Failed": "FAILED",
}
_POD_STATUSES = {
    "Pending": "STARTING",
    "Running": "RUNNING",
    "Succeeded": "SUCCEEDED",
    "Failed": "FAILED",
}
_NODE = re.compile(rf"-{kubernetes.TASK}-(\d+)-\d+$")
EXHAUSTED = "no attempts left"


def summarize(job: Json) -> RunSummary:
    """One line of a list of runs."""
    status = _status(job)
    return RunSummary(
        run=_run(job),
        job_id=job["metadata"]["name"],
        status=status,
        status_reason=_reason(job, status),
        created_at_ms=_ms(job["metadata"].get("creationTimestamp")) or 0,
        started_at_ms=_started(job),
        stopped_at_ms=_stopped(job, status),
        num_nodes=_num_nodes(job),
        hardware=Hardware.TRAINIUM,
        orchestrator=Orchestrator.EKS,
    )


def describe(job: Json, pods: Sequence[Json]) -> Job:
    """A job with its pods."""
    status = _status(job)
    by_index = {int(match[1]): pod for pod in pods if (match := _NODE.search(_name(pod)))}
    ended = status in ("SUCCEEDED", "FAILED")
    if status == "RUNNABLE" and any(pod["spec"].get("nodeName") for pod in pods):
        status = "STARTING"
    # Pods that were deleted, of a job that was stopped or has no attempts left, ended as it did.
    gone = status if ended else "RUNNABLE"
    nodes = tuple(_node(index, by_index.get(index), gone) for index in range(_num_nodes(job)))
    labels = job["metadata"].get("labels") or {}
    after = (job["metadata"].get("annotations") or {}).get(AFTER)
    return Job(
        job_id=_name(job),
        run=_run(job),
        workload=labels.get(kubernetes.LABEL_WORKLOAD),
        status=status,
        status_reason=_reason(job, status) or (_trouble(pods) if not ended else None),
        created_at_ms=_ms(job["metadata"].get("creationTimestamp")),
        started_at_ms=_started(job),
        stopped_at_ms=_stopped(job, status),
        shape=Shape(kind=Kind.NODES, size=_num_nodes(job)),
        job_queue=job["spec"].get("queue"),
        depends_on=() if after is None else (after,),
        max_attempts=job["spec"].get("maxRetry"),
        attempts=_attempts(job, nodes, ended=ended),
        nodes=nodes,
        orchestrator=Orchestrator.EKS,
    )


def _attempts(job: Json, nodes: Sequence[Node], *, ended: bool) -> tuple[Attempt, ...]:
    """Attempts that ended. The pods of earlier ones are gone, and their exit codes with them."""
    restarts = int((job.get("status") or {}).get("retryCount") or 0)
    past = [
        Attempt(
            number=number,
            exit_code=None,
            reason=None,
            status_reason="a pod failed or was lost",
            log_stream=None,
            started_at_ms=None,
            stopped_at_ms=None,
        )
        for number in range(1, restarts + 1)
    ]
    last = _deciding(nodes) if ended else None
    if last is not None and last.number > restarts:
        past.append(last)
    return tuple(past)


def _deciding(nodes: Sequence[Node]) -> Attempt | None:
    """The pod that failed first: the others were ended because of it."""
    ended = [node.last for node in nodes if node.last and node.last.stopped_at_ms is not None]
    failed = [attempt for attempt in ended if attempt.exit_code]
    return min(failed or ended, key=lambda attempt: attempt.stopped_at_ms or 0, default=None)


def _node(index: int, pod: Json | None, gone: str) -> Node:
    if pod is None:
        return Node(index=index, status=gone, status_reason=None, attempts=())
    container: Json = next(iter(pod.get("status", {}).get("containerStatuses") or ()), {})
    state = container.get("state") or {}
    ended = state.get("terminated") or {}
    started = ended or state.get("running") or {}
    annotations = pod["metadata"].get("annotations") or {}
    attempt = Attempt(
        number=int(annotations.get(RETRY_COUNT) or 0) + 1,
        exit_code=ended.get("exitCode"),
        reason=_container_reason(ended),
        status_reason=_pod_reason(pod),
        # Pods of all attempts have one name; the log of this one is found by its uid.
        log_stream=f"{_name(pod)}/{pod['metadata'].get('uid', '')}" if started else None,
        started_at_ms=_ms(started.get("startedAt")),
        stopped_at_ms=_ms(ended.get("finishedAt")),
    )
    phase = str(pod.get("status", {}).get("phase"))
    scheduled = bool(pod["spec"].get("nodeName"))
    return Node(
        index=index,
        status=_POD_STATUSES.get(phase, "RUNNABLE") if scheduled else "RUNNABLE",
        status_reason=_trouble([pod]),
        attempts=(attempt,) if started else (),
        name=_name(pod),
    )


def _container_reason(ended: Json) -> str | None:
    reason = ended.get("reason")
    # "Error" and "Completed" say no more than the exit code.
    return None if reason in (None, "Error", "Completed") else str(reason)


def _pod_reason(pod: Json) -> str | None:
    status = pod.get("status", {})
    said = [status[name] for name in ("reason", "message") if status.get(name)]
    return ": ".join(said) or None


def _trouble(pods: Sequence[Json]) -> str | None:
    """Why a pod does not run: its scheduler's words, or the kubelet's."""
    for pod in pods:
        status = pod.get("status", {})
        for container in status.get("containerStatuses") or ():
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
        for condition in status.get("conditions") or ():
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                return str(condition.get("message") or condition.get("reason"))
    return None


def _status(job: Json) -> str:
    phase = ((job.get("status") or {}).get("state") or {}).get("phase")
    return _STATUSES.get(str(phase), "SUBMITTED")


def _reason(job: Json, status: str) -> str | None:
    if status != "FAILED":
        return None
    stopped_by = (job["metadata"].get("annotations") or {}).get(STOPPED_BY)
    if stopped_by:
        return str(stopped_by)
    state = job["status"]["state"]
    if state["phase"] == "Failed" and job["status"].get("retryCount"):
        return EXHAUSTED
    if state["phase"] == "Aborted":
        return "Aborted: " + str(state.get("message") or "by kubectl, torchx cancel or the like")
    return str(state["message"]) if state.get("message") else None


def _run(job: Json) -> str:
    labels = job["metadata"].get("labels") or {}
    # Jobs of `torchx run` carry the labels on their pods only.
    template = job["spec"]["tasks"][0]["template"].get("metadata") or {}
    labels = {**(template.get("labels") or {}), **labels}
    return str(labels.get(kubernetes.LABEL_RUN) or _name(job))


def _num_nodes(job: Json) -> int:
    return sum(int(task.get("replicas", 1)) for task in job["spec"]["tasks"])


def _started(job: Json) -> int | None:
    return _condition(job, "Running")


def _stopped(job: Json, status: str) -> int | None:
    if status not in ("SUCCEEDED", "FAILED"):
        return None
    return _ms(job["status"]["state"].get("lastTransitionTime"))


def _condition(job: Json, phase: str) -> int | None:
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("status") == phase:
            return _ms(condition.get("lastTransitionTime"))
    return None


def _ms(time: str | None) -> int | None:
    if not time:
        return None
    return round(datetime.fromisoformat(time).timestamp() * 1000)


def _name(item: Json) -> str:
    return str(item["metadata"]["name"])
