"""The table: each row has a subject, AWS's message, its source, and a rule.

A message quotes AWS if its source, such as an issue, does so; otherwise it paraphrases the
documentation. Errors that AWS would report only when an instance or a job starts are refused
earlier, in the template or submission.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from trainium_catalogue.instances import INSTANCE_TYPES
from trainium_emulators.aws.refusals.request import (
    AwsRequest,
    Properties,
    each,
    get,
    number,
    text,
    texts,
)

ENVIRONMENT: Final = "AWS::Batch::ComputeEnvironment"
DEFINITION: Final = "AWS::Batch::JobDefinition"
LAUNCH_TEMPLATE: Final = "AWS::EC2::LaunchTemplate"
ENDPOINT: Final = "AWS::EC2::VPCEndpoint"
FILE_SYSTEM: Final = "AWS::FSx::FileSystem"
CLUSTER: Final = "AWS::EKS::Cluster"
NODE_GROUP: Final = "AWS::EKS::Nodegroup"
SUBMIT: Final = "batch:SubmitJob"
"""A submission in the API's format, plus its job definition and queue under those two keys."""

_DOCS = "https://docs.aws.amazon.com/"
_BATCH_API = _DOCS + "batch/latest/APIReference/"
_BATCH_GUIDE = _DOCS + "batch/latest/userguide/"
_EC2_GUIDE = _DOCS + "AWSEC2/latest/UserGuide/"
_EKS_GUIDE = _DOCS + "eks/latest/userguide/"


@dataclass(frozen=True, slots=True)
class AwsRefusal:
    """One row of the table."""

    id: str
    on: str
    """CloudFormation type, or ``<service>:<Operation>`` of an API."""
    message: str
    source: str
    """Public URL."""
    refuses: Callable[[AwsRequest], bool]


def _launch_template(request: AwsRequest, path: str) -> Properties:
    """Return the known data of the launch template named under a path."""
    for key in ("LaunchTemplateId", "LaunchTemplateName", "Id", "Name"):
        template = request.find(LAUNCH_TEMPLATE, f"{path}.{key}")
        if template:
            data: Properties = get(template, "LaunchTemplateData", {})
            return data
    return {}


def _is_true(value: Any) -> bool:
    return value in (True, "true")


def _has_duplicates(values: list[Any]) -> bool:
    return any(value in values[:index] for index, value in enumerate(values))


def _size(document: Any) -> int:
    """Count characters without white space; unknown values count 0, so this is a lower bound."""
    return len(json.dumps(document, default=lambda _: "", separators=(",", ":")))


# --- Batch: compute environments and job definitions ----------------------------------------------


def _groups_and_interfaces(request: AwsRequest) -> bool:
    data = _launch_template(request, "ComputeResources.LaunchTemplate")
    groups = request.has("ComputeResources.SecurityGroupIds")
    return groups and bool(each(get(data, "NetworkInterfaces")))


def _not_offered(request: AwsRequest) -> bool:
    return any(
        kind in INSTANCE_TYPES and request.account.region not in INSTANCE_TYPES[kind].zone_ids
        for kind in texts(request.get("ComputeResources.InstanceTypes"))
    )


def _best_fit(request: AwsRequest) -> bool:
    # Properties that can change without new instances (user guide, Updating compute environments).
    in_place = {"MaxvCpus", "MinvCpus", "DesiredvCpus", "ScalingPolicy"}
    before = get(request.previous, "ComputeResources", {})
    after = request.mapping("ComputeResources")
    strategy = get(before, "AllocationStrategy", "BEST_FIT")
    return (
        request.previous is not None
        and strategy == "BEST_FIT"
        and any(before.get(n) != after.get(n) for n in {*before, *after} - in_place)
    )


def _containers(request: AwsRequest) -> list[Any]:
    """Return the container properties of a job and of each of its node ranges."""
    ranges = request.each("NodeProperties.NodeRangeProperties")
    return [request.get("ContainerProperties"), *(get(entry, "Container") for entry in ranges)]


def _not_integer(request: AwsRequest) -> bool:
    return any(
        not text(get(entry, "Value")).isdigit()
        for container in _containers(request)
        for entry in each(get(container, "ResourceRequirements"))
        if text(get(entry, "Value"))
    )


