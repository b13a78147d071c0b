"""Descriptions of Volcano jobs and their pods, in the same terms as Batch jobs.

Volcano deletes the pods of an attempt before starting the next one, and pods disappear with removed
nodes: the launchers' reports in the bucket record how they ended.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from jobs.bucket.objects import Bucket
from jobs.job import (
    ENDED,
    LAUNCHER_VERDICT,
    Attempt,
    Job,
    JobKind,
    Node,
    RunSummary,
    Shape,
    ZonePosition,
)
from trainium_catalogue import kubernetes
from trainium_catalogue.contract import ENV_TIME_LIMIT, Orchestrator, attempts_prefix
from trainium_catalogue.node_use import ZoneAnnotations, labels_of, stamp
from trainium_catalogue.workloads import Hardware

Json = Mapping[str, Any]
STOPPED_BY = "trainium/stopped-by"
"""Annotation: why a job was stopped, and by which user."""

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
RETRY_COUNT = "volcano.sh/job-retry-count"
"""Annotation: number of restarts of the job before this pod, starting from 0."""
_POD_STATUSES = {
    "Pending": "STARTING",
    "Running": "RUNNING",
    "Succeeded": "SUCCEEDED",
    "Failed": "FAILED",
}
_NAME = re.compile(r"(?P<attempt>\d+)-node-(?P<node>\d+)\.json")
_READ_AGAIN_S = 15.0
"""Minimum interval between reads: if the main node is killed, others report after the restart."""


def summarize(job: Json, zones: Sequence[str] = ()) -> RunSummary:
    """Summarize a job for a list of runs; ``zones`` are the nodes' zones, if there are several."""
    status = _status(job)
    return RunSummary(
        run=run_of(job),
        job_id=job["metadata"]["name"],
        status=status,
        status_reason=_reason(job, status),
        created_at_ms=milliseconds(job["metadata"].get("creationTimestamp")) or 0,
        started_at_ms=_started_at_ms(job),
        stopped_at_ms=_stopped_at_ms(job, status),
        num_nodes=_num_nodes(job),
        hardware=Hardware.TRAINIUM,
        orchestrator=Orchestrator.EKS,
        zone=ZoneAnnotations.read(job).current(zones) if zones else None,
    )


def zone_position(job: Json, zones: Sequence[str]) -> ZonePosition:
    """Return the job's zone, and the next one.

    A job only moves while it waits for nodes from the node scaler.
    """
    notes = ZoneAnnotations.read(job)
    scales = (job["metadata"].get("annotations") or {}).get(kubernetes.SCALE) == "true"
    next_zone = notes.next(zones) if scales and _status(job) == "RUNNABLE" else None
    since = None if next_zone is None else notes.short_since
    return ZonePosition(
        zone=notes.current(zones),
        next_zone=next_zone,
        moves_after_ms=None if since is None else milliseconds(stamp(since + notes.patience)),
    )


def num_attempts_failed(job: Json) -> int:
    """Count the attempts that have failed."""
    return _restarts(job) + (_status(job) == "FAILED")


def describe(job: Json, pods: Sequence[Json], endings: AttemptReports | None = None) -> Job:
    """Describe a job with its pods; ``endings`` cover attempts whose pods were deleted."""
    status = _status(job)
    by_index = {int(match[1]): pod for pod in pods if (match := _NODE.search(_name(pod)))}
    ended = status in ENDED
    # Pods of the previous attempt may still be terminating.
    current = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    if status == "RUNNABLE" and any(pod["spec"].get("nodeName") for pod in current):
        status = "STARTING"
    # In an ended job, a node whose pod was deleted has the job's status.
    without_pod = status if ended else "RUNNABLE"
    nodes = tuple(
        node_of(index, by_index.get(index), without_pod) for index in range(_num_nodes(job))
    )
    after = (job["metadata"].get("annotations") or {}).get(kubernetes.AFTER)
    return Job(
        job_id=_name(job),
        run=run_of(job),
        workload=labels_of(job).get(kubernetes.LABEL_WORKLOAD),
        status=status,
        status_reason=_reason(job, status) or (trouble(pods) if not ended else None),
        created_at_ms=milliseconds(job["metadata"].get("creationTimestamp")),
        started_at_ms=_started_at_ms(job),
        stopped_at_ms=_stopped_at_ms(job, status),
        shape=Shape(kind=JobKind.NODES, size=_num_nodes(job)),
        job_queue=job["spec"].get("queue"),
        depends_on=() if after is None else (after,),
        max_attempts=job["spec"].get("maxRetry"),
        attempts=_attempts(job, nodes, endings or {}, ended=ended),
        nodes=nodes,
        orchestrator=Orchestrator.EKS,
        command=_command(job),
        time_limit_s=_time_limit_s(job),
    )


