"""Claims about the deployment's cluster, checked with EKS and the Kubernetes API."""

from __future__ import annotations

import urllib.request
from typing import Any

from jobs.eks.cluster import JOBS, NODES, Json, is_missing
from jobs.eks.log_streams import list_streams
from jobs.eks.nodes import look_at_nodes
from jobs.eks.usage import NEURON_MONITOR
from jobs.errors import error_code
from jobs.verify.probes.desk import PROBES, Desk
from trainium_catalogue.charts import CHARTS
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.eks import POD_ADDRESSES, SPARE_ADDRESSES
from trainium_catalogue.kubernetes import NODE_LABEL, pod_resources
from trainium_catalogue.probing import Missing, Seen

_DAEMON_SET = "/apis/apps/v1/namespaces/{of}/daemonsets/{name}"
_DEPLOYMENT = "/apis/apps/v1/namespaces/{of}/deployments/{name}"
_PODS = "/api/v1/namespaces/{of}/pods"
_DAEMON_SETS = "/apis/apps/v1/namespaces/kube-system/daemonsets"
_ALL_PODS = "/api/v1/pods"
_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "k": 10**3, "M": 10**6, "G": 10**9}
_SCALER = "node-scaler"
"""Its namespace, and its Deployment."""
_HERE = ("EKS",)
_ON_AWS = ("AWS", "EKS")
"""Needs that the emulated cluster does not meet."""


def _cluster(desk: Desk) -> dict[str, Any]:
    found: dict[str, Any] = desk.client("eks").describe_cluster(name=desk.eks.cluster)["cluster"]
    return found


def _ready(item: Json) -> tuple[int, int]:
    """Count the ready pods, and the desired ones, of a DaemonSet or Deployment."""
    status = item.get("status", {})
    if "desiredNumberScheduled" in status:
        return int(status.get("numberReady", 0)), int(status["desiredNumberScheduled"])
    return int(status.get("readyReplicas", 0)), int(item.get("spec", {}).get("replicas", 1))


def _object(desk: Desk, path: str) -> Json:
    """Read an object of the cluster; an empty one if it does not exist."""
    try:
        return desk.cluster.get(path)
    except Exception as error:
        if not is_missing(error):
            raise
        return {}


def _all_ready(name: str, item: Json) -> Seen:
    if not item:
        return Seen(ok=False, seen=f"{name} is not in the cluster", expected=f"{name}, ready")
    ready, wanted = _ready(item)
    if wanted == 0:
        raise Missing(f"a node on which {name} runs")
    return Seen(
        ok=ready == wanted,
        seen=f"{name}: {ready} of {wanted} pods ready",
        expected=f"{name}: {wanted} of {wanted} pods ready",
    )


@PROBES.probe("device-plugin-driver", "device-plugin-without-imds", needs=_HERE)
def device_plugin(desk: Desk) -> Seen:
    """Every node offers all of its chips and EFA interfaces."""
    nodes = look_at_nodes(desk.cluster, desk.target)
    if not nodes.usable and not nodes.remarks:
        raise Missing("a Trainium node in the cluster")
    return Seen(
        ok=not nodes.remarks,
        seen=f"{nodes.usable} nodes offer all; {'; '.join(nodes.remarks) or 'none lacks any'}",
        expected="all nodes offer all their devices",
    )


@PROBES.probe("node-group-version-with-cluster", needs=_HERE)
def versions(desk: Desk) -> Seen:
    """Cluster and node group run the same version of Kubernetes."""
    cluster, group = _cluster(desk)["version"], desk.node_group["version"]
    return Seen(ok=cluster == group, seen=f"{cluster} and {group}", expected="the same twice")


def _scaling_group(desk: Desk) -> dict[str, Any]:
    """The EC2 Auto Scaling group behind the node group."""
    names = [g["name"] for g in desk.node_group.get("resources", {}).get("autoScalingGroups", ())]
    if not names:
        raise Missing("the Auto Scaling group of the node group")
    found = desk.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=names)
    group: dict[str, Any] = found["AutoScalingGroups"][0]
    return group


@PROBES.probe("scale-in-by-instance", needs=_ON_AWS)
def sizes_agree(desk: Desk) -> Seen:
    """EKS and EC2 Auto Scaling report the same number of nodes."""
    wanted = int(desk.node_group["scalingConfig"]["desiredSize"])
    found = int(_scaling_group(desk)["DesiredCapacity"])
    return Seen(
        ok=wanted == found,
        seen=f"EKS says {wanted}, EC2 Auto Scaling {found}",
        expected="the same number",
    )


@PROBES.probe("node-group-tags", needs=_ON_AWS)
def group_tags(desk: Desk) -> Seen:
    """The Auto Scaling group has EKS's own tags."""
    tags = {tag["Key"]: tag["Value"] for tag in _scaling_group(desk).get("Tags", ())}
    found = tags.get("eks:cluster-name"), tags.get("eks:nodegroup-name")
    wanted = desk.eks.cluster, desk.node_group["nodegroupName"]
    return Seen(ok=found == wanted, seen=f"{found[0]}, {found[1]}", expected=", ".join(wanted))


