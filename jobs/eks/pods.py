"""What a pod tells of itself: how far it is, how it ended, and why it does not run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jobs.batch.runs import LAUNCHERS_VERDICT, Attempt, Node

Json = Mapping[str, Any]

RETRY_COUNT = "volcano.sh/job-retry-count"
"""Annotation: restarts of the job before this pod, from 0."""
_STATUSES = {
    "Pending": "STARTING",
    "Running": "RUNNING",
    "Succeeded": "SUCCEEDED",
    "Failed": "FAILED",
}


def node_of(index: int, pod: Json | None, gone: str) -> Node:
    """One node of a job; ``gone`` is the status of one whose pod is not there."""
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
        log_stream=f"{pod['metadata']['name']}/{pod['metadata'].get('uid', '')}"
        if started
        else None,
        started_at_ms=milliseconds(started.get("startedAt")),
        stopped_at_ms=milliseconds(ended.get("finishedAt")),
    )
    phase = str(pod.get("status", {}).get("phase"))
    scheduled = bool(pod["spec"].get("nodeName"))
    return Node(
        index=index,
        status=_STATUSES.get(phase, "RUNNABLE") if scheduled else "RUNNABLE",
        status_reason=trouble([pod]),
        attempts=(attempt,) if started else (),
        name=str(pod["metadata"]["name"]),
    )


def _container_reason(ended: Json) -> str | None:
    reason = ended.get("reason")
    # "Error" and "Completed" say no more than the exit code.
    if reason not in (None, "Error", "Completed"):
        return str(reason)
    # Of a container that failed: the end of its log, whose last line is the launcher's verdict.
    lines = str(ended.get("message") or "").strip().splitlines()
    return LAUNCHERS_VERDICT.sub("", lines[-1]) if lines else None


def _pod_reason(pod: Json) -> str | None:
    status = pod.get("status", {})
    said = [status[name] for name in ("reason", "message") if status.get(name)]
    return ": ".join(said) or None


def trouble(pods: Sequence[Json]) -> str | None:
    """Why a pod does not run: its scheduler's words, or the kubelet's."""
    for pod in pods:
        status = pod.get("status", {})
        for container in status.get("containerStatuses") or ():
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
        for condition in status.get("conditions") or ():
            # Of the pods of a gang some could be placed; one that could not says why none is
            # (Volcano 1.15.1, pkg/scheduler/api/job_info.go, TaskSchedulingReason).
            is_held = condition.get("reason") != "Schedulable"
            if (
                condition.get("type") == "PodScheduled"
                and condition.get("status") == "False"
                and is_held
            ):
                return str(condition.get("message") or condition.get("reason"))
    return None


def milliseconds(time: str | None) -> int | None:
    """Kubernetes' time since the epoch."""
    if not time:
        return None
    return round(datetime.fromisoformat(time).timestamp() * 1000)
