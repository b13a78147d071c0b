"""The cluster's nodes that run jobs: counting them, and asking the node scaler for a number."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from jobs import errors
from jobs.aws import Aws
from jobs.deployment import Deployment
from jobs.eks.cluster import MERGE_PATCH, NODE_REQUEST, NODES, Cluster, Json, is_missing
from jobs.errors import Refusal
from jobs.job import counted
from trainium_catalogue import kubernetes
from trainium_catalogue.contract import DEFAULT_DEPLOYMENT
from trainium_catalogue.node_use import NodeRequest, is_cordoned, why_unusable

_CHANGING = "UPDATING"
# States of an instance that counts towards its group's size and can be terminated (Amazon EC2
# Auto Scaling user guide, instance lifecycle).
_PRESENT = ("InService", "Pending")
PAUSE_S = 5.0
"""Pause between two looks at nodes that are awaited."""


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
    subnets: tuple[str, ...] = ()


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
        subnets=tuple(found.get("subnets") or ()),
        instances=tuple(
            each["InstanceId"]
            for each in group["Instances"]
            if str(each["LifecycleState"]).startswith(_PRESENT)
        ),
    )


def request_nodes(cluster: Cluster, num_nodes: int) -> str:
    """Ask the node scaler for a number of nodes; returns the id of the request.

    Users may change no node and no Auto Scaling group: the number goes into a ConfigMap.
    """
    request = uuid.uuid4().hex
    data = {"nodes": str(num_nodes), "id": request}
    try:
        cluster.call("PATCH", NODE_REQUEST, body={"data": data}, content_type=MERGE_PATCH)
    except Exception as error:
        if not is_missing(error):
            raise
        raise Refusal(
            "no-node-request",
            f"the cluster has no ConfigMap {kubernetes.NODE_REQUEST}, in which the node scaler is "
            "asked for nodes: it was deployed by an older version; deploy again with "
            "`cdk deploy --all`",
        ) from None
    return request


def read_request(cluster: Cluster) -> NodeRequest | None:
    """Read the last request and the node scaler's answer; None if there is none."""
    try:
        return NodeRequest.read(cluster.get(NODE_REQUEST))
    except Exception as error:
        if not is_missing(error):
            raise
        return None


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
    devices = kubernetes.device_resources(deployment.instance_type)
    found = [_remark(node, devices) for node in cluster.items(NODES, labelSelector=selector)]
    return Nodes(
        usable=found.count(None), remarks=tuple(remark for remark in found if remark is not None)
    )


def _remark(node: Json, devices: Mapping[str, int]) -> str | None:
    """Explain why a node cannot be used; None if it can."""
    # The node scaler cordons a node with a fault: the fault is what to read first.
    found = (why_unusable(node, devices), "is cordoned" if is_cordoned(node) else None)
    why = " and ".join(each for each in found if each is not None)
    return f"node {node['metadata']['name']} {why}" if why else None


def check_ready(cluster: Cluster, deployment: Deployment, num_nodes: int) -> None:
    """Refuse a job that needs more nodes than are ready; the message says how to get them."""
    nodes = look_at_nodes(cluster, deployment)
    if nodes.usable >= num_nodes:
        return
    but = f" ({'; '.join(nodes.remarks)})" if nodes.remarks else ""
    raise Refusal(
        "nodes-missing",
        f"--nodes {num_nodes}: the cluster has {counted(nodes.usable, 'ready node')} of "
        f"{deployment.instance_type.name}{but}; get them with "
        f"`{scale_command(deployment, num_nodes)}`, or submit with --scale",
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
    fewer: bool = False
    """True if nodes are to go."""
    answered: bool = True
    """True if the node scaler has read the request."""
    dropped: str | None = None
    """Why the node scaler has dropped the request."""
    remarks: tuple[str, ...] = ()

    def reached(self, num_nodes: int) -> bool:
        """Tell whether the group has come to the number, and its nodes are ready."""
        if not self.answered or self.group.status == _CHANGING:
            return False
        if self.fewer:
            return self.ready <= num_nodes and self.group.wanted <= num_nodes
        return self.ready >= num_nodes

    def text(self, num_nodes: int) -> str:
        """Describe the progress for a person."""
        said = f"{self.ready} of {num_nodes} nodes are ready, the node group is {self.group.status}"
        unanswered = () if self.answered else ("the node scaler has not read the request yet",)
        return "; ".join((said, *unanswered, *self.group.troubles, *self.remarks))


def read_progress(
    aws: Aws, cluster: Cluster, deployment: Deployment, request: str, *, fewer: bool
) -> Progress:
    """Read how far the node scaler and the group have come."""
    asked = read_request(cluster)
    if asked is not None and asked.id != request:
        raise Refusal(
            "nodes-asked-again",
            f"somebody else has asked for {counted(asked.nodes, 'node')} meanwhile; look with "
            "`python -m jobs scale`",
        )
    found = look_at_nodes(cluster, deployment)
    return Progress(
        ready=found.usable,
        group=read_node_group(aws, deployment),
        fewer=fewer,
        answered=asked is not None and asked.since is not None,
        dropped=None if asked is None else asked.dropped,
        remarks=found.remarks,
    )


def wait_for_nodes(
    read: Callable[[], Progress],
    num_nodes: int,
    *,
    limit_s: float,
    now: Callable[[], float],
    sleep: Callable[[float], None],
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
            sleep(PAUSE_S)
            continue
        if progress != last:
            yield progress
            last = progress
        if progress.dropped is not None:
            raise Refusal(
                "nodes-dropped",
                f"--nodes {num_nodes}: the node scaler has given up: {progress.dropped}; look at "
                "the instances' console output and the node group's health issues, and ask again",
            )
        if progress.reached(num_nodes):
            return
        if now() >= deadline:
            raise Refusal(
                "nodes-late",
                f"after {limit_s:g} s {progress.text(num_nodes)}; "
                + (
                    "the request stands: look again with the same command, or withdraw it with "
                    "--nodes 0"
                    if progress.answered
                    else f"look with: kubectl -n {kubernetes.SCALER} get pods"
                ),
            )
        sleep(PAUSE_S)
