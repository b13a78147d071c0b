"""Scale-in: idle nodes are chosen, cordoned, checked again and terminated.

Just lowering the number would leave the choice to the Auto Scaling group, which knows nothing of
pods (Amazon EC2 Auto Scaling user guide, configure termination policies). The Cluster Autoscaler
also terminates chosen instances of managed node groups
(github.com/kubernetes/autoscaler, cluster-autoscaler/cloudprovider/aws/auto_scaling_groups.go).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from jobs.aws import Aws
from jobs.deployment import Deployment
from jobs.eks.cluster import JOBS, MERGE_PATCH, NODES, PODS, Cluster, Json, status_of
from jobs.eks.describe import run_of
from jobs.eks.nodes import NodeGroup, read_node_group, scale_command
from jobs.errors import Refusal
from jobs.job import counted
from trainium_catalogue import kubernetes
from trainium_catalogue.node_use import (
    goes_at,
    instance_of,
    marked_since,
    stamp,
    users_of_nodes,
    waits_of,
)

ALL_PODS = "/api/v1/pods"
QUIET_S = 3.0
"""Pause between cordoning nodes and checking them again: Volcano decides once a second on what it
saw before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """The group's instances and their users."""

    nodes: Mapping[str, str]
    """Nodes by instance; an instance that has not joined has none."""
    runs: Mapping[str, tuple[str, ...]]
    """Runs, or other pods, by instance; idle instances are left out."""
    open: frozenset[str]
    """Nodes that accept pods."""


def nodes_of_group(cluster: Cluster, deployment: Deployment) -> list[Json]:
    """List the nodes of the Trainium node group."""
    assert deployment.eks is not None
    selector = f"{kubernetes.NODE_GROUP_LABEL}={deployment.eks.node_group}"
    return cluster.items(NODES, labelSelector=selector)


def read_use(cluster: Cluster, deployment: Deployment) -> Use:
    """Read the nodes and their users from the cluster."""
    nodes = nodes_of_group(cluster, deployment)
    pods = pods_on_nodes(cluster)
    runs = {f"{p['metadata'].get('namespace')}/{p['metadata']['name']}": _run_of(p) for p in pods}
    users = users_of_nodes(pods)
    instances = {node["metadata"]["name"]: instance_of(node) for node in nodes}
    return Use(
        nodes={instance: name for name, instance in instances.items() if instance},
        runs={
            instance: tuple(dict.fromkeys(runs[user] for user in users[name]))
            for name, instance in instances.items()
            if instance and name in users
        },
        open=frozenset(
            node["metadata"]["name"] for node in nodes if not node["spec"].get("unschedulable")
        ),
    )