@PROBES.probe("scaler-gets-pod-identity", needs=_ON_AWS)
def node_scaler(desk: Desk) -> Seen:
    """The node scaler's pod is ready."""
    path = _DEPLOYMENT.format(of=_SCALER, name=_SCALER)
    return _all_ready(_SCALER, _object(desk, path))


@PROBES.probe("add-on-versions", needs=_ON_AWS)
def add_ons(desk: Desk) -> Seen:
    """Every add-on is active and reports no health issues."""
    eks, shown, bad = desk.client("eks"), [], []
    for name in eks.list_addons(clusterName=desk.eks.cluster)["addons"]:
        addon = eks.describe_addon(clusterName=desk.eks.cluster, addonName=name)["addon"]
        shown.append(f"{name} {addon['addonVersion']} {addon['status']}")
        if addon["status"] != "ACTIVE" or addon.get("health", {}).get("issues"):
            bad.append(name)
    return Seen(ok=bool(shown) and not bad, seen=", ".join(shown) or "none", expected="all ACTIVE")


@PROBES.probe("vpc-cni-addresses", needs=_ON_AWS)
def addresses(desk: Desk) -> Seen:
    """The network plug-in runs with the targets that the subnet sizes assume."""
    item = _object(desk, _DAEMON_SET.format(of="kube-system", name="aws-node"))
    containers = item.get("spec", {}).get("template", {}).get("spec", {}).get("containers", [{}])
    env = {pair["name"]: pair.get("value") for pair in containers[0].get("env", ())}
    found = env.get("MINIMUM_IP_TARGET"), env.get("WARM_IP_TARGET")
    return Seen(
        ok=found == (str(POD_ADDRESSES), str(SPARE_ADDRESSES)),
        seen=f"at least {found[0]}, {found[1]} more than taken",
        expected=f"at least {POD_ADDRESSES}, {SPARE_ADDRESSES} more than taken",
    )


@PROBES.probe("vpc-cni-pod-identity", needs=_ON_AWS)
def cni_identity(desk: Desk) -> Seen:
    """The plug-in has its pod identity association and is ready on every node."""
    associations = desk.client("eks").list_pod_identity_associations(
        clusterName=desk.eks.cluster, namespace="kube-system", serviceAccount="aws-node"
    )["associations"]
    item = _object(desk, _DAEMON_SET.format(of="kube-system", name="aws-node"))
    seen = _all_ready("aws-node", item)
    return Seen(
        ok=seen.ok and bool(associations),
        seen=f"{seen.seen}, {len(associations)} association",
        expected=f"{seen.expected}, 1 association",
    )


@PROBES.probe("add-ons-at-hop-limit-1", needs=_ON_AWS)
def daemon_sets(desk: Desk) -> Seen:
    """Every system DaemonSet is ready on each of its nodes."""
    found = desk.cluster.items(_DAEMON_SETS)
    states = {item["metadata"]["name"]: _ready(item) for item in found}
    placed = {name: state for name, state in states.items() if state[1]}
    if not placed:
        raise Missing("a node with DaemonSets")
    return Seen(
        ok=all(ready == wanted for ready, wanted in placed.values()),
        seen=", ".join(f"{name} {ready}/{wanted}" for name, (ready, wanted) in placed.items()),
        expected="as many pods ready as there are nodes for them",
    )


@PROBES.probe("pod-memory-fits", needs=_ON_AWS)
def pod_memory(desk: Desk) -> Seen:
    """The requests of a job and of a node's other pods fit into what the node offers."""
    selector = f"{NODE_LABEL}={desk.target.instance_type.name}"
    nodes = desk.cluster.items(NODES, labelSelector=selector)
    if not nodes:
        raise Missing("a Trainium node in the cluster")
    offered = mebibytes(nodes[0]["status"]["allocatable"]["memory"])
    name = nodes[0]["metadata"]["name"]
    others = sum(
        mebibytes(container.get("resources", {}).get("requests", {}).get("memory", "0"))
        for pod in desk.cluster.items(_ALL_PODS, fieldSelector=f"spec.nodeName={name}")
        if pod["metadata"]["namespace"] != desk.eks.namespace
        for container in pod["spec"]["containers"]
    )
    asked = mebibytes(pod_resources(desk.target.instance_type)["memory"])
    return Seen(
        ok=asked + others <= offered,
        seen=f"{name} offers {offered:.0f} MiB, other pods ask for {others:.0f}",
        expected=f"room for {asked:.0f} MiB beside them",
    )


