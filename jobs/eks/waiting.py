"""Explain why a job on the cluster does not run: nodes are missing, taken, lost or not ready.

There is nothing but an event when Volcano does not admit a gang (1.15.1, pkg/scheduler/plugins/
capacity and proportion, JobEnqueueable) or may not create pods (FailedCreate), and when the
kubelet cannot mount volumes (FailedMount).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jobs.aws import Aws
from jobs.deployment import Deployment
from jobs.eks.cluster import EVENTS, JOBS, NODES, POD_GROUPS, Cluster, is_missing
from jobs.eks.describe import milliseconds
from jobs.eks.nodes import look_at_nodes, read_node_group, scale_command
from jobs.eks.reasons import CLUSTER_REASONS
from jobs.job import Explanation, Job, RunSummary, counted, find_explanation
from trainium_catalogue import kubernetes
from trainium_catalogue.node_use import is_ready

Json = Mapping[str, Any]
_HELD = ("Unschedulable", "FailedCreate", "PluginError", "PVCError", "PodGroupError")
_ON_NODES = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "Failed", "BackOff")
# Volcano repeats this for every waiting gang in each cycle, and it only counts the pods.
NO_NEWS = "tasks in gang unschedulable"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The cluster and its jobs, as needed to explain a waiting job."""

    aws: Aws
    target: Deployment
    cluster: Cluster
    runs: Callable[[], list[RunSummary]]
    describe: Callable[[str], Job | None]


def why_waiting(view: ClusterView, job: Job) -> Explanation | None:
    """Return the first problem found, or the usual one."""
    if job.status == "STARTING":
        return _not_started(view, job)
    return waits_for(view, job) or leaving(view, job) or _no_room(view, job) or _held(view, job)


def _no_room(view: ClusterView, job: Job) -> Explanation | None:
    """Explain that nodes are missing, or used by another run."""
    target = view.target
    nodes = look_at_nodes(view.cluster, target)
    if nodes.usable < job.num_nodes:
        group = read_node_group(view.aws, target)
        said = "; ".join((*group.troubles, *nodes.remarks))
        said = said or f"the node group wants {group.wanted}"
        needs, are = counted(job.num_nodes, "node"), "is" if nodes.usable == 1 else "are"
        meaning = f"the job needs {needs}, {nodes.usable} {are} ready ({said})"
        notes = view.cluster.get(f"{JOBS}/{job.job_id}")["metadata"].get("annotations") or {}
        if (dropped := notes.get(kubernetes.DROPPED)) is not None:
            return _found(
                f"{meaning}; the cluster gets no more for it: {dropped}",
                f"get them with `{scale_command(target, job.num_nodes)}`, or stop it and submit "
                "it again",
            )
        if notes.get(kubernetes.SCALE) == "true":
            return _found(
                meaning,
                "wait: the cluster gets them when they fit beside what runs, which takes some "
                f"minutes; if it lasts: kubectl -n {kubernetes.SCALER} logs "
                f"deployment/{kubernetes.SCALER}",
            )
        return _found(meaning, f"get them with `{scale_command(target, job.num_nodes)}`")
    before = [
        summary
        for summary in view.runs()
        if not summary.ended and summary.job_id != job.job_id and summary.status == "RUNNING"
    ]
    taken = sum(item.num_nodes or 0 for item in before)
    if nodes.usable - taken < job.num_nodes and before:
        sizes = {item.run: counted(item.num_nodes or 0, "node") for item in before}
        has = " and ".join(f"run {run} ({size})" for run, size in sizes.items())
        return _found(
            f"the gang starts as a whole, and {has} runs",
            f"wait, or get more nodes with `{scale_command(target, job.num_nodes + taken)}`",
        )
    return None


def _held(view: ClusterView, job: Job) -> Explanation:
    """Quote Volcano's reason why a gang is not placed or has no pods."""
    gang = gang_of(view.cluster, job.job_id)
    said = None if gang is None else unschedulable(gang)
    if said is not None:
        return _said(
            f"nodes are ready, and Volcano places the gang on none: {said}",
            f"compare with: kubectl describe nodes; kubectl describe queue {job.job_queue}",
        )
    names = (job.job_id,) if gang is None else (job.job_id, gang["metadata"]["name"])
    said = why_held(view.cluster, *names)
    if said is not None:
        return _said(
            f"Volcano holds the job back: {said}",
            f"compare with: kubectl describe queue {job.job_queue}; kubectl describe resourcequota",
        )
    return _found(
        "nodes are ready and nobody has them; Volcano looks at its jobs every second",
        f"if it lasts: kubectl describe vcjob {job.job_id}; kubectl -n volcano-system get pods",
    )


