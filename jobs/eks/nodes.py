"""The cluster's Trainium nodes: count them, and request more or fewer from the node scaler."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from jobs import errors
from jobs.aws import Aws
from jobs.deployment import Deployment, cli_command
from jobs.eks.cluster import MERGE_PATCH, NODE_REQUEST, NODES, Cluster, Json, is_missing
from jobs.errors import Refusal
from trainium_catalogue import kubernetes
from trainium_catalogue.node_use import NodeRequest, is_cordoned, why_unusable
from trainium_catalogue.wording import counted

_CHANGING = "UPDATING"
_ACTIVE = "ACTIVE"
# States of an instance that counts towards its group's size and can be terminated (Amazon EC2
# Auto Scaling user guide, instance lifecycle).
_PRESENT = ("InService", "Pending")
PAUSE_S = 5.0
"""Maximum polling interval while waiting for nodes."""
_FIRST_PAUSE_S = 0.5
"""Initial polling interval, short because idle nodes are terminated immediately; it doubles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """An EKS node group with its Auto Scaling group.

    Sizes come from the latter: after a change there, EKS's own number "can be out-of-date for short
    periods of time" (Amazon EKS API reference, NodegroupScalingConfig).
    """

    status: str
    desired: int
    max_size: int
    health_issues: tuple[str, ...]
    """Health issues that keep it from reaching its desired size."""
    zone: str = ""
    """Id of its zone, if the deployment has several zones; otherwise empty."""
    scaling_group: str = ""
    instances: tuple[str, ...] = ()
    """Running and starting instances."""
    subnets: tuple[str, ...] = ()
    host_image: str = ""
    """Release version of its EKS AMI."""


def read_node_groups(aws: Aws, deployment: Deployment) -> list[NodeGroup]:
    """Read the node groups of all zones, in order, from EKS and EC2 Auto Scaling."""
    assert deployment.eks is not None
    groups = deployment.eks.node_groups.items()
    return [_read_node_group(aws, deployment.eks.cluster, name, zone) for zone, name in groups]


def read_node_group(aws: Aws, deployment: Deployment) -> NodeGroup:
    """Read the node groups of all zones, combined into one."""
    groups = read_node_groups(aws, deployment)
    busy = (each.status for each in groups if each.status != _ACTIVE)
    return replace(
        groups[0],
        status=next(busy, _ACTIVE),
        desired=sum(each.desired for each in groups),
        health_issues=tuple(
            f"{each.zone}: {issue}" if each.zone else issue
            for each in groups
            for issue in each.health_issues
        ),
        instances=tuple(instance for each in groups for instance in each.instances),
    )


def _read_node_group(aws: Aws, cluster: str, name: str, zone: str) -> NodeGroup:
    description = aws.eks().describe_nodegroup(clusterName=cluster, nodegroupName=name)["nodegroup"]
    issues = (description.get("health") or {}).get("issues") or ()
    node_group = NodeGroup(
        zone=zone,
        status=description["status"],
        desired=int(description["scalingConfig"]["desiredSize"]),
        max_size=int(description["scalingConfig"]["maxSize"]),
        health_issues=tuple(f"{issue.get('code')}: {issue.get('message')}" for issue in issues),
        subnets=tuple(description.get("subnets") or ()),
        host_image=str(description.get("releaseVersion") or ""),
    )
    scaling_groups = (description.get("resources") or {}).get("autoScalingGroups")
    if not scaling_groups:
        return node_group  # its creation has failed or is in progress
    name = scaling_groups[0]["name"]
    (group,) = aws.autoscaling().describe_auto_scaling_groups(AutoScalingGroupNames=[name])[
        "AutoScalingGroups"
    ]
    return replace(
        node_group,
        desired=int(group["DesiredCapacity"]),
        max_size=int(group["MaxSize"]),
        scaling_group=name,
        instances=tuple(
            each["InstanceId"]
            for each in group["Instances"]
            if str(each["LifecycleState"]).startswith(_PRESENT)
        ),
    )


def request_nodes(cluster: Cluster, num_nodes: int) -> str:
    """Request ``num_nodes`` nodes from the node scaler; return the id of the request.

    The request is a ConfigMap, because users may not change nodes or Auto Scaling groups.
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
            f"the cluster has no ConfigMap {kubernetes.NODE_REQUEST} for requests to the node "
            "scaler: it was deployed by an older version; deploy again with `cdk deploy --all`",
        ) from None
    return request


def read_request(cluster: Cluster) -> NodeRequest | None:
    """Read the last request with the node scaler's response; None if there is none."""
    try:
        return NodeRequest.read(cluster.get(NODE_REQUEST))
    except Exception as error:
        if not is_missing(error):
            raise
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Summary of the nodes of the deployment's instance type."""

    usable: int
    """Number of nodes that can run a job's pods."""
    in_one_zone: int
    """Maximum number of nodes that one gang can use."""
    remarks: tuple[str, ...]
    """Reasons why the other nodes cannot be used."""


