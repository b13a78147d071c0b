"""Consequences of changing a resource: for its jobs and its contents, and conflicts in AWS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs.deploy_check.changes import Change
from trainium_catalogue.kubernetes import TAINT

ENVIRONMENT = "AWS::Batch::ComputeEnvironment"
QUEUE = "AWS::Batch::JobQueue"
NODE_GROUP = "AWS::EKS::Nodegroup"
CLUSTER = "AWS::EKS::Cluster"

REMOVAL_EFFECTS: Mapping[str, str] = {
    ENVIRONMENT: "its instances are terminated with it",
    QUEUE: "its jobs are terminated with it",  # Batch API reference, DeleteJobQueue
    NODE_GROUP: "its nodes are terminated with it",
    CLUSTER: "everything in it is deleted with it",
}
"""Types that run jobs, and the effect of their removal."""

REPLACES_INSTANCES: Mapping[str, frozenset[str]] = {
    # AWS Batch User Guide, "Perform infrastructure updates" (infrastructure-updates.html).
    ENVIRONMENT: frozenset(
        f"ComputeResources.{name}"
        for name in (
            "AllocationStrategy",
            "BidPercentage",
            "Ec2Configuration",
            "Ec2KeyPair",
            "ImageId",
            "InstanceRole",
            "InstanceTypes",
            "LaunchTemplate",
            "PlacementGroup",
            "SecurityGroupIds",
            "Subnets",
            "Tags",
            "Type",
            "UpdateToLatestImageVersion",
        )
    ),
    # EKS API reference: these use UpdateNodegroupVersion, which launches new nodes; all others use
    # UpdateNodegroupConfig, which changes scaling, labels and taints, but replaces no node.
    NODE_GROUP: frozenset({"LaunchTemplate", "ReleaseVersion", "Version"}),
}
"""Properties whose in-place update replaces the instances or nodes."""

VERSIONS = frozenset({"ReleaseVersion", "Version"})
DEFAULT_TIMEOUT_MINUTES = 30
"""Default of ``jobExecutionTimeoutMinutes`` (Batch API reference, UpdatePolicy)."""
UPDATE_TIMEOUT_MINUTES = 120
"""CloudFormation's default timeout for updating one resource, if its schema sets none, as for a
compute environment (cloudformation-resource-schema, provider.definition.schema.v1.json)."""

NAMED: Mapping[str, tuple[str, ...]] = {
    # EC2 refuses a subnet whose range overlaps another's (API, CreateSubnet).
    "AWS::EC2::Subnet": ("VpcId", "CidrBlock"),
    "AWS::ECR::Repository": ("RepositoryName",),
    "AWS::EKS::AccessEntry": ("PrincipalArn", "ClusterName"),
    "AWS::EKS::Addon": ("ClusterName", "AddonName"),
    "AWS::EKS::Cluster": ("Name",),
    "AWS::IAM::Role": ("RoleName",),
    "AWS::Logs::LogGroup": ("LogGroupName",),
    "AWS::S3::Bucket": ("BucketName",),
    "AWS::SSM::Parameter": ("Name",),
}
"""Properties whose values must be unique among resources of a type."""

STATEFUL: Mapping[str, str] = {
    "AWS::FSx::FileSystem": "its contents are lost: files from the bucket are imported again, all "
    "others are not; runs that read or write it fail",
    "AWS::S3::Bucket": "datasets, checkpoints, caches and results are in it",
    "AWS::ECR::Repository": "its images are lost; `cdk deploy` pushes the current one again, and "
    "waiting jobs that use another one cannot start",
    "AWS::EKS::Cluster": "all jobs, volume claims and objects in it are lost",
    "AWS::Logs::LogGroup": "its log lines are lost",
}
"""Types whose contents cannot be restored, and the effect of losing them."""

COSTLY = (
    "AWS::EKS::Cluster",
    "AWS::EKS::Nodegroup",
    "AWS::FSx::FileSystem",
    "AWS::EC2::NatGateway",
    "AWS::EC2::VPCEndpoint",
    "AWS::S3::Bucket",
    "AWS::ECR::Repository",
)
"""Types billed while they exist."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect of a change on jobs."""

    what: str
    within_minutes: float
    """Minutes until running jobs are ended; 0 for immediately."""
    waiting_too: bool = False
    """True if it also ends jobs that have not started."""
    size: int | None = None
    """New number of nodes, if the update changes only the number."""


def effect_of(change: Change) -> Effect | None:
    """Describe how a change ends the jobs on a resource; None if it does not."""
    kind = change.resource_type
    if kind not in REMOVAL_EFFECTS:
        return None
    if kind == NODE_GROUP and not has_trainium_nodes(change.old or change.new):
        return None
    if change.gone:
        what = f"{REMOVAL_EFFECTS[kind]}: it is {change.fate}"
        return Effect(what, 0, waiting_too=kind in (QUEUE, CLUSTER))
    changed = change.changed if kind == ENVIRONMENT else change.changed_properties
    replacing = sorted(changed & REPLACES_INSTANCES.get(kind, frozenset()))
    names = ", ".join(name.removeprefix("ComputeResources.") for name in replacing)
    if replacing and kind == ENVIRONMENT:
        policy = change.properties.get("UpdatePolicy", {})
        minutes = float(policy.get("JobExecutionTimeoutMinutes", DEFAULT_TIMEOUT_MINUTES))
        return Effect(f"an infrastructure update replaces its instances ({names})", minutes)
    if replacing:
        strategy = change.properties.get("UpdateConfig", {}).get("UpdateStrategy")
        how = "all at once" if strategy == "MINIMAL" else "one by one"
        return Effect(f"an update of the node group replaces its nodes {how} ({names})", 0)
    if kind == NODE_GROUP and "ScalingConfig" in changed:
        size = int(change.properties.get("ScalingConfig", {}).get("DesiredSize", 0))
        return Effect(f"it sets the number of nodes to {size}", 0, size=size)
    return None


def has_trainium_nodes(resource: Mapping[str, Any]) -> bool:
    """Return whether a resource in a template is a node group for jobs."""
    taints = resource.get("Properties", {}).get("Taints", ())
    return resource["Type"] == NODE_GROUP and any(taint.get("Key") == TAINT for taint in taints)