def _unknown_volumes(request: AwsRequest) -> bool:
    return any(
        (source := text(get(mount, "SourceVolume")))
        and source not in [get(volume, "Name") for volume in each(get(container, "Volumes"))]
        for container in _containers(request)
        for mount in each(get(container, "MountPoints"))
    )


_BATCH = (
    AwsRefusal(
        "batch-groups-and-interfaces",
        ENVIRONMENT,
        "Either compute environment Security Groups or Network Interfaces in Launch template "
        "are exclusively allowed",
        "https://github.com/aws/aws-cdk/issues/21577",
        _groups_and_interfaces,
    ),
    AwsRefusal(
        "batch-type-not-offered",
        ENVIRONMENT,
        "Instance type can only be one of [those that the region offers]",
        "https://github.com/Netflix/metaflow/issues/70",
        _not_offered,
    ),
    AwsRefusal(
        "batch-update-best-fit",
        ENVIRONMENT,
        "Infrastructure updates are not supported with the BEST_FIT allocation strategy",
        _BATCH_GUIDE + "updating-compute-environments.html",
        _best_fit,
    ),
    AwsRefusal(
        "batch-job-size",
        DEFINITION,
        "Job definition size must be less than 24 KiB",
        _BATCH_GUIDE + "service_limits.html",
        lambda r: _size(r.properties) > 24 * 1024,
    ),
    AwsRefusal(
        "batch-job-rules",
        DEFINITION,
        "evaluateOnExit can have at most 5 rules",
        _BATCH_API + "API_RetryStrategy.html",
        lambda r: len(r.each("RetryStrategy.EvaluateOnExit")) > 5,
    ),
    AwsRefusal(
        "batch-requirement-number",
        DEFINITION,
        "Value in resourceRequirement is not valid. Please provide a numeric value.",
        "https://github.com/kestra-io/plugin-aws/issues/504",
        _not_integer,
    ),
    AwsRefusal(
        "batch-volume-unknown",
        DEFINITION,
        "A mount point references an unknown volume",
        _DOCS + "AmazonECS/latest/APIReference/API_MountPoint.html",
        _unknown_volumes,
    ),
    AwsRefusal(
        "batch-too-many-tags",
        DEFINITION,
        "Combined tags of the job and job definition exceed 50",
        _BATCH_API + "API_RegisterJobDefinition.html",
        lambda r: _is_true(r.get("PropagateTags")) and len(r.mapping("Tags")) > 50,
    ),
)

# --- Batch: submissions ---------------------------------------------------------------------------


def _targets(request: AwsRequest) -> list[str]:
    entries = request.each("definition.nodeProperties.nodeRangeProperties")
    return [text(get(entry, "targetNodes")) for entry in entries]


def nodes_of(target: str, num_nodes: int) -> range:
    """Parse node indexes from ``1``, ``0:3``, ``2:`` or ``:1``."""
    first, colon, last = target.partition(":")
    start = int(first or 0)
    return range(start, int(last) + 1 if last else num_nodes if colon else start + 1)


def _has_uncovered_nodes(request: AwsRequest) -> bool:
    default = request.number("definition.nodeProperties.numNodes", 0)
    wanted = int(request.number("nodeOverrides.numNodes", default))
    covered = {index for target in _targets(request) for index in nodes_of(target, wanted)}
    return bool(covered) and not set(range(wanted)) <= covered


def _long_overrides(request: AwsRequest) -> bool:
    nodes = request.each("nodeOverrides.nodePropertyOverrides")
    overrides = [request.get("containerOverrides"), *(get(n, "containerOverrides") for n in nodes)]
    return any(len(json.dumps(override)) > 8192 for override in overrides)


