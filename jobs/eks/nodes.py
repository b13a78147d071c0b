"""The cluster's nodes that run jobs: counting them, and changing their number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from jobs import errors
from jobs.aws import Aws
from jobs.deployment import Deployment
from jobs.eks.cluster import NODES, Cluster, Json
from jobs.errors import Refusal
from jobs.job import counted
from trainium_catalogue import kubernetes
from trainium_catalogue.contract import DEFAULT_DEPLOYMENT

_CHANGING = "UPDATING"
# States of an instance that counts towards its group's size and can be terminated (Amazon EC2
# Auto Scaling user guide, instance lifecycle).
_PRESENT = ("InService", "Pending")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """The node group as EKS describes it, and the Auto Scaling group behind it.

    The latter has the size: after a change there, EKS's own number "can be out-of-date for short
    periods of time" (Amazon EKS API reference, NodegroupScalingConfig).
    """

    status: str
    wanted: int
    most: int
    troubles: tuple[str, ...]
    """Reasons why it does not have the nodes it wants."""
    scaling_group: str = ""
    instances: tuple[str, ...] = ()
    """Instances that are running or starting."""


def read_node_group(aws: Aws, deployment: Deployment) -> NodeGroup:
    """Read the group from EKS and EC2 Auto Scaling."""
    assert deployment.eks is not None
    found = aws.eks().describe_nodegroup(
        clusterName=deployment.eks.cluster, nodegroupName=deployment.eks.node_group
    )["nodegroup"]
    (behind,) = found["resources"]["autoScalingGroups"]
    (group,) = aws.autoscaling().describe_auto_scaling_groups(
        AutoScalingGroupNames=[behind["name"]]
    )["AutoScalingGroups"]
    issues = (found.get("health") or {}).get("issues") or ()
    return NodeGroup(
        status=found["status"],
        wanted=int(group["DesiredCapacity"]),
        most=int(group["MaxSize"]),
        troubles=tuple(f"{issue.get('code')}: {issue.get('message')}" for issue in issues),
        scaling_group=behind["name"],
        instances=tuple(
            each["InstanceId"]
            for each in group["Instances"]
            if str(each["LifecycleState"]).startswith(_PRESENT)
        ),
    )


def add_nodes(aws: Aws, group: NodeGroup, num_nodes: int) -> None:
    """Raise the group's desired number of nodes."""
    assert num_nodes > group.wanted, "which nodes go is not for the group to choose"
    aws.autoscaling().set_desired_capacity(
        AutoScalingGroupName=group.scaling_group, DesiredCapacity=num_nodes
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The nodes of the deployment's instance type."""

    usable: int
    """Number of nodes that can take a pod of a job."""
    remarks: tuple[str, ...]
    """Reasons why the others cannot be used."""


def look_at_nodes(cluster: Cluster, deployment: Deployment) -> Nodes:
    """Count the usable nodes: those that are Ready and whose device plugins have registered."""
    selector = f"{kubernetes.NODE_LABEL}={deployment.instance_type.name}"
    wanted = {
        name: int(count)
        for name, count in kubernetes.pod_resources(deployment.instance_type).items()
        if name in (kubernetes.NEURON_RESOURCE, kubernetes.EFA_RESOURCE)
    }
    found = [_remark(node, wanted) for node in cluster.items(NODES, labelSelector=selector)]
    return Nodes(
        usable=found.count(None), remarks=tuple(remark for remark in found if remark is not None)
    )


def _remark(node: Json, wanted: Mapping[str, int]) -> str | None:
    """Explain why a node cannot be used; None if it can."""
    name = node["metadata"]["name"]
    if node.get("spec", {}).get("unschedulable"):
        return f"node {name} is cordoned"
    if not is_ready(node):
        return f"node {name} is not ready"
    offers = node.get("status", {}).get("allocatable") or {}
    for resource, count in wanted.items():
        if int(offers.get(resource, 0)) < count:
            return f"node {name} offers {offers.get(resource, 0)} of {count} {resource}"
    return None


def check_ready(cluster: Cluster, deployment: Deployment, num_nodes: int) -> None:
    """Refuse a job that needs more nodes than are ready; the message says how to get them."""
    nodes = look_at_nodes(cluster, deployment)
    if nodes.usable >= num_nodes:
        return
    but = f" ({'; '.join(nodes.remarks)})" if nodes.remarks else ""
    scales = deployment.eks is not None and deployment.eks.idle_minutes is not None
    other = ", or submit with --scale" if scales else ""
    raise Refusal(
        "nodes-missing",
        f"--nodes {num_nodes}: the cluster has {counted(nodes.usable, 'ready node')} of "
        f"{deployment.instance_type.name}{but}; get them with "
        f"`{scale_command(deployment, num_nodes)}`{other}",
    )


def scale_command(deployment: Deployment, num_nodes: int) -> str:
    """Build the command that changes the number of nodes."""
    chosen = "" if deployment.name == DEFAULT_DEPLOYMENT else f"--deployment {deployment.name} "
    region = f"--region {deployment.region} " if deployment.region else ""
    return f"python -m jobs {chosen}{region}scale --nodes {num_nodes}"


def check_scale(deployment: Deployment, num_nodes: int) -> None:
    """Refuse more nodes than the deployment may have."""
    if num_nodes > deployment.max_nodes:
        raise Refusal(
            "too-many-nodes",
            f"--nodes {num_nodes} is more than deployment {deployment.name!r} can hold "
            f"({deployment.max_nodes}); scale to {deployment.max_nodes} or fewer, or deploy again "
            f"with {deployment.redeploy(max_nodes=num_nodes)}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The group's progress towards its size."""

    ready: int
    group: NodeGroup
    remarks: tuple[str, ...] = ()

    def text(self, num_nodes: int) -> str:
        """Describe the progress for a person."""
        said = f"{self.ready} of {num_nodes} nodes are ready, the node group is {self.group.status}"
        return "; ".join((said, *self.group.troubles, *self.remarks))


def wait_for_nodes(
    read: Callable[[], Progress],
    num_nodes: int,
    *,
    limit_s: float,
    now: Callable[[], float],
    sleep: Callable[[float], None],
    pause_s: float = 5.0,
) -> Iterator[Progress]:
    """Yield each change until the number is reached; refuse if that takes too long."""
    deadline = now() + limit_s
    last: Progress | None = None
    while True:
        try:
            progress = read()
        except Exception as error:
            # One failed call in hundreds is no reason to stop waiting, since EKS carries on.
            if not errors.is_transient(error) or now() >= deadline:
                raise
            sleep(pause_s)
            continue
        if progress != last:
            yield progress
            last = progress
        if progress.ready == num_nodes and progress.group.status != _CHANGING:
            return
        if now() >= deadline:
            raise Refusal(
                "nodes-late",
                f"after {limit_s:g} s {progress.text(num_nodes)}; EKS goes on: look again with the "
                "same command, or give the nodes up with --nodes 0",
            )
        sleep(pause_s)


def is_ready(node: Json) -> bool:
    """Tell whether the kubelet reports the node as ready."""
    conditions = node.get("status", {}).get("conditions") or ()
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
