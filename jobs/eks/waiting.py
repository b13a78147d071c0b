"""Explain why a job on the cluster does not run: nodes are missing, in use, lost or not ready.

Events are the only evidence when Volcano does not admit a gang (1.15.1, pkg/scheduler/plugins/
capacity and proportion, JobEnqueueable) or may not create pods (FailedCreate), and when the kubelet
cannot mount volumes (FailedMount).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from jobs.eks.cluster import EVENTS, JOBS, NODES, POD_GROUPS, Cluster, is_missing
from jobs.eks.describe import milliseconds
from jobs.eks.nodes import count_nodes, read_node_group, scale_command
from jobs.eks.reasons import CLUSTER_REASONS
from jobs.job import Explanation, Job, find_explanation
from trainium_catalogue import kubernetes
from trainium_catalogue.node_use import is_ready, stamp
from trainium_catalogue.wording import counted

if TYPE_CHECKING:
    from jobs.eks.service import EksService

Json = Mapping[str, Any]
HELD = ("Unschedulable", "FailedCreate", "PluginError", "PVCError", "PodGroupError")
"""Reasons of events that explain why a job has no pods."""
_ON_NODES = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "Failed", "BackOff")
"""Reasons of events that explain why pods on a node do not run."""
# Volcano repeats this for every waiting gang in each cycle, and it contains only pod counts.
UNINFORMATIVE = "tasks in gang unschedulable"


def why_waiting(service: EksService, job: Job) -> Explanation | None:
    """Explain the first problem found, or else suggest what to check."""
    if job.status == "STARTING":
        return _explain_unstarted_pods(service, job)
    return (
        waits_for(service, job)
        or explain_terminating_pods(service, job)
        or _explain_node_shortage(service, job)
        or _explain_held_gang(service, job)
    )


def _explain_node_shortage(service: EksService, job: Job) -> Explanation | None:
    """Explain that nodes are missing, or used by another run."""
    target = service.target
    nodes = count_nodes(service.cluster(), target)
    if nodes.in_one_zone < job.num_nodes:
        group = read_node_group(service.aws, target)
        details = "; ".join((*group.health_issues, *nodes.remarks))
        details = details or f"the node group's desired size is {group.desired}"
        needs, are = counted(job.num_nodes, "node"), "is" if nodes.in_one_zone == 1 else "are"
        in_zone = " in one zone" if target.eks and target.eks.has_zones else ""
        meaning = f"the job needs {needs}, {nodes.in_one_zone} {are} ready{in_zone} ({details})"
        notes = service.cluster().get(f"{JOBS}/{job.job_id}")["metadata"].get("annotations") or {}
        if (dropped := notes.get(kubernetes.DROPPED)) is not None:
            return _explanation(
                f"{meaning}; no more nodes will be added for it: {dropped}",
                f"add them with `{scale_command(target, job.num_nodes)}`, or stop it and submit "
                "it again",
            )
        if (starts_at := notes.get(kubernetes.NOT_BEFORE, "")) > stamp(datetime.now(UTC)):
            return _explanation(
                f"{meaning}; the deployment's reserved capacity starts at {starts_at}",
                "wait: the nodes are added then",
            )
        if notes.get(kubernetes.SCALE) == "true":
            return _explanation(
                meaning,
                "wait a few minutes: the node scaler adds nodes up to the maximum; "
                f"if this persists: kubectl -n {kubernetes.SCALER} logs "
                f"deployment/{kubernetes.SCALER}",
            )
        return _explanation(meaning, f"add them with `{scale_command(target, job.num_nodes)}`")
    before = [
        summary
        for summary in service.runs()
        if not summary.ended and summary.job_id != job.job_id and summary.status == "RUNNING"
    ]
    taken = sum(item.num_nodes or 0 for item in before)
    if nodes.usable - taken < job.num_nodes and before:
        sizes = {item.run: counted(item.num_nodes or 0, "node") for item in before}
        others = " and ".join(f"run {run} ({size})" for run, size in sizes.items())
        verb = "is" if len(sizes) == 1 else "are"
        return _explanation(
            f"the gang needs all its nodes at the same time, but {others} {verb} running",
            f"wait, or add nodes with `{scale_command(target, job.num_nodes + taken)}`",
        )
    return None


def _explain_held_gang(service: EksService, job: Job) -> Explanation:
    """Quote Volcano's reason why a gang is not placed or has no pods."""
    gang = gang_of(service.cluster(), job.job_id)
    reason = None if gang is None else unschedulable(gang)
    if reason is not None:
        return _quote(
            f"nodes are ready, but Volcano cannot place the gang: {reason}",
            f"check with: kubectl describe nodes; kubectl describe queue {job.job_queue}",
        )
    names = (job.job_id,) if gang is None else (job.job_id, gang["metadata"]["name"])
    reason = newest_reason(service.cluster(), names, HELD)
    if reason is not None:
        first = None
        if gang is not None and _phase(gang) == "Pending":
            first = _find_admitted_run(service)
        if first is not None:
            return _explanation(
                f"Volcano does not admit the job: {reason}; run {first} was admitted first, and "
                "has too few nodes",
                f"wait until run {first} has nodes, or moves to another zone, or stop it with "
                f"`python -m jobs stop {first}`",
            )
        return _quote(
            f"Volcano does not admit the job: {reason}",
            f"check with: kubectl describe queue {job.job_queue}; kubectl describe resourcequota",
        )
    return _explanation(
        "nodes are ready and unused; Volcano schedules every second",
        f"if this persists: kubectl describe vcjob {job.job_id}; "
        "kubectl -n volcano-system get pods",
    )