_SUBMISSIONS = (
    AwsRefusal(
        "submit-name",
        SUBMIT,
        "Job name should match valid pattern",
        "https://github.com/fluidattacks/makes/issues/697",
        lambda r: not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}", r.text("jobName")),
    ),
    AwsRefusal(
        "submit-size",
        SUBMIT,
        "Job size must be less than 30 KiB",
        "https://github.com/ASFHyP3/hyp3/issues/3041",
        lambda r: (
            _size({n: v for n, v in r.properties.items() if n not in ("definition", "queue")})
            > 30 * 1024
        ),
    ),
    AwsRefusal(
        "submit-override-length",
        SUBMIT,
        "Container Overrides length must be at most 8192",
        "https://github.com/Netflix/metaflow/issues/1482",
        _long_overrides,
    ),
    AwsRefusal(
        "submit-nodes-of-closed-ranges",
        SUBMIT,
        "NumNodes override can only be applied if the job definition has at least 1 target node "
        "without a range_end i.e (:) or (range_start:).",
        "https://github.com/aws/aws-cdk/issues/29415",
        lambda r: (
            r.get("definition.type") == "multinode"
            and r.has("nodeOverrides.numNodes")
            and not any(target.endswith(":") for target in _targets(r))
        ),
    ),
    AwsRefusal(
        "submit-override-of-other-range",
        SUBMIT,
        "NodeOverride targets should match job definition.",
        "https://github.com/aws/aws-parallelcluster/pull/964",
        lambda r: any(
            _targets(r) and text(get(override, "targetNodes")) not in _targets(r)
            for override in r.each("nodeOverrides.nodePropertyOverrides")
        ),
    ),
    AwsRefusal(
        "submit-nodes-uncovered",
        SUBMIT,
        "Node ranges must account for all nodes",
        _BATCH_API + "API_NodeOverrides.html",
        _has_uncovered_nodes,
    ),
    AwsRefusal(
        "submit-overrides-of-nodes",
        SUBMIT,
        "nodeOverrides must not be specified for a container job",
        _BATCH_API + "API_SubmitJob.html",
        lambda r: r.get("definition.type") == "container" and r.has("nodeOverrides"),
    ),
    AwsRefusal(
        "submit-overrides-of-container",
        SUBMIT,
        "containerOverrides must not be specified for a multinode job",
        _BATCH_API + "API_SubmitJob.html",
        lambda r: r.get("definition.type") == "multinode" and r.has("containerOverrides"),
    ),
    AwsRefusal(
        "submit-array-of-nodes",
        SUBMIT,
        "Array jobs are not supported for multi-node parallel jobs",
        _BATCH_GUIDE + "multi-node-parallel-jobs.html",
        lambda r: r.get("definition.type") == "multinode" and r.has("arrayProperties.size"),
    ),
    AwsRefusal(
        "submit-array-size",
        SUBMIT,
        "Array Job size must be between 2 and 10000",
        _BATCH_GUIDE + "array_jobs.html",
        lambda r: not 2 <= r.number("arrayProperties.size", 2) <= 10_000,
    ),
    AwsRefusal(
        "submit-timeout",
        SUBMIT,
        "AttemptDurationSeconds in Timeout must be at least 60 seconds.",
        _BATCH_API + "API_JobTimeout.html",
        lambda r: r.number("timeout.attemptDurationSeconds") < 60,
    ),
    AwsRefusal(
        "submit-queue-disabled",
        SUBMIT,
        "Job queue is not in ENABLED state",
        _BATCH_API + "API_UpdateJobQueue.html",
        lambda r: r.get("queue.state") == "DISABLED",
    ),
)

# --- EC2 ------------------------------------------------------------------------------------------


def _interfaces(request: AwsRequest) -> list[Any]:
    return request.each("LaunchTemplateData.NetworkInterfaces")


def _slot(interface: Any) -> tuple[float, float]:
    """Return an interface's network card and its index on the card."""
    return number(get(interface, "NetworkCardIndex"), 0), number(get(interface, "DeviceIndex"), 0)


def _kind(interface: Any) -> str:
    return text(get(interface, "InterfaceType"))


def _throughput(request: AwsRequest) -> bool:
    volumes = [get(m, "Ebs") for m in request.each("LaunchTemplateData.BlockDeviceMappings")]
    return any(
        text(get(volume, "VolumeType")) == "gp3"
        and number(get(volume, "Throughput")) / number(get(volume, "Iops"), 3000) > 0.25
        for volume in volumes
    )


