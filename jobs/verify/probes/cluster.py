"""Claims about the deployment's cluster, checked with EKS and the Kubernetes API."""

from __future__ import annotations

import urllib.request
from typing import Any

from jobs.eks.cluster import JOBS, NODES, Json, is_missing
from jobs.eks.log_streams import list_streams
from jobs.eks.nodes import count_nodes
from jobs.eks.usage import NEURON_MONITOR
from jobs.errors import error_code
from jobs.verify.probes.context import PROBES, ClientContext
from trainium_catalogue.charts import CHARTS
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.eks import POD_ADDRESSES, SPARE_ADDRESSES
from trainium_catalogue.kubernetes import NODE_LABEL, pod_resources
from trainium_catalogue.probing import ProbeResult, SubjectMissing
from trainium_catalogue.wording import counted

_DAEMON_SET = "/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}"
_DEPLOYMENT = "/apis/apps/v1/namespaces/{namespace}/deployments/{name}"
_DAEMON_SETS = "/apis/apps/v1/namespaces/kube-system/daemonsets"
_ALL_PODS = "/api/v1/pods"
_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "k": 10**3, "M": 10**6, "G": 10**9}
_SCALER = "node-scaler"
"""Name of its namespace and Deployment."""
_NEEDS_EKS = ("EKS",)
_NEEDS_AWS = ("AWS", "EKS")
"""Requirements of probes; an emulated cluster meets only ``_NEEDS_EKS``."""


def _cluster(context: ClientContext) -> dict[str, Any]:
    found: dict[str, Any] = context.client("eks").describe_cluster(name=context.eks.cluster)[
        "cluster"
    ]
    return found


def _ready(item: Json) -> tuple[int, int]:
    """Return the numbers of ready and desired pods of a DaemonSet or Deployment."""
    status = item.get("status", {})
    if "desiredNumberScheduled" in status:
        return int(status.get("numberReady", 0)), int(status["desiredNumberScheduled"])
    return int(status.get("readyReplicas", 0)), int(item.get("spec", {}).get("replicas", 1))


def _object(context: ClientContext, path: str) -> Json:
    """Read an object of the cluster; empty if it does not exist."""
    try:
        return context.cluster.get(path)
    except Exception as error:
        if not is_missing(error):
            raise
        return {}


def _check_readiness(name: str, item: Json) -> ProbeResult:
    if not item:
        return ProbeResult(
            ok=False, seen=f"{name} is not in the cluster", expected=f"{name}, ready"
        )
    ready, wanted = _ready(item)
    if wanted == 0:
        raise SubjectMissing(f"a node on which {name} runs")
    return ProbeResult(
        ok=ready == wanted,
        seen=f"{name}: {ready} of {wanted} pods ready",
        expected=f"{name}: {wanted} of {wanted} pods ready",
    )


@PROBES.probe("device-plugin-driver", "device-plugin-without-imds", needs=_NEEDS_EKS)
def device_plugin(context: ClientContext) -> ProbeResult:
    """Every node advertises all of its chips and EFA interfaces."""
    nodes = count_nodes(context.cluster, context.target)
    if not nodes.usable and not nodes.remarks:
        raise SubjectMissing("a Trainium node in the cluster")
    return ProbeResult(
        ok=not nodes.remarks,
        seen=(
            f"all devices advertised by {counted(nodes.usable, 'node')}; others: "
            f"{'; '.join(nodes.remarks) or 'none'}"
        ),
        expected="all devices advertised by all nodes; others: none",
    )


@PROBES.probe("node-group-version-with-cluster", needs=_NEEDS_EKS)
def versions(context: ClientContext) -> ProbeResult:
    """Cluster and node group run the same Kubernetes version."""
    cluster, group = _cluster(context)["version"], context.node_group["version"]
    return ProbeResult(
        ok=cluster == group, seen=f"{cluster} and {group}", expected="equal versions"
    )