def count_nodes(cluster: Cluster, deployment: Deployment) -> Nodes:
    """Count the usable nodes: Ready, not cordoned, and with all their devices allocatable."""
    selector = f"{kubernetes.NODE_LABEL}={deployment.instance_type.name}"
    devices = kubernetes.device_resources(deployment.instance_type)
    nodes = cluster.items(NODES, labelSelector=selector)
    remarks = [_remark(node, devices) for node in nodes]
    groups = Counter(
        (node["metadata"].get("labels") or {}).get(kubernetes.NODE_GROUP_LABEL)
        for node, remark in zip(nodes, remarks, strict=True)
        if remark is None
    )
    return Nodes(
        usable=remarks.count(None),
        in_one_zone=max(groups.values(), default=0),
        remarks=tuple(remark for remark in remarks if remark is not None),
    )


def _remark(node: Json, devices: Mapping[str, int]) -> str | None:
    """Explain why a node cannot be used; None if it can."""
    # The fault comes first, because the node scaler cordons a faulty node.
    faults = (why_unusable(node, devices), "is cordoned" if is_cordoned(node) else None)
    why = " and ".join(each for each in faults if each is not None)
    return f"node {node['metadata']['name']} {why}" if why else None


def check_ready(cluster: Cluster, deployment: Deployment, num_nodes: int) -> None:
    """Refuse a job that needs more nodes than are ready."""
    nodes = count_nodes(cluster, deployment)
    if nodes.in_one_zone >= num_nodes:
        return
    assert deployment.eks is not None
    where = " in one zone" if deployment.eks.has_zones else ""
    reasons = f" ({'; '.join(nodes.remarks)})" if nodes.remarks else ""
    raise Refusal(
        "nodes-missing",
        f"--nodes {num_nodes}: the cluster has {counted(nodes.in_one_zone, 'ready node')} of "
        f"{deployment.instance_type.name}{where}{reasons}; add them with "
        f"`{scale_command(deployment, num_nodes)}`, or submit with --scale",
    )


def scale_command(deployment: Deployment, num_nodes: int) -> str:
    """Build the command that changes the number of nodes."""
    return f"{cli_command(deployment)} scale --nodes {num_nodes}"


def check_scale(deployment: Deployment, num_nodes: int) -> None:
    """Refuse more nodes than the deployment allows."""
    if num_nodes > deployment.max_nodes:
        raise Refusal(
            "too-many-nodes",
            f"--nodes {num_nodes} is more than the maximum of deployment {deployment.name!r} "
            f"({deployment.max_nodes}); scale to {deployment.max_nodes} or fewer, or deploy again "
            f"with {deployment.redeploy(max_nodes=num_nodes)}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a scaling request."""

    ready: int
    group: NodeGroup
    fewer: bool = False
    """True when scaling down."""
    answered: bool = True
    """True once the node scaler has read the request."""
    dropped: str | None = None
    """Reason if the node scaler dropped the request."""
    remarks: tuple[str, ...] = ()

    def reached(self, num_nodes: int) -> bool:
        """Return whether the group has reached the number, and its nodes are ready."""
        if not self.answered or self.group.status == _CHANGING:
            return False
        if self.fewer:
            return self.ready <= num_nodes and self.group.desired <= num_nodes
        return self.ready >= num_nodes

    def text(self, num_nodes: int) -> str:
        """Describe the progress in words."""
        ready = f"{self.ready} of {counted(num_nodes, 'node')} ready"
        if self.fewer:
            ready = f"{counted(self.ready, 'node')} left, target {num_nodes}"
        state = f"{ready}, the node group is {self.group.status}"
        unanswered = () if self.answered else ("the node scaler has not read the request yet",)
        return "; ".join((state, *unanswered, *self.group.health_issues, *self.remarks))


def read_progress(
    aws: Aws, cluster: Cluster, deployment: Deployment, request: str, *, fewer: bool
) -> Progress:
    """Read the progress of a request; refuse if another one has replaced it."""
    current = read_request(cluster)
    if current is not None and current.id != request:
        raise Refusal(
            "nodes-asked-again",
            f"another user has since requested {counted(current.nodes, 'node')}; check with "
            "`python -m jobs scale`",
        )
    nodes = count_nodes(cluster, deployment)
    return Progress(
        ready=nodes.usable,
        group=read_node_group(aws, deployment),
        fewer=fewer,
        answered=current is not None and current.since is not None,
        dropped=None if current is None else current.dropped,
        remarks=nodes.remarks,
    )


def wait_for_nodes(
    read: Callable[[], Progress],
    num_nodes: int,
    *,
    limit_s: float,
    now: Callable[[], float],
    sleep: Callable[[float], None],
) -> Iterator[Progress]:
    """Yield each change until the number is reached; refuse after the time limit."""
    deadline = now() + limit_s
    last: Progress | None = None
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            progress = read()
        except Exception as error:
            # Keep waiting after an occasional failed call, since EKS continues anyway.
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
                f"--nodes {num_nodes}: the node scaler gave up: {progress.dropped}; check the "
                "instances' console output and the node group's health issues, and try again",
            )
        if progress.reached(num_nodes):
            return
        if now() >= deadline:
            raise Refusal(
                "nodes-late",
                f"after {limit_s:g} s: {progress.text(num_nodes)}; "
                + (
                    "the request remains active: check again with the same command, or withdraw it "
                    "with --nodes 0"
                    if progress.answered
                    else f"check with: kubectl -n {kubernetes.SCALER} get pods"
                ),
            )
        sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_S)