def pods_on_nodes(cluster: Cluster) -> list[Json]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The instances to remove for a smaller number of nodes."""

    never_came: int
    """Number of instances that EC2 has not started yet."""
    instances: tuple[str, ...]


def choose(group: NodeGroup, use: Use, num_nodes: int, *, force: bool) -> Cut:
    """Choose what is removed: pending instances, then idle nodes, and with ``force`` busy ones."""
    excess = group.wanted - num_nodes
    never_came = min(excess, max(0, group.wanted - len(group.instances)))
    # Sorted: not joined, idle, in use.
    order = sorted(group.instances, key=lambda each: (each in use.runs, each in use.nodes))
    chosen = order[: excess - never_came]
    lost = [instance for instance in chosen if instance in use.runs]
    if lost and not force:
        users = list(dict.fromkeys(run for runs in use.runs.values() for run in runs))
        raise Refusal(
            "nodes-in-use",
            f"--nodes {num_nodes}: {', '.join(users)} uses {counted(len(use.runs), 'node')} "
            f"and would lose some; stop it first (`python -m jobs stop {users[0]}`), or take them "
            "all the same with --force",
        )
    return Cut(never_came=never_came, instances=tuple(chosen))


def idle_ones(group: NodeGroup, use: Use) -> Cut:
    """Choose everything that is unused."""
    return Cut(
        never_came=max(0, group.wanted - len(group.instances)),
        instances=tuple(each for each in group.instances if each not in use.runs),
    )


def cut(
    aws: Aws,
    cluster: Cluster,
    deployment: Deployment,
    group: NodeGroup,
    parts: Cut,
    *,
    use: Use,
    force: bool,
    sleep: Callable[[float], None],
) -> None:
    """Remove the instances; refuse, and uncordon the nodes, if a pod has arrived meanwhile."""
    opened = [use.nodes[each] for each in parts.instances if use.nodes.get(each) in use.open]
    _cordon(cluster, opened, closed=True)
    if opened and not force:
        sleep(QUIET_S)
        now = read_use(cluster, deployment)
        taken = [instance for instance in parts.instances if instance in now.runs]
        if taken:
            _cordon(cluster, opened, closed=False)
            users = ", ".join(dict.fromkeys(run for each in taken for run in now.runs[each]))
            raise Refusal(
                "nodes-in-use",
                f"{users} has come to a node that was about to go; nothing was taken away: look "
                "with `python -m jobs scale`, and try again",
            )
    late = _give_up_waiting(aws, deployment, group, parts.never_came)
    for instance in (*parts.instances, *late):
        aws.autoscaling().terminate_instance_in_auto_scaling_group(
            InstanceId=instance, ShouldDecrementDesiredCapacity=True
        )


def _give_up_waiting(
    aws: Aws, deployment: Deployment, group: NodeGroup, number: int
) -> tuple[str, ...]:
    """Request ``number`` fewer pending instances; return those that have started in the meantime.

    The group is read again: if the number fell below what has started since, the group would choose
    what to remove, even a busy node (as in kubernetes/autoscaler issue 10147).
    """
    if not number:
        return ()
    now = read_node_group(aws, deployment)
    late = tuple(each for each in now.instances if each not in group.instances)[:number]
    wanted = max(len(now.instances), now.wanted - (number - len(late)))
    if wanted < now.wanted:
        aws.autoscaling().set_desired_capacity(
            AutoScalingGroupName=now.scaling_group, DesiredCapacity=wanted
        )
    return late


def _cordon(cluster: Cluster, names: Iterable[str], *, closed: bool) -> None:
    for name in names:
        patch_node(cluster, name, {"spec": {"unschedulable": closed or None}})


def patch_node(cluster: Cluster, name: str, changes: Json) -> None:
    """Change parts of a node."""
    cluster.call("PATCH", f"{NODES}/{name}", body=changes, content_type=MERGE_PATCH)


def asking_jobs(cluster: Cluster, num_nodes: int, *, use: Use) -> Mapping[str, str]:
    """Find jobs, with their runs, for which the node scaler would raise the number again."""
    jobs = cluster.items(JOBS)
    runs = {job["metadata"]["name"]: run_of(job) for job in jobs}
    return {
        wait.job: runs[wait.job]
        for wait in waits_of(jobs, pods_on_nodes(cluster))
        if wait.scales and len(use.runs) + wait.missing > num_nodes
    }


def refuse_asking(jobs: Mapping[str, str], num_nodes: int) -> None:
    """Refuse a number that would not last."""
    if not jobs:
        return
    runs = list(jobs.values())
    raise Refusal(
        "nodes-asked-for",
        f"--nodes {num_nodes}: {', '.join(runs)} waits for more and was submitted with --scale, so "
        f"the cluster would get them again; stop it first (`python -m jobs stop {runs[0]}`), or "
        "let it wait for nodes of somebody else's with --force",
    )


def withdraw(cluster: Cluster, jobs: Iterable[str]) -> None:
    """Let jobs wait without requesting nodes."""
    changes = {"metadata": {"annotations": {kubernetes.SCALE: None}}}
    for job in jobs:
        cluster.call("PATCH", f"{JOBS}/{job}", body=changes, content_type=MERGE_PATCH)


def try_idle_remark(cluster: Cluster, deployment: Deployment) -> str | None:
    """Call ``describe_idle`` on the current nodes; a failing remark must not end the command."""
    try:
        nodes = nodes_of_group(cluster, deployment)
    except Exception:
        return None
    return describe_idle(nodes, deployment, now=datetime.now(UTC))


def describe_idle(nodes: Sequence[Json], deployment: Deployment, *, now: datetime) -> str | None:
    """Describe how many nodes are idle and when the first one goes; None if none is."""
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


def idle_documents(cluster: Cluster, deployment: Deployment) -> list[Json]:
    """List idle nodes with the times of their removal; empty if nothing removes them."""
    assert deployment.eks is not None
    minutes = deployment.eks.idle_minutes
    if minutes is None:
        return []
    return [
        {
            "node": node["metadata"]["name"],
            "idle_since": stamp(since),
            "goes_at": stamp(since + timedelta(minutes=minutes)),
        }
        for node in nodes_of_group(cluster, deployment)
        if (since := marked_since(node, kubernetes.IDLE_SINCE)) is not None
    ]


def _when(moment: datetime, now: datetime) -> str:
    left = moment - now
    if left <= timedelta(0):
        return "in a moment"
    return f"at {moment.astimezone(UTC):%H:%M} UTC (in {-(-left // timedelta(minutes=1))} min)"


def keep_idle(cluster: Cluster, deployment: Deployment) -> bool:
    """Restart the idle time of idle nodes; return False if the caller may not change nodes."""
    for node in nodes_of_group(cluster, deployment):
        marks = (kubernetes.IDLE_SINCE, kubernetes.CORDONED_SINCE)
        found = [mark for mark in marks if marked_since(node, mark) is not None]
        if not found:
            continue
        changes: Json = {"metadata": {"annotations": dict.fromkeys(found)}}
        if kubernetes.CORDONED_SINCE in found:
            changes["spec"] = {"unschedulable": None}
        try:
            patch_node(cluster, node["metadata"]["name"], changes)
        except Exception as error:
            if status_of(error) != 403:
                raise
            return False
    return True