def _scaling_group(context: ClientContext) -> dict[str, Any]:
    """Read the EC2 Auto Scaling group of the node group."""
    names = [
        g["name"] for g in context.node_group.get("resources", {}).get("autoScalingGroups", ())
    ]
    if not names:
        raise SubjectMissing("the Auto Scaling group of the node group")
    found = context.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=names)
    group: dict[str, Any] = found["AutoScalingGroups"][0]
    return group


@PROBES.probe("scale-in-by-instance", needs=_NEEDS_AWS)
def sizes_agree(context: ClientContext) -> ProbeResult:
    """EKS and EC2 Auto Scaling report the same number of nodes."""
    wanted = int(context.node_group["scalingConfig"]["desiredSize"])
    found = int(_scaling_group(context)["DesiredCapacity"])
    return ProbeResult(
        ok=wanted == found,
        seen=f"EKS reports {wanted}, EC2 Auto Scaling {found}",
        expected="the same number",
    )


@PROBES.probe("node-group-tags", needs=_NEEDS_AWS)
def group_tags(context: ClientContext) -> ProbeResult:
    """The Auto Scaling group has EKS's own tags."""
    tags = {tag["Key"]: tag["Value"] for tag in _scaling_group(context).get("Tags", ())}
    found = tags.get("eks:cluster-name"), tags.get("eks:nodegroup-name")
    wanted = context.eks.cluster, context.node_group["nodegroupName"]
    return ProbeResult(
        ok=found == wanted, seen=f"{found[0]}, {found[1]}", expected=", ".join(wanted)
    )


@PROBES.probe("scaler-gets-pod-identity", needs=_NEEDS_AWS)
def node_scaler(context: ClientContext) -> ProbeResult:
    """The node scaler's pod is ready."""
    path = _DEPLOYMENT.format(namespace=_SCALER, name=_SCALER)
    return _check_readiness(_SCALER, _object(context, path))


@PROBES.probe("add-on-versions", needs=_NEEDS_AWS)
def add_ons(context: ClientContext) -> ProbeResult:
    """Every add-on is active and reports no health issues."""
    eks, shown, bad = context.client("eks"), [], []
    for name in eks.list_addons(clusterName=context.eks.cluster)["addons"]:
        addon = eks.describe_addon(clusterName=context.eks.cluster, addonName=name)["addon"]
        shown.append(f"{name} {addon['addonVersion']} {addon['status']}")
        if addon["status"] != "ACTIVE" or addon.get("health", {}).get("issues"):
            bad.append(name)
    return ProbeResult(
        ok=bool(shown) and not bad, seen=", ".join(shown) or "none", expected="all ACTIVE"
    )


@PROBES.probe("vpc-cni-addresses", needs=_NEEDS_AWS)
def addresses(context: ClientContext) -> ProbeResult:
    """The VPC CNI plugin runs with the IP targets that the subnet sizes assume."""
    item = _object(context, _DAEMON_SET.format(namespace="kube-system", name="aws-node"))
    containers = item.get("spec", {}).get("template", {}).get("spec", {}).get("containers", [{}])
    env = {pair["name"]: pair.get("value") for pair in containers[0].get("env", ())}
    found = env.get("MINIMUM_IP_TARGET"), env.get("WARM_IP_TARGET")
    return ProbeResult(
        ok=found == (str(POD_ADDRESSES), str(SPARE_ADDRESSES)),
        seen=f"minimum {found[0]}, warm {found[1]}",
        expected=f"minimum {POD_ADDRESSES}, warm {SPARE_ADDRESSES}",
    )