def _not_started(view: ClusterView, job: Job) -> Explanation | None:
    """Explain pods that have a node, with the kubelet's events."""
    waiting = [node.name for node in job.nodes if node.name and node.status == "STARTING"]
    said = why_not_started(view.cluster, *waiting[:1])
    if said is not None:
        return _said(
            f"pod {waiting[0]} does not start: {said}",
            f"if it lasts: kubectl describe pod {waiting[0]}",
        )
    if job.status_reason:
        return None
    return _found(
        "its pods have nodes; pulling an image takes some minutes on a new one",
        f"if it lasts: kubectl describe pods -l volcano.sh/job-name={job.job_id}",
    )


def leaving(view: ClusterView, job: Job) -> Explanation | None:
    """Explain that a pod of the previous attempt cannot go because its node does not answer.

    The next pod has the same name, so the gang waits for it.
    """
    leaving = [
        pod for pod in view.cluster.pods_of(job.job_id) if "deletionTimestamp" in pod["metadata"]
    ]
    if not leaving:
        return None
    nodes = {node["metadata"]["name"]: node for node in view.cluster.items(NODES)}
    for pod in leaving:
        node = nodes.get(pod["spec"].get("nodeName", ""))
        if node is not None and not is_ready(node):
            name = node["metadata"]["name"]
            return _found(
                f"pod {pod['metadata']['name']} of the attempt before is still there, because its "
                f"node {name} does not answer",
                "the node scaler removes the node about ten minutes after that, and the next "
                f"attempt begins; at once, if you know that it is dead: kubectl delete node {name}",
            )
    return _found(
        "pods of the attempt before are still ending",
        "wait: they have up to two minutes to save",
    )


def waits_for(view: ClusterView, job: Job) -> Explanation | None:
    """Name the job that compiles for this one, and its status."""
    for job_id in job.depends_on:
        other = view.describe(job_id)
        if other is not None and not other.succeeded:
            return _found(
                f"it begins when run {other.run} ({other.status}) has succeeded",
                f"follow that with `python -m jobs logs {other.run} --follow`",
            )
    return None


def gang_of(cluster: Cluster, job_id: str) -> Json | None:
    """Read a job's PodGroup; None while it has none."""
    try:
        uid = cluster.get(f"{JOBS}/{job_id}")["metadata"]["uid"]
        return cluster.get(f"{POD_GROUPS}/{job_id}-{uid}")
    except Exception as error:
        if is_missing(error):
            return None
        raise


def _said(meaning: str, remedy: str) -> Explanation:
    """Explain with the cluster's own message, adding its known remedy."""
    known = find_explanation(CLUSTER_REASONS, meaning)
    return _found(meaning, remedy if known is None else f"{known.meaning}: {known.remedy}")


def _found(meaning: str, remedy: str) -> Explanation:
    return Explanation(pattern="", meaning=meaning, remedy=remedy)


def unschedulable(gang: Json) -> str | None:
    """Return Volcano's reason why a PodGroup's pods are not placed."""
    for condition in reversed((gang.get("status") or {}).get("conditions") or ()):
        if condition.get("type") == "Unschedulable" and condition.get("status") == "True":
            return str(condition.get("message"))
    return None


def why_held(cluster: Cluster, *names: str) -> str | None:
    """Return the newest reason why a job has no pods."""
    return _newest(events_of(cluster, names), _HELD)


def why_not_started(cluster: Cluster, *pods: str) -> str | None:
    """Return the newest reason why pods on a node do not run."""
    return _newest(events_of(cluster, pods), _ON_NODES)


def events_of(cluster: Cluster, names: Iterable[str]) -> list[Json]:
    """List the events about objects of these names."""
    return [
        event
        for name in names
        for event in cluster.items(EVENTS, fieldSelector=f"involvedObject.name={name}")
    ]


def _newest(events: Iterable[Json], reasons: Iterable[str]) -> str | None:
    wanted = set(reasons)
    news = [
        event
        for event in events
        if event.get("reason") in wanted and NO_NEWS not in str(event.get("message"))
    ]
    last = max(news, key=time_of, default=None)
    return None if last is None else " ".join(str(last.get("message")).split())


def time_of(event: Json) -> int:
    """Return when an event was last seen, in milliseconds since the epoch."""
    # Recorders of events.k8s.io write eventTime; the others write lastTimestamp.
    series = event.get("series") or {}
    times = event.get("lastTimestamp"), series.get("lastObservedTime"), event.get("eventTime")
    return max(milliseconds(time) or 0 for time in times)
