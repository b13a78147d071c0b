"""Users of the cluster's nodes, jobs waiting for nodes, and the removal of idle nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from jobs.deployment import Deployment, DeploymentFields
from jobs.eks.cluster import JOBS, NODES, PODS, Cluster, Json
from jobs.eks.describe import run_of
from jobs.eks.nodes import scale_command
from jobs.errors import Refusal, http_status
from trainium_catalogue import kubernetes
from trainium_catalogue.documents import Timestamp
from trainium_catalogue.node_use import (
    PodsOfNode,
    instance_of,
    marked_since,
    pods_of_nodes,
    removal_time,
    stamp,
    waiting_jobs,
)
from trainium_catalogue.wording import counted

ALL_PODS = "/api/v1/pods"


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """The node groups' instances and their users."""

    nodes: Mapping[str, str]
    """Node names by instance; an instance that has not joined the cluster has none."""
    runs: Mapping[str, tuple[str, ...]]
    """Runs, or other pods, by instance; idle instances are not included."""


def nodes_of_group(cluster: Cluster, deployment: Deployment) -> list[Json]:
    """List the nodes of the Trainium node groups."""
    assert deployment.eks is not None
    return [
        node
        for name in deployment.eks.node_groups.values()
        for node in cluster.items(NODES, labelSelector=f"{kubernetes.NODE_GROUP_LABEL}={name}")
    ]


def read_use(cluster: Cluster, deployment: Deployment) -> Use:
    """Read nodes and their users from the cluster."""
    pods = pods_of_all(cluster)
    runs = {f"{p['metadata'].get('namespace')}/{p['metadata']['name']}": _run_of(p) for p in pods}
    on_nodes = pods_of_nodes(pods, now=datetime.now(UTC))
    instances = {
        node["metadata"]["name"]: instance_of(node) for node in nodes_of_group(cluster, deployment)
    }
    users = {name: on_nodes.get(name, PodsOfNode()).users for name in instances}
    return Use(
        nodes={instance: name for name, instance in instances.items() if instance},
        runs={
            instance: tuple(dict.fromkeys(runs[user] for user in users[name]))
            for name, instance in instances.items()
            if instance and users[name]
        },
    )


def pods_of_all(cluster: Cluster) -> list[Json]:
    """List the pods in all namespaces, or else only in the jobs' namespace, if access is denied."""
    try:
        return cluster.items(ALL_PODS)
    except Exception as error:
        if http_status(error) != 403:
            raise
        return cluster.items(PODS)


def _run_of(pod: Json) -> str:
    """Return the run of a pod, else its job, else the pod's own name."""
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    run = labels.get(kubernetes.LABEL_RUN) or labels.get("volcano.sh/job-name")
    return str(run or f"{metadata.get('namespace')}/{metadata['name']}")


def check_fewer(cluster: Cluster, deployment: Deployment, num_nodes: int) -> None:
    """Refuse to scale down below the nodes in use, or below what waiting jobs request."""
    use = read_use(cluster, deployment)
    if len(use.runs) > num_nodes:
        users = list(dict.fromkeys(run for runs in use.runs.values() for run in runs))
        namespace, _, pod = users[0].rpartition("/")
        command = f"python -m jobs stop {users[0]}"
        if namespace:  # the pod is not part of a run
            command = f"kubectl -n {namespace} delete pod {pod}"
        raise Refusal(
            "nodes-in-use",
            f"--nodes {num_nodes} would remove nodes in use by {', '.join(users)}; free "
            f"these nodes first (`{command}`), or remove only idle nodes with --nodes "
            f"{len(use.runs)}",
        )
    jobs = cluster.items(JOBS)
    runs = {job["metadata"]["name"]: run_of(job) for job in jobs}
    waiting = [
        runs[wait.job]
        for wait in waiting_jobs(jobs, pods_of_all(cluster), now=datetime.now(UTC))
        if wait.scales and not wait.dropped and len(use.runs) + wait.missing > num_nodes
    ]
    if waiting:
        noun, pronoun = ("a waiting run", "it") if len(waiting) == 1 else ("waiting runs", "them")
        raise Refusal(
            "nodes-asked-for",
            f"--nodes {num_nodes}: nodes would be added again for {noun} submitted with "
            f"--scale: {', '.join(waiting)}; stop {pronoun} first (`python -m jobs stop "
            f"{waiting[0]}`)",
        )