@PROBES.probe("vpc-cni-pod-identity", needs=_NEEDS_AWS)
def cni_identity(context: ClientContext) -> ProbeResult:
    """The VPC CNI plugin has its pod identity association and is ready on every node."""
    associations = context.client("eks").list_pod_identity_associations(
        clusterName=context.eks.cluster, namespace="kube-system", serviceAccount="aws-node"
    )["associations"]
    item = _object(context, _DAEMON_SET.format(namespace="kube-system", name="aws-node"))
    seen = _check_readiness("aws-node", item)
    return ProbeResult(
        ok=seen.ok and bool(associations),
        seen=f"{seen.seen}, {counted(len(associations), 'association')}",
        expected=f"{seen.expected}, 1 association",
    )


@PROBES.probe("add-ons-at-hop-limit-1", needs=_NEEDS_AWS)
def daemon_sets(context: ClientContext) -> ProbeResult:
    """Every system DaemonSet is ready on each of its nodes."""
    found = context.cluster.items(_DAEMON_SETS)
    states = {item["metadata"]["name"]: _ready(item) for item in found}
    placed = {name: state for name, state in states.items() if state[1]}
    if not placed:
        raise SubjectMissing("a node that runs DaemonSets")
    return ProbeResult(
        ok=all(ready == wanted for ready, wanted in placed.values()),
        seen=", ".join(f"{name} {ready}/{wanted}" for name, (ready, wanted) in placed.items()),
        expected="all pods ready",
    )


@PROBES.probe("pod-memory-fits", needs=_NEEDS_AWS)
def pod_memory(context: ClientContext) -> ProbeResult:
    """A node's allocatable memory covers the requests of a job's pod and of all other pods."""
    selector = f"{NODE_LABEL}={context.target.instance_type.name}"
    nodes = context.cluster.items(NODES, labelSelector=selector)
    if not nodes:
        raise SubjectMissing("a Trainium node in the cluster")
    offered = mebibytes(nodes[0]["status"]["allocatable"]["memory"])
    name = nodes[0]["metadata"]["name"]
    others = sum(
        mebibytes(container.get("resources", {}).get("requests", {}).get("memory", "0"))
        for pod in context.cluster.items(_ALL_PODS, fieldSelector=f"spec.nodeName={name}")
        if pod["metadata"]["namespace"] != context.eks.namespace
        for container in pod["spec"]["containers"]
    )
    requested = mebibytes(pod_resources(context.target.instance_type)["memory"])
    return ProbeResult(
        ok=requested + others <= offered,
        seen=f"{name} has {offered:.0f} MiB allocatable, other pods request {others:.0f} MiB",
        expected=f"room for another {requested:.0f} MiB",
    )


def mebibytes(quantity: str) -> float:
    """Parse a Kubernetes memory quantity (Kubernetes documentation, resource units)."""
    for suffix, factor in _UNITS.items():
        if quantity.endswith(suffix):
            return float(quantity.removesuffix(suffix)) * factor / 2**20
    return float(quantity) / 2**20


@PROBES.probe("volcano-chart", needs=_NEEDS_AWS)
def volcano_chart(context: ClientContext) -> ProbeResult:
    """Volcano's chart repository lists the pinned version."""
    chart = CHARTS["volcano"]
    listed = f"volcano-{chart.version}.tgz" in index_of(f"{chart.repository}/index.yaml")
    return ProbeResult(
        ok=listed,
        seen=f"{chart.version} is {'listed' if listed else 'not listed'}",
        expected=f"{chart.version} is listed in {chart.repository}",
    )


def index_of(url: str) -> str:
    """Fetch the index of a public chart repository."""
    with urllib.request.urlopen(url, timeout=30) as response:
        return str(response.read().decode())


@PROBES.probe("node-repair", needs=_NEEDS_AWS)
def repair(context: ClientContext) -> ProbeResult:
    """Node repair is enabled for the Trainium node group."""
    group = context.node_group
    enabled = bool((group.get("nodeRepairConfig") or {}).get("enabled"))
    return ProbeResult(ok=enabled, seen=f"node repair {'on' if enabled else 'off'}", expected="on")