def mebibytes(quantity: str) -> float:
    """Parse a quantity of memory in Kubernetes notation (its documentation, resource units)."""
    for suffix, factor in _UNITS.items():
        if quantity.endswith(suffix):
            return float(quantity.removesuffix(suffix)) * factor / 2**20
    return float(quantity) / 2**20


@PROBES.probe("volcano-chart", needs=_ON_AWS)
def volcano_chart(desk: Desk) -> Seen:
    """The index of Volcano's charts lists the pinned version."""
    chart = CHARTS["volcano"]
    listed = f"volcano-{chart.version}.tgz" in index_of(f"{chart.repository}/index.yaml")
    return Seen(
        ok=listed,
        seen=f"{chart.version} is {'listed' if listed else 'not listed'}",
        expected=f"{chart.version} is listed in {chart.repository}",
    )


def index_of(url: str) -> str:
    """Fetch a public text."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


@PROBES.probe("node-repair", needs=_ON_AWS)
def repair(desk: Desk) -> Seen:
    """EKS repairs the nodes of the group that runs jobs."""
    group = desk.node_group
    enabled = bool((group.get("nodeRepairConfig") or {}).get("enabled"))
    return Seen(ok=enabled, seen=f"node repair {'on' if enabled else 'off'}", expected="on")


@PROBES.probe("control-plane-logs", needs=_ON_AWS)
def control_plane_logs(desk: Desk) -> Seen:
    """The control plane writes to its log group."""
    group = f"/aws/eks/{desk.eks.cluster}/cluster"
    try:
        found = desk.client("logs").describe_log_streams(logGroupName=group, limit=5)["logStreams"]
    except Exception as error:
        if error_code(error) != "ResourceNotFoundException":
            raise
        return Seen(ok=False, seen=f"there is no group {group}", expected="some streams")
    return Seen(ok=bool(found), seen=f"{len(found)} streams in {group}", expected="some streams")


@PROBES.probe("node-logs-reach-cloudwatch", needs=_HERE)
def node_logs(desk: Desk) -> Seen:
    """Every node of a run that succeeded has a log stream."""
    ended = [job for job in desk.jobs if job.orchestrator is Orchestrator.EKS and job.succeeded]
    if not ended:
        raise Missing("a run on the cluster that succeeded")
    job = ended[0]
    found = list_streams(desk.client("logs"), desk.target.log_group, job)
    nodes = {each.node for each in found}
    return Seen(
        ok=nodes == set(range(job.num_nodes)),
        seen=f"run {job.run} has logs of {len(nodes)} nodes",
        expected=f"of {job.num_nodes}",
    )


@PROBES.probe("second-zone", needs=_HERE)
def second_zone(desk: Desk) -> Seen:
    """The control plane has subnets in two zones."""
    ids = _cluster(desk)["resourcesVpcConfig"]["subnetIds"]
    subnets = desk.client("ec2").describe_subnets(SubnetIds=ids)["Subnets"]
    zones = sorted({str(subnet["AvailabilityZoneId"]) for subnet in subnets})
    return Seen(ok=len(zones) >= 2, seen=", ".join(zones), expected="two zones")


@PROBES.probe("kubectl-functions", needs=_HERE)
def charts(desk: Desk) -> Seen:
    """Volcano's kind of job exists, which only the stack's functions could have installed."""
    try:
        found = len(desk.cluster.items(JOBS))
    except Exception as error:
        if not is_missing(error):
            raise
        return Seen(ok=False, seen="the cluster knows no Volcano jobs", expected="Volcano's jobs")
    return Seen(ok=True, seen=f"the cluster lists {found} Volcano jobs", expected="Volcano's jobs")


@PROBES.probe("private-endpoint", needs=_HERE)
def private_endpoint(desk: Desk) -> Seen:
    """A private endpoint answers from here."""
    if _cluster(desk)["resourcesVpcConfig"].get("endpointPublicAccess"):
        raise Missing("a cluster with eks_private")
    version = desk.cluster.get("/version").get("gitVersion")
    return Seen(ok=bool(version), seen=f"it answers: {version}", expected="an answer")


@PROBES.probe("neuron-monitor-driver", "top-reads-monitor", needs=("EKS", "a run of verify"))
def monitor(desk: Desk) -> Seen:
    """neuron-monitor reports from a running pod, and its report can be parsed."""
    from jobs.eks.usage import usage_of

    assert desk.job is not None
    pods = [node.name for node in desk.job.nodes if node.name and node.status == "RUNNING"]
    if not pods:
        raise Missing("a run of verify on EKS that runs now")
    usage = usage_of(desk.cluster, pods[0])
    return Seen(
        ok=usage.measured_by == NEURON_MONITOR and not usage.errors,
        seen=f"{pods[0]}: measured by {usage.measured_by}"
        + (f", errors: {'; '.join(usage.errors)}" if usage.errors else ""),
        expected=f"measured by {NEURON_MONITOR}, no errors",
    )
