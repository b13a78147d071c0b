"""How a Volcano job and its pods stand, in the words that the helper has for jobs of Batch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jobs.batch.runs import ENDED, Attempt, Job, Kind, Node, RunSummary, Shape
from jobs.eks.endings import Ending, Endings
from jobs.eks.pods import milliseconds, node_of, trouble
from trainium_catalogue import kubernetes
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.workloads import Hardware

Json = Mapping[str, Any]

STOPPED_BY = "trainium/stopped-by"
"""Annotation: who asked for the end."""

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
_NODE = re.compile(rf"-{kubernetes.TASK}-(\d+)-\d+$")
EXHAUSTED = "no attempts left"


def summarize(job: Json) -> RunSummary:
    """One line of a list of runs."""
    status = _status(job)
    return RunSummary(
        run=run_of(job),
        job_id=job["metadata"]["name"],
        status=status,
        status_reason=_reason(job, status),
        created_at_ms=milliseconds(job["metadata"].get("creationTimestamp")) or 0,
        started_at_ms=_started(job),
        stopped_at_ms=_stopped(job, status),
        num_nodes=_num_nodes(job),
        hardware=Hardware.TRAINIUM,
        orchestrator=Orchestrator.EKS,
    )


def num_attempts_failed(job: Json) -> int:
    """How many attempts have failed."""
    return _restarts(job) + (_status(job) == "FAILED")


def describe(job: Json, pods: Sequence[Json], endings: Endings | None = None) -> Job:
    """A job with its pods; ``endings`` tell of attempts whose pods are gone."""
    status = _status(job)
    by_index = {int(match[1]): pod for pod in pods if (match := _NODE.search(_name(pod)))}
    ended = status in ENDED
    # Pods of the attempt before may still be ending.
    coming = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    if status == "RUNNABLE" and any(pod["spec"].get("nodeName") for pod in coming):
        status = "STARTING"
    # Pods that were deleted, of a job that was stopped or has no attempts left, ended as it did.
    gone = status if ended else "RUNNABLE"
    nodes = tuple(node_of(index, by_index.get(index), gone) for index in range(_num_nodes(job)))
    after = (job["metadata"].get("annotations") or {}).get(kubernetes.AFTER)
    return Job(
        job_id=_name(job),
        run=run_of(job),
        workload=_labels(job).get(kubernetes.LABEL_WORKLOAD),
        status=status,
        status_reason=_reason(job, status) or (trouble(pods) if not ended else None),
        created_at_ms=milliseconds(job["metadata"].get("creationTimestamp")),
        started_at_ms=_started(job),
        stopped_at_ms=_stopped(job, status),
        shape=Shape(kind=Kind.NODES, size=_num_nodes(job)),
        job_queue=job["spec"].get("queue"),
        depends_on=() if after is None else (after,),
        max_attempts=job["spec"].get("maxRetry"),
        attempts=_attempts(job, nodes, endings or {}, ended=ended),
        nodes=nodes,
        orchestrator=Orchestrator.EKS,
        command=_command(job),
    )


def _command(job: Json) -> tuple[str, ...]:
    """Of the pods."""
    container = job["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
    return (*(container.get("command") or ()), *(container.get("args") or ()))


def _attempts(
    job: Json, nodes: Sequence[Node], endings: Endings, *, ended: bool
) -> tuple[Attempt, ...]:
    """Attempts that ended. The pods of earlier ones are gone, and may be those of the last."""
    restarts = _restarts(job)
    past = [_gone(number, endings.get(number)) for number in range(1, restarts + 1)]
    last = _deciding(nodes) if ended else None
    if last is not None and last.number > restarts:
        past.append(last)
    elif ended and restarts + 1 in endings:
        past.append(_gone(restarts + 1, endings[restarts + 1]))
    return tuple(past)


def _gone(number: int, ending: Ending | None) -> Attempt:
    """An attempt without pods."""
    return Attempt(
        number=number,
        exit_code=ending.exit_code if ending else None,
        reason=(ending.reason or None) if ending else None,
        status_reason=None if ending else "a pod failed or was lost",
        log_stream=None,
        started_at_ms=None,
        stopped_at_ms=None,
    )


def _restarts(job: Json) -> int:
    return int((job.get("status") or {}).get("retryCount") or 0)


def _deciding(nodes: Sequence[Node]) -> Attempt | None:
    """The pod that failed first: the others were ended because of it."""
    ended = [node.last for node in nodes if node.last and node.last.stopped_at_ms is not None]
    failed = [attempt for attempt in ended if attempt.exit_code]
    return min(failed or ended, key=lambda attempt: attempt.stopped_at_ms or 0, default=None)


def phase_of(job: Json) -> str | None:
    """Volcano's phase; None until its controller has seen the job."""
    return ((job.get("status") or {}).get("state") or {}).get("phase")


def _status(job: Json) -> str:
    return _STATUSES.get(str(phase_of(job)), "SUBMITTED")


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


def run_of(job: Json) -> str:
    """Name of the run that a job belongs to."""
    return str(_labels(job).get(kubernetes.LABEL_RUN) or _name(job))


def _labels(job: Json) -> Json:
    # Jobs of `torchx run` carry the labels on their pods only.
    template = job["spec"]["tasks"][0]["template"].get("metadata") or {}
    return {**(template.get("labels") or {}), **(job["metadata"].get("labels") or {})}


def _num_nodes(job: Json) -> int:
    return sum(int(task.get("replicas", 1)) for task in job["spec"]["tasks"])


def _started(job: Json) -> int | None:
    """When the gang of the last attempt came to its nodes.

    Volcano renews the time of the present phase's condition with every count of pods that changes
    (1.15.1, syncJob): that of Running says when a first pod has ended, that of Pending stays.
    """
    return None if _condition(job, "Running") is None else _condition(job, "Pending")


def _stopped(job: Json, status: str) -> int | None:
    if status not in ENDED:
        return None
    return milliseconds(job["status"]["state"].get("lastTransitionTime"))


def _condition(job: Json, phase: str) -> int | None:
    """Time of the newest condition of a phase.

    Volcano 1.15.1 keeps one of each; older ones append for ever, so that the first would be that
    of an earlier attempt (volcano-sh/volcano, appendJobCondition).
    """
    for condition in reversed((job.get("status") or {}).get("conditions") or ()):
        if condition.get("status") == phase:
            return milliseconds(condition.get("lastTransitionTime"))
    return None


def _name(item: Json) -> str:
    return str(item["metadata"]["name"])