@PROBES.probe("control-plane-logs", needs=_NEEDS_AWS)
def control_plane_logs(context: ClientContext) -> ProbeResult:
    """The control plane writes to its log group."""
    group = f"/aws/eks/{context.eks.cluster}/cluster"
    try:
        found = context.client("logs").describe_log_streams(logGroupName=group, limit=5)[
            "logStreams"
        ]
    except Exception as error:
        if error_code(error) != "ResourceNotFoundException":
            raise
        return ProbeResult(
            ok=False, seen=f"log group {group} does not exist", expected="at least one stream"
        )
    return ProbeResult(
        ok=bool(found),
        seen=f"{counted(len(found), 'stream')} in {group}",
        expected="at least one stream",
    )


@PROBES.probe("node-logs-reach-cloudwatch", needs=_NEEDS_EKS)
def node_logs(context: ClientContext) -> ProbeResult:
    """Every node of a successful run has a log stream."""
    ended = [job for job in context.jobs if job.orchestrator is Orchestrator.EKS and job.succeeded]
    if not ended:
        raise SubjectMissing("a successful run on the cluster")
    job = ended[0]
    found = list_streams(context.client("logs"), context.target.log_group, job)
    nodes = {each.node for each in found}
    return ProbeResult(
        ok=nodes == set(range(job.num_nodes)),
        seen=f"run {job.run} has logs of {counted(len(nodes), 'node')}",
        expected=f"logs of {counted(job.num_nodes, 'node')}",
    )


@PROBES.probe("second-zone", needs=_NEEDS_EKS)
def second_zone(context: ClientContext) -> ProbeResult:
    """The control plane has subnets in two zones."""
    ids = _cluster(context)["resourcesVpcConfig"]["subnetIds"]
    subnets = context.client("ec2").describe_subnets(SubnetIds=ids)["Subnets"]
    zones = sorted({str(subnet["AvailabilityZoneId"]) for subnet in subnets})
    return ProbeResult(ok=len(zones) >= 2, seen=", ".join(zones), expected="two zones")


@PROBES.probe("kubectl-functions", needs=_NEEDS_EKS)
def charts(context: ClientContext) -> ProbeResult:
    """The Volcano Job CRD exists, which only the stack's functions could have installed."""
    try:
        found = len(context.cluster.items(JOBS))
    except Exception as error:
        if not is_missing(error):
            raise
        return ProbeResult(
            ok=False, seen="the cluster has no Volcano jobs API", expected="Volcano jobs"
        )
    return ProbeResult(
        ok=True,
        seen=f"the cluster lists {counted(found, 'Volcano job')}",
        expected="Volcano jobs",
    )


@PROBES.probe("private-endpoint", needs=_NEEDS_EKS)
def private_endpoint(context: ClientContext) -> ProbeResult:
    """The cluster's private endpoint is reachable from this machine."""
    if _cluster(context)["resourcesVpcConfig"].get("endpointPublicAccess"):
        raise SubjectMissing("a cluster with eks_private")
    version = context.cluster.get("/version").get("gitVersion")
    return ProbeResult(ok=bool(version), seen=f"response: {version}", expected="a response")


@PROBES.probe("neuron-monitor-driver", "top-reads-monitor", needs=("EKS", "a run of verify"))
def monitor(context: ClientContext) -> ProbeResult:
    """neuron-monitor works in a running pod, and its report can be parsed."""
    from jobs.eks.usage import usage_of

    assert context.job is not None
    pods = [node.name for node in context.job.nodes if node.name and node.status == "RUNNING"]
    if not pods:
        raise SubjectMissing("a run of verify in progress on EKS")
    usage = usage_of(context.cluster, pods[0])
    return ProbeResult(
        ok=usage.measured_by == NEURON_MONITOR and not usage.errors,
        seen=f"{pods[0]}: measured by {usage.measured_by}"
        + (f", errors: {'; '.join(usage.errors)}" if usage.errors else ""),
        expected=f"measured by {NEURON_MONITOR}, no errors",
    )
