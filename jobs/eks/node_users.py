"""Who uses the cluster's nodes, who waits for nodes, and when idle ones go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from jobs.deployment import Deployment, OfDeployment
from jobs.eks.cluster import JOBS, NODES, PODS, Cluster, Json, status_of
from jobs.eks.describe import run_of
from jobs.eks.nodes import scale_command
from jobs.errors import Refusal
from jobs.job import counted
from trainium_catalogue import kubernetes
from trainium_catalogue.documents import Timestamp
from trainium_catalogue.node_use import (
    PodsOfNode,
    goes_at,
    instance_of,
    marked_since,
    pods_of_nodes,
    stamp,
    waits_of,
)

ALL_PODS = "/api/v1/pods"


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """The group's instances and their users."""

    nodes: Mapping[str, str]
    """Nodes by instance; an instance that has not joined has none."""
    runs: Mapping[str, tuple[str, ...]]
    """Runs, or other pods, by instance; idle instances are left out."""


def nodes_of_group(cluster: Cluster, deployment: Deployment) -> list[Json]:
    """List the nodes of the Trainium node group."""
    assert deployment.eks is not None
    selector = f"{kubernetes.NODE_GROUP_LABEL}={deployment.eks.node_group}"
    return cluster.items(NODES, labelSelector=selector)


def read_use(cluster: Cluster, deployment: Deployment) -> Use:
    """Read the nodes and their users from the cluster."""
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
    """List the pods of all namespaces, or only the jobs' own if the caller may not see others."""
    try:
        return cluster.items(ALL_PODS)
    except Exception as error:
        if status_of(error) != 403:
            raise
        return cluster.items(PODS)


def _run_of(pod: Json) -> str:
    """Name the run of a pod, or else its job; for any other pod, the pod itself."""
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    run = labels.get(kubernetes.LABEL_RUN) or labels.get("volcano.sh/job-name")
    return str(run or f"{metadata.get('namespace')}/{metadata['name']}")


def check_fewer(cluster: Cluster, deployment: Deployment, num_nodes: int) -> None:
    """Refuse a number of nodes that the node scaler could not reach, or would soon exceed."""
    use = read_use(cluster, deployment)
    if len(use.runs) > num_nodes:
        users = list(dict.fromkeys(run for runs in use.runs.values() for run in runs))
        raise Refusal(
            "nodes-in-use",
            f"--nodes {num_nodes}: {', '.join(users)} uses {counted(len(use.runs), 'node')} "
            f"and would lose some; stop it first (`python -m jobs stop {users[0]}`), or remove "
            f"idle nodes alone with --nodes {len(use.runs)}",
        )
    jobs = cluster.items(JOBS)
    runs = {job["metadata"]["name"]: run_of(job) for job in jobs}
    asking = [
        runs[wait.job]
        for wait in waits_of(jobs, pods_of_all(cluster), now=datetime.now(UTC))
        if wait.scales and not wait.dropped and len(use.runs) + wait.missing > num_nodes
    ]
    if asking:
        raise Refusal(
            "nodes-asked-for",
            f"--nodes {num_nodes}: {', '.join(asking)} waits for more and was submitted with "
            "--scale, so the cluster would get them again; stop it first "
            f"(`python -m jobs stop {asking[0]}`)",
        )


def busy_remark(cluster: Cluster, deployment: Deployment, num_nodes: int) -> str | None:
    """Say that a job without ``--scale`` waits for nodes in use, which may be gone by then."""
    assert deployment.eks is not None
    use = read_use(cluster, deployment)
    minutes = deployment.eks.idle_minutes
    if minutes is None or len(use.nodes) - len(use.runs) >= num_nodes:
        return None
    users = ", ".join(dict.fromkeys(run for runs in use.runs.values() for run in runs))
    return (
        f"{counted(len(use.runs), 'node')} of {len(use.nodes)} is in use ({users}): the job waits "
        f"for them, while the others are removed after {counted(minutes, 'idle minute')}; submit "
        "with --scale to have the missing ones added then"
    )


def try_idle_remark(cluster: Cluster, deployment: Deployment) -> str | None:
    """Call ``describe_idle`` on the current nodes; a failing remark must not end the command."""
    try:
        nodes = nodes_of_group(cluster, deployment)
    except Exception:
        return None
    return describe_idle(nodes, deployment, now=datetime.now(UTC))


def describe_idle(nodes: Sequence[Json], deployment: Deployment, *, now: datetime) -> str | None:
    """Describe how many nodes are idle and when the first one goes; None if none does."""
    assert deployment.eks is not None
    minutes = deployment.eks.idle_minutes
    if minutes is None:
        return None
    times = [moment for node in nodes if (moment := goes_at(node, timedelta(minutes=minutes)))]
    if not times:
        return None
    what = counted(len(times), "idle node") + (", the first of which" if len(times) > 1 else "")
    return (
        f"{what} goes {_when(min(times), now)} unless a job takes it; at once with: "
        f"{scale_command(deployment, len(nodes) - len(times))}"
    )


@dataclass(frozen=True, kw_only=True)
class IdleNode:
    """A node that no run uses and that is removed by itself."""

    node: str
    idle_since: Timestamp
    goes_at: Timestamp
    """At the earliest; a job that takes the node or waits for it keeps it."""


@dataclass(frozen=True, kw_only=True)
class ScaleDocument(OfDeployment):
    """The number of nodes of the cluster."""

    nodes_before: int
    """Wanted before."""
    nodes: int
    """Wanted now."""
    ready: int
    """Nodes on which pods can be placed."""
    idle: tuple[IdleNode, ...]


def idle_nodes(cluster: Cluster, deployment: Deployment) -> tuple[IdleNode, ...]:
    """List idle nodes with the times of their removal; empty if nothing removes them."""
    assert deployment.eks is not None
    minutes = deployment.eks.idle_minutes
    if minutes is None:
        return ()
    return tuple(
        IdleNode(
            node=node["metadata"]["name"],
            idle_since=stamp(since),
            goes_at=stamp(since + timedelta(minutes=minutes)),
        )
        for node in nodes_of_group(cluster, deployment)
        if (since := marked_since(node, kubernetes.IDLE_SINCE)) is not None
    )


def _when(moment: datetime, now: datetime) -> str:
    left = moment - now
    if left <= timedelta(0):
        return "in a moment"
    return f"at {moment.astimezone(UTC):%H:%M} UTC (in {-(-left // timedelta(minutes=1))} min)"