def _efa_unsupported(request: AwsRequest) -> bool:
    known = INSTANCE_TYPES.get(request.text("LaunchTemplateData.InstanceType"))
    efa = any(_kind(nic).startswith("efa") for nic in _interfaces(request))
    return known is not None and known.num_efa_interfaces == 0 and efa


def _invalid_card_index(request: AwsRequest) -> bool:
    known = INSTANCE_TYPES.get(request.text("LaunchTemplateData.InstanceType"))
    cards = [_slot(nic)[0] for nic in _interfaces(request)]
    return known is not None and any(card >= known.num_network_cards for card in cards)


def _wants_block(data: Any) -> bool:
    return text(get(data, "InstanceMarketOptions.MarketType")) == "capacity-block"


_TARGET = "CapacityReservationSpecification.CapacityReservationTarget"


def _block_unsupported(request: AwsRequest) -> bool:
    data = request.get("LaunchTemplateData")
    known = INSTANCE_TYPES.get(text(get(data, "InstanceType")))
    return _wants_block(data) and known is not None and not known.supports_capacity_block


def _zones(request: AwsRequest, path: str) -> list[str]:
    """Return the zones of the known subnets in a list: by ID, or by name if the ID is unknown."""
    subnets = [request.account.find("AWS::EC2::Subnet", subnet) for subnet in request.each(path)]
    zones = [
        text(get(subnet, "AvailabilityZoneId")) or text(get(subnet, "AvailabilityZone"))
        for subnet in subnets
    ]
    return [zone for zone in zones if zone]


def _without_dns(request: AwsRequest) -> bool:
    vpc = request.find("AWS::EC2::VPC", "VpcId")
    support, names = get(vpc, "EnableDnsSupport", True), get(vpc, "EnableDnsHostnames", False)
    private = _is_true(request.get("PrivateDnsEnabled"))
    return bool(vpc) and private and not (_is_true(support) and _is_true(names))


_EC2 = (
    AwsRefusal(
        "template-throughput",
        LAUNCH_TEMPLATE,
        "Throughput (MiBps) to iops ratio is too high; maximum is 0.250000 MiBps per iops",
        "https://github.com/runs-on/runs-on/issues/260",
        _throughput,
    ),
    AwsRefusal(
        "template-groups-beside-interfaces",
        LAUNCH_TEMPLATE,
        "Network interfaces and an instance-level security groups may not be specified on the "
        "same request",
        "https://github.com/pulumi/pulumi-aws/issues/2506",
        lambda r: bool(_interfaces(r)) and r.has("LaunchTemplateData.SecurityGroupIds"),
    ),
    AwsRefusal(
        "template-efa-unsupported",
        LAUNCH_TEMPLATE,
        "These instances do not support Elastic Fabric Adapters.",
        "https://github.com/devopsacademyau/academy/pull/277",
        _efa_unsupported,
    ),
    AwsRefusal(
        "template-network-card",
        LAUNCH_TEMPLATE,
        "Network card index exceeds the limit of the instance type",
        _EC2_GUIDE + "using-eni.html#network-cards",
        _invalid_card_index,
    ),
    AwsRefusal(
        "template-same-slot",
        LAUNCH_TEMPLATE,
        "A network card has two interfaces with the same device index",
        _DOCS + "AWSEC2/latest/APIReference/"
        "API_LaunchTemplateInstanceNetworkInterfaceSpecificationRequest.html",
        lambda r: _has_duplicates([_slot(nic) for nic in _interfaces(r)]),
    ),
    AwsRefusal(
        "template-primary-efa-only",
        LAUNCH_TEMPLATE,
        "An EFA-only network interface can't be the primary network interface",
        _EC2_GUIDE + "efa.html",
        lambda r: any(_slot(n) == (0, 0) and _kind(n) == "efa-only" for n in _interfaces(r)),
    ),
    AwsRefusal(
        "template-no-primary",
        LAUNCH_TEMPLATE,
        "The primary network interface must be assigned to network card index 0 and device index 0",
        _EC2_GUIDE + "using-eni.html#network-cards",
        lambda r: bool(_interfaces(r)) and (0, 0) not in map(_slot, _interfaces(r)),
    ),
    AwsRefusal(
        "template-block-without-reservation",
        LAUNCH_TEMPLATE,
        "A Capacity Block needs a capacity reservation target",
        _EC2_GUIDE + "capacity-blocks-launch.html",
        lambda r: (
            _wants_block(r.get("LaunchTemplateData")) and not r.has(f"LaunchTemplateData.{_TARGET}")
        ),
    ),
    AwsRefusal(
        "template-block-unsold",
        LAUNCH_TEMPLATE,
        "Capacity Blocks are not supported by the instance type",
        _EC2_GUIDE + "ec2-capacity-blocks.html",
        _block_unsupported,
    ),
    AwsRefusal(
        "endpoint-zones",
        ENDPOINT,
        "Found another VPC endpoint subnet in the availability zone of the subnet. VPC endpoint "
        "subnets should be in different availability zones supported by the VPC endpoint service.",
        "https://github.com/terraform-aws-modules/terraform-aws-vpc/issues/583",
        lambda r: _has_duplicates(_zones(r, "SubnetIds")),
    ),
    AwsRefusal(
        # cdk-preflight checks only single-part service names, such as ecs.
        "endpoint-region",
        ENDPOINT,
        "The Vpc Endpoint Service does not exist",
        _DOCS + "vpc/latest/privatelink/privatelink-access-aws-services.html",
        lambda r: (
            r.text("ServiceName").startswith("com.amazonaws.")
            and f".{r.account.region}." not in r.text("ServiceName")
        ),
    ),
    AwsRefusal(
        "endpoint-without-dns",
        ENDPOINT,
        "Enabling private DNS requires both enableDnsSupport and enableDnsHostnames VPC "
        "attributes set to true",
        _DOCS + "vpc/latest/privatelink/privatelink-access-aws-services.html",
        _without_dns,
    ),
)