def _find_admitted_run(service: EksService) -> str | None:
    """Return a run that Volcano has admitted but not placed.

    Its requests count as in use (1.15.1, pkg/scheduler/plugins/overcommit and proportion,
    OnSessionOpen).
    """
    for summary in service.runs():
        gang = None if summary.ended else gang_of(service.cluster(), summary.job_id)
        if gang is not None and _phase(gang) == "Inqueue":
            return summary.run
    return None


def _phase(gang: Json) -> str | None:
    return (gang.get("status") or {}).get("phase")


def _explain_unstarted_pods(service: EksService, job: Job) -> Explanation | None:
    """Explain why pods assigned to a node do not start, from the kubelet's events."""
    waiting = [node.name for node in job.nodes if node.name and node.status == "STARTING"]
    reason = newest_reason(service.cluster(), waiting[:1], _ON_NODES)
    if reason is not None:
        return _quote(
            f"pod {waiting[0]} does not start: {reason}",
            f"if this persists: kubectl describe pod {waiting[0]}",
        )
    if job.status_reason:
        return None
    return _explanation(
        "its pods are assigned to nodes; pulling the image takes a few minutes on a new node",
        f"if this persists: kubectl describe pods -l volcano.sh/job-name={job.job_id}",
    )


def explain_terminating_pods(service: EksService, job: Job) -> Explanation | None:
    """Explain that a pod of the previous attempt is still terminating, or that its node is lost.

    The next pod has the same name, so the gang waits for it.
    """
    terminating = [
        pod
        for pod in service.cluster().pods_of(job.job_id)
        if "deletionTimestamp" in pod["metadata"]
    ]
    if not terminating:
        return None
    nodes = {node["metadata"]["name"]: node for node in service.cluster().items(NODES)}
    for pod in terminating:
        node = nodes.get(pod["spec"].get("nodeName", ""))
        if node is not None and not is_ready(node):
            name = node["metadata"]["name"]
            return _explanation(
                f"pod {pod['metadata']['name']} of the previous attempt is still terminating, "
                f"because its node {name} does not respond",
                "the node scaler removes the node after about ten minutes, and the next attempt "
                "starts; to start it immediately, if the node is known to be dead: kubectl delete "
                f"node {name}",
            )
    return _explanation(
        "pods of the previous attempt are still terminating",
        "wait: by default, they have up to two minutes to save",
    )


def waits_for(service: EksService, job: Job) -> Explanation | None:
    """Explain that a job waits for its compile job; None if it does not."""
    for job_id in job.depends_on:
        other = service.describe(job_id)
        if other is not None and not other.succeeded:
            return _explanation(
                f"the job starts once run {other.run} ({other.status}) has succeeded",
                f"follow it with `python -m jobs logs {other.run} --follow`",
            )
    return None


def gang_of(cluster: Cluster, job_id: str) -> Json | None:
    """Read a job's PodGroup; None if it has none yet."""
    try:
        uid = cluster.get(f"{JOBS}/{job_id}")["metadata"]["uid"]
        return cluster.get(f"{POD_GROUPS}/{job_id}-{uid}")
    except Exception as error:
        if is_missing(error):
            return None
        raise


def _quote(meaning: str, remedy: str) -> Explanation:
    """Explain with the cluster's own message, and its known remedy if there is one."""
    known = find_explanation(CLUSTER_REASONS, meaning)
    return _explanation(meaning, remedy if known is None else f"{known.meaning}: {known.remedy}")


def _explanation(meaning: str, remedy: str) -> Explanation:
    return Explanation(meaning=meaning, remedy=remedy)


def unschedulable(gang: Json) -> str | None:
    """Return Volcano's reason for not placing a PodGroup's pods."""
    for condition in reversed((gang.get("status") or {}).get("conditions") or ()):
        if condition.get("type") == "Unschedulable" and condition.get("status") == "True":
            return str(condition.get("message"))
    return None


def events_of(cluster: Cluster, names: Iterable[str]) -> list[Json]:
    """List the events of objects with these names."""
    return [
        event
        for name in names
        for event in cluster.items(EVENTS, fieldSelector=f"involvedObject.name={name}")
    ]


def newest_reason(cluster: Cluster, names: Iterable[str], reasons: Collection[str]) -> str | None:
    """Return the newest message of the objects' events with one of these reasons."""
    informative = [
        event
        for event in events_of(cluster, names)
        if event.get("reason") in reasons and UNINFORMATIVE not in str(event.get("message"))
    ]
    last = max(informative, key=time_of, default=None)
    return None if last is None else " ".join(str(last.get("message")).split())


def time_of(event: Json) -> int:
    """Return when an event was last seen, in milliseconds since the epoch."""
    # Recorders of events.k8s.io write eventTime; others write lastTimestamp.
    series = event.get("series") or {}
    times = event.get("lastTimestamp"), series.get("lastObservedTime"), event.get("eventTime")
    return max(milliseconds(time) or 0 for time in times)