def busy_remark(cluster: Cluster, deployment: Deployment, num_nodes: int) -> str | None:
    """Warn that a job without ``--scale`` waits for nodes in use, while idle ones are removed."""
    assert deployment.eks is not None
    use = read_use(cluster, deployment)
    minutes = deployment.eks.idle_minutes
    if minutes is None or len(use.nodes) - len(use.runs) >= num_nodes:
        return None
    if not use.runs:
        return None  # too few nodes, which is refused elsewhere
    users = ", ".join(dict.fromkeys(run for runs in use.runs.values() for run in runs))
    are = "is" if len(use.runs) == 1 else "are"
    idle = ""
    if len(use.runs) < len(use.nodes):
        idle = f", while idle nodes are removed after {counted(minutes, 'minute')}"
    return (
        f"{counted(len(use.runs), 'node')} of {len(use.nodes)} {are} in use ({users}): the job "
        f"waits until enough are free{idle}; submit with --scale to add missing nodes"
    )


def try_idle_remark(cluster: Cluster, deployment: Deployment) -> str | None:
    """Call ``describe_idle``, best effort."""
    try:
        return describe_idle(cluster, deployment)
    except Exception:
        return None


def describe_idle(cluster: Cluster, deployment: Deployment) -> str | None:
    """Describe how many nodes are idle and when the first is removed; None if none is."""
    assert deployment.eks is not None
    minutes = deployment.eks.idle_minutes
    if minutes is None:
        return None
    nodes = nodes_of_group(cluster, deployment)
    times = [moment for node in nodes if (moment := removal_time(node, timedelta(minutes=minutes)))]
    if not times:
        return None
    what, them = "1 idle node", "it"
    if len(times) > 1:
        what, them = f"the first of {len(times)} idle nodes", "all of them"
    return (
        f"{what} will be removed {_when(min(times))} unless a job uses it; to remove {them} "
        f"immediately: {scale_command(deployment, len(nodes) - len(times))}"
    )


@dataclass(frozen=True, kw_only=True)
class IdleNode:
    """An idle node that will be removed automatically."""

    node: str
    idle_since: Timestamp
    removal_at: Timestamp
    """Earliest time of removal, unless a job uses the node or waits for it."""


@dataclass(frozen=True, kw_only=True)
class ScaleDocument(DeploymentFields):
    """The number of nodes of the cluster."""

    nodes_before: int
    """Previous desired size."""
    nodes: int
    """New desired size."""
    ready: int
    """Nodes that can run pods."""
    idle: tuple[IdleNode, ...]


def idle_nodes(cluster: Cluster, deployment: Deployment) -> tuple[IdleNode, ...]:
    """List idle nodes with their removal times; empty if nothing removes them."""
    assert deployment.eks is not None
    minutes = deployment.eks.idle_minutes
    if minutes is None:
        return ()
    return tuple(
        IdleNode(
            node=node["metadata"]["name"],
            idle_since=stamp(since),
            removal_at=stamp(since + timedelta(minutes=minutes)),
        )
        for node in nodes_of_group(cluster, deployment)
        if (since := marked_since(node, kubernetes.IDLE_SINCE)) is not None
    )


def _when(moment: datetime) -> str:
    left = moment - datetime.now(UTC)
    if left <= timedelta(0):
        return "shortly"
    return f"at {moment.astimezone(UTC):%H:%M} UTC (in {-(-left // timedelta(minutes=1))} min)"