# --- FSx for Lustre -------------------------------------------------------------------------------

_THROUGHPUT = {
    "PERSISTENT_1": (50, 100, 200),
    "PERSISTENT_2": (125, 250, 500, 1000),
}


def _deployment(properties: Any) -> str:
    return str(get(properties, "LustreConfiguration.DeploymentType", "SCRATCH_1"))


def _lustre_capacity(request: AwsRequest) -> bool:
    step = 3600 if _deployment(request.properties) == "SCRATCH_1" else 2400
    size = request.number("StorageCapacity")
    return size not in (1200, 2400) and size % step > 0


def _lustre_throughput(request: AwsRequest) -> bool:
    allowed = _THROUGHPUT.get(_deployment(request.properties))
    given = request.number("LustreConfiguration.PerUnitStorageThroughput", 0)
    return allowed is not None and given == given and given not in allowed


def _port_closed(request: AwsRequest) -> bool:
    """Return whether the groups are known to block TCP port 988, inbound or outbound."""
    groups = [(g, request.account.find("AWS::EC2::SecurityGroup", g)) for g in
              request.each("SecurityGroupIds")]  # fmt: skip
    if not groups or any(own is None for _, own in groups):
        return False

    def rules(direction: str) -> list[Any]:
        separate = request.account.all(f"AWS::EC2::SecurityGroup{direction}")
        return [
            rule
            for group, own in groups
            for rule in (
                *each(get(own, f"SecurityGroup{direction}")),
                *(r for r in separate if request.account.same(get(r, "GroupId"), group)),
            )
        ]

    # A group without egress rules allows all outbound traffic.
    open_out = any("SecurityGroupEgress" not in (own or {}) for _, own in groups)
    admitted_out = open_out or any(map(_admits_lustre, rules("Egress")))
    return not (admitted_out and any(map(_admits_lustre, rules("Ingress"))))


def _admits_lustre(rule: Any) -> bool:
    first, last = number(get(rule, "FromPort")), number(get(rule, "ToPort"))
    return text(get(rule, "IpProtocol")) not in ("tcp", "6") or not (first > 988 or last < 988)