def _container(job: Json) -> Json:
    container: Json = job["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
    return container


def _time_limit_s(job: Json) -> int | None:
    """Return the launcher's time limit of an attempt."""
    variables = {each["name"]: each.get("value") for each in _container(job).get("env") or ()}
    limit = str(variables.get(ENV_TIME_LIMIT))
    return int(limit) if limit.isdecimal() else None


def _command(job: Json) -> tuple[str, ...]:
    """Return the pods' command."""
    container = _container(job)
    words = (*(container.get("command") or ()), *(container.get("args") or ()))
    # As in the kubelet, $$ is an escaped $; submissions use no $(VAR) references.
    return tuple(word.replace("$$", "$") for word in words)


def _attempts(
    job: Json, nodes: Sequence[Node], endings: AttemptReports, *, ended: bool
) -> tuple[Attempt, ...]:
    """List the ended attempts, whose pods may have been deleted."""
    restarts = _restarts(job)
    past = [_attempt_without_pods(number, endings.get(number)) for number in range(1, restarts + 1)]
    last = _deciding_attempt(nodes) if ended else None
    if last is not None and last.number > restarts:
        past.append(last)
    elif ended and restarts + 1 in endings:
        past.append(_attempt_without_pods(restarts + 1, endings[restarts + 1]))
    return tuple(past)


def _attempt_without_pods(number: int, launcher_report: LauncherReport | None) -> Attempt:
    """Describe an attempt without pods."""
    return Attempt(
        number=number,
        exit_code=launcher_report.exit_code if launcher_report else None,
        reason=(launcher_report.reason or None) if launcher_report else None,
        status_reason=None if launcher_report else "a pod failed or was lost",
        log_stream=None,
        started_at_ms=None,
        stopped_at_ms=None,
    )


def _restarts(job: Json) -> int:
    return int((job.get("status") or {}).get("retryCount") or 0)


def _deciding_attempt(nodes: Sequence[Node]) -> Attempt | None:
    """Return the attempt of the pod that failed first, which ended all others."""
    ended = [node.last for node in nodes if node.last and node.last.stopped_at_ms is not None]
    failed = [attempt for attempt in ended if attempt.exit_code]
    return min(failed or ended, key=lambda attempt: attempt.stopped_at_ms or 0, default=None)


def phase_of(job: Json) -> str | None:
    """Return Volcano's phase; None until its controller has processed the job."""
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
        return "Aborted: " + str(state.get("message") or "by kubectl or torchx cancel, for example")
    return str(state["message"]) if state.get("message") else None


def run_of(job: Json) -> str:
    """Return the name of the job's run."""
    return str(labels_of(job).get(kubernetes.LABEL_RUN) or _name(job))


def _num_nodes(job: Json) -> int:
    return sum(int(task.get("replicas", 1)) for task in job["spec"]["tasks"])


def _started_at_ms(job: Json) -> int | None:
    """Return when the gang of the last attempt was placed on its nodes.

    Volcano updates the time of the current phase's condition whenever a pod count changes (1.15.1,
    syncJob): for Running, it becomes the end of the first pod; for Pending, it does not change.
    """
    return None if _condition_ms(job, "Running") is None else _condition_ms(job, "Pending")


def _stopped_at_ms(job: Json, status: str) -> int | None:
    if status not in ENDED:
        return None
    return milliseconds(job["status"]["state"].get("lastTransitionTime"))


def _condition_ms(job: Json, phase: str) -> int | None:
    """Return the time of a phase's newest condition.

    Volcano 1.15.1 keeps one per phase; older versions append, so the first one would belong to an
    earlier attempt (volcano-sh/volcano, appendJobCondition).
    """
    for condition in reversed((job.get("status") or {}).get("conditions") or ()):
        if condition.get("status") == phase:
            return milliseconds(condition.get("lastTransitionTime"))
    return None


def _name(item: Json) -> str:
    return str(item["metadata"]["name"])


def node_of(index: int, pod: Json | None, without_pod: str) -> Node:
    """Describe one node of a job; ``without_pod`` is the status of a node without a pod."""
    if pod is None:
        return Node(index=index, status=without_pod, status_reason=None, attempts=())
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
        log_stream=kubernetes.log_stream(_name(pod), pod["metadata"]["uid"]) if started else None,
        started_at_ms=milliseconds(started.get("startedAt")),
        stopped_at_ms=milliseconds(ended.get("finishedAt")),
    )
    phase = str(pod.get("status", {}).get("phase"))
    scheduled = bool(pod["spec"].get("nodeName"))
    return Node(
        index=index,
        status=_POD_STATUSES.get(phase, "RUNNABLE") if scheduled else "RUNNABLE",
        status_reason=trouble([pod]),
        attempts=(attempt,) if started else (),
        name=str(pod["metadata"]["name"]),
    )