_FSX = (
    AwsRefusal(
        "fsx-capacity",
        FILE_SYSTEM,
        "Invalid Lustre FS storage capacity. Must be 1200 or a multiple of 2400.",
        "https://github.com/aws-samples/amazon-eks-autonomous-driving-data-service/issues/12",
        _lustre_capacity,
    ),
    AwsRefusal(
        "fsx-throughput",
        FILE_SYSTEM,
        "Invalid Lustre deployment configuration: the provided throughput is invalid or does not "
        "meet the storage capacity requirement",
        "https://github.com/hashicorp/terraform-provider-aws/issues/24341",
        _lustre_throughput,
    ),
    AwsRefusal(
        "fsx-port-closed",
        FILE_SYSTEM,
        "The file system cannot be created because the default security group in the subnet "
        "provided or the provided security groups do not permit Lustre LNET network traffic on "
        "port 988",
        "https://github.com/kubernetes-sigs/aws-fsx-csi-driver/issues/32",
        _port_closed,
    ),
)

# --- EKS ------------------------------------------------------------------------------------------


def _one_zone(request: AwsRequest) -> bool:
    subnets = request.each("ResourcesVpcConfig.SubnetIds")
    zones = _zones(request, "ResourcesVpcConfig.SubnetIds")
    return len(subnets) == len(zones) and len(set(zones)) == 1


def _minor(version: Any) -> int:
    """Return the minor version of Kubernetes, or -1."""
    major, _, minor = text(version).partition(".")
    return int(minor) if major == "1" and minor.isdigit() else -1


def _version_step(request: AwsRequest) -> bool:
    old, new = _minor(get(request.previous, "Version")), _minor(request.get("Version"))
    return old > 0 < new and new - old not in (0, 1)


def _incomplete_block(request: AwsRequest) -> bool:
    data = _launch_template(request, "LaunchTemplate")
    whole = (
        _wants_block(data)
        and get(data, _TARGET) is not None
        and get(data, "InstanceType") is not None
    )
    return request.get("CapacityType") == "CAPACITY_BLOCK" and bool(data) and not whole


def _not_multipart(request: AwsRequest) -> bool:
    """Return whether user data, which EKS merges with its own, is known not to be multipart."""
    given = text(get(_launch_template(request, "LaunchTemplate"), "UserData"))
    with contextlib.suppress(binascii.Error, UnicodeDecodeError):  # plain text in a template
        given = base64.b64decode(given, validate=True).decode()
    return bool(given) and "multipart/" not in given


def _release_mismatch(request: AwsRequest) -> bool:
    release, version = request.text("ReleaseVersion"), request.text("Version")
    return bool(release and version) and not release.startswith(version + ".")


def _mixed_update(request: AwsRequest) -> bool:
    """Check an in-place update; replacing a group counts as a creation."""
    replaced_by = {"AmiType", "CapacityType", "ClusterName", "DiskSize", "InstanceTypes",
                   "NodeRole", "NodegroupName", "RemoteAccess", "Subnets"}  # fmt: skip
    before, after = request.previous or request.properties, request.properties
    changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    versions = {"Version", "ReleaseVersion"}
    mixed = bool(changed & versions) and bool(changed - versions)
    return not changed & replaced_by and (mixed or {"LaunchTemplate", "Tags"} <= changed)


def _lacks_pod_identity_trust(request: AwsRequest) -> bool:
    role = request.find("AWS::IAM::Role", "RoleArn")
    return bool(role) and not any(
        "pods.eks.amazonaws.com" in texts(get(statement, "Principal.Service"))
        and {"sts:AssumeRole", "sts:TagSession"} <= {*texts(get(statement, "Action"))}
        for statement in each(get(role, "AssumeRolePolicyDocument.Statement"))
    )


_EKS = (
    AwsRefusal(
        # cdk-preflight has this rule, but checks each stack alone; the subnets are in another one.
        "cluster-zones",
        CLUSTER,
        "Subnets specified must be in at least two different AZs",
        "https://github.com/awsdocs/amazon-eks-user-guide/pull/795",
        _one_zone,
    ),
    AwsRefusal(
        "cluster-zone",
        CLUSTER,
        "Cannot create cluster because the targeted availability zone does not currently have "
        "sufficient capacity to support the cluster",
        _EKS_GUIDE + "network-reqs.html",
        lambda r: bool(
            {"use1-az3", "usw1-az2", "cac1-az3"} & {*_zones(r, "ResourcesVpcConfig.SubnetIds")}
        ),
    ),
    AwsRefusal(
        "cluster-version-step",
        CLUSTER,
        "Unsupported Kubernetes minor version update",
        "https://github.com/terraform-aws-modules/terraform-aws-eks/issues/2607",
        _version_step,
    ),
    AwsRefusal(
        "nodes-block",
        NODE_GROUP,
        "Launch template of a CAPACITY_BLOCK node group must have an instance type, the market "
        "type capacity-block and a capacity reservation target",
        _EKS_GUIDE + "capacity-blocks-mng.html",
        _incomplete_block,
    ),
    AwsRefusal(
        "nodes-block-type",
        NODE_GROUP,
        "Capacity type must be CAPACITY_BLOCK when the launch template has the market type "
        "capacity-block",
        _EKS_GUIDE + "capacity-blocks-mng.html",
        lambda r: (
            _wants_block(_launch_template(r, "LaunchTemplate"))
            and r.get("CapacityType", "ON_DEMAND") in ("ON_DEMAND", "SPOT")
        ),
    ),
    AwsRefusal(
        "nodes-user-data",
        NODE_GROUP,
        "User data was not in the MIME multipart format.",
        "https://github.com/terraform-aws-modules/terraform-aws-eks/issues/1875",
        _not_multipart,
    ),
    AwsRefusal(
        "nodes-release",
        NODE_GROUP,
        "Requested release version is not valid for kubernetes version.",
        "https://github.com/eksctl-io/eksctl/issues/7976",
        _release_mismatch,
    ),
    AwsRefusal(
        # Tags together with the launch template: https://github.com/aws/aws-cdk/issues/16644.
        "nodes-mixed-update",
        NODE_GROUP,
        "Version and ReleaseVersion updates cannot be combined with other updates",
        "https://github.com/aws/containers-roadmap/issues/1258",
        _mixed_update,
    ),
    AwsRefusal(
        "identity-trust",
        "AWS::EKS::PodIdentityAssociation",
        "Trust policy of the role provided is invalid",
        "https://github.com/hashicorp/terraform-provider-aws/issues/41483",
        _lacks_pod_identity_trust,
    ),
)

# --- S3, Systems Manager, CloudWatch Logs, IAM, Lambda --------------------------------------------


def _lacks_interface_permission(request: AwsRequest) -> bool:
    """Return whether a function in a VPC is known to lack permission to create interfaces."""
    role = request.find("AWS::IAM::Role", "Role")
    managed = texts(get(role, "ManagedPolicyArns"))
    granting = ("AWSLambdaVPCAccessExecutionRole", "AWSLambdaENIManagementAccess",
                "AdministratorAccess")  # fmt: skip
    if not role or not request.each("VpcConfig.SubnetIds"):
        return False
    attached = [
        policy
        for policy in request.account.all("AWS::IAM::Policy")
        if any(_is_execution_role(request, name) for name in each(get(policy, "Roles")))
    ]
    actions = {
        action
        for policy in (*each(get(role, "Policies")), *attached)
        for statement in each(get(policy, "PolicyDocument.Statement"))
        for action in texts(get(statement, "Action"))
    }
    # A policy with an unknown name may grant the permission.
    return not any(not name or name.endswith(granting) for name in managed) and not (
        actions & {"*", "ec2:*", "ec2:CreateNetworkInterface", "ec2:Create*"}
    )


def _is_execution_role(request: AwsRequest, name: Any) -> bool:
    arn = request.get("Role")
    return request.account.same(name, arn) or text(arn).endswith(f"/{text(name)}")


_OTHERS = (
    AwsRefusal(
        "function-interfaces",
        "AWS::Lambda::Function",
        "The provided execution role does not have permissions to call CreateNetworkInterface on "
        "EC2",
        "https://github.com/amazon-connect/amazon-connect-salesforce-lambda/issues/29",
        _lacks_interface_permission,
    ),
)

TABLE: tuple[AwsRefusal, ...] = (*_BATCH, *_SUBMISSIONS, *_EC2, *_FSX, *_EKS, *_OTHERS)