def _container_reason(ended: Json) -> str | None:
    reason = ended.get("reason")
    # "Error" and "Completed" add nothing to the exit code.
    if reason not in (None, "Error", "Completed"):
        return str(reason)
    # The tail of a failed container's log, whose last line is the launcher's verdict.
    lines = str(ended.get("message") or "").strip().splitlines()
    return LAUNCHER_VERDICT.sub("", lines[-1]) if lines else None


def _pod_reason(pod: Json) -> str | None:
    status = pod.get("status", {})
    parts = [status[name] for name in ("reason", "message") if status.get(name)]
    return ": ".join(parts) or None


def trouble(pods: Sequence[Json]) -> str | None:
    """Return why a pod does not run, according to the scheduler or the kubelet."""
    for pod in pods:
        status = pod.get("status", {})
        for container in status.get("containerStatuses") or ():
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
        for condition in status.get("conditions") or ():
            # Some pods of a gang could be placed; only the others state why none were (Volcano
            # 1.15.1, pkg/scheduler/api/job_info.go, TaskSchedulingReason).
            is_held = condition.get("reason") != "Schedulable"
            if (
                condition.get("type") == "PodScheduled"
                and condition.get("status") == "False"
                and is_held
            ):
                return str(condition.get("message") or condition.get("reason"))
    return None


def milliseconds(time: str | None) -> int | None:
    """Convert a Kubernetes time to milliseconds since the epoch."""
    if not time:
        return None
    return round(datetime.fromisoformat(time).timestamp() * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherReport:
    """A launcher's final report on an attempt."""

    exit_code: int
    reason: str


AttemptReports = Mapping[int, LauncherReport]
"""Reports by attempt number."""


@dataclass(slots=True)
class ReportReader:
    """Cached reader of the launchers' reports."""

    bucket: Bucket
    _found: dict[str, tuple[float, AttemptReports]] = field(default_factory=dict)

    def read(self, run: str, job_id: str, *, attempts: int) -> AttemptReports:
        """Read the existing reports on a job's attempts, unless all ``attempts`` are already known.

        Reports are used only in explanations, so an unavailable bucket is ignored.
        """
        read_at, known = self._found.get(job_id, (float("-inf"), {}))
        now = time.monotonic()
        if len(known) >= attempts or now - read_at < _READ_AGAIN_S:
            return known
        try:
            known = read_reports(self.bucket, run, job_id)
        except Exception:
            known = {}
        self._found[job_id] = now, known
        return known


def read_reports(bucket: Bucket, run: str, job_id: str) -> dict[int, LauncherReport]:
    """Read each attempt's report from the main node, or else from the lowest-numbered node."""
    prefix = attempts_prefix(run, job_id)
    first: dict[int, int] = {}
    for name in bucket.names(prefix):
        if match := _NAME.fullmatch(name):
            attempt, node = int(match["attempt"]), int(match["node"])
            first[attempt] = min(node, first.get(attempt, node))
    reports: dict[int, LauncherReport] = {}
    for attempt, node in first.items():
        document = bucket.document(f"{prefix}{attempt}-node-{node}.json") or {}
        if isinstance(document.get("code"), int):
            reason = str(document.get("reason") or "")
            reports[attempt] = LauncherReport(exit_code=document["code"], reason=reason)
    return reports
