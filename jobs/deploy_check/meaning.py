"""Tables of what a change means here: for the jobs on a resource, for its contents, for AWS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jobs.deploy_check.changes import Change
from trainium_catalogue.kubernetes import TAINT

ENVIRONMENT = "AWS::Batch::ComputeEnvironment"
QUEUE = "AWS::Batch::JobQueue"
NODE_GROUP = "AWS::EKS::Nodegroup"
CLUSTER = "AWS::EKS::Cluster"

ENDS_WITH_IT: Mapping[str, str] = {
    ENVIRONMENT: "its instances end with it",
    QUEUE: "its jobs end with it",  # Batch API reference, DeleteJobQueue
    NODE_GROUP: "its nodes end with it",
    CLUSTER: "all that is in it ends with it",
}
"""Types that run jobs, and what their end means for these."""

REPLACES_MACHINES: Mapping[str, frozenset[str]] = {
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
    # EKS API reference: these go through UpdateNodegroupVersion, which starts new nodes; all others
    # through UpdateNodegroupConfig, which leaves the nodes alone except for their number.
    NODE_GROUP: frozenset({"LaunchTemplate", "ReleaseVersion", "Version"}),
}
"""Properties whose change in place replaces the instances or nodes."""

VERSIONS = frozenset({"ReleaseVersion", "Version"})
DEFAULT_TIMEOUT_MINUTES = 30
"""Default of ``jobExecutionTimeoutMinutes`` (Batch API reference, UpdatePolicy)."""
UPDATE_TIMEOUT_MINUTES = 120
"""CloudFormation's time for one resource's update where its schema sets none, as that of a compute
environment does not (cloudformation-resource-schema, provider.definition.schema.v1.json)."""

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
"""Properties whose values no two resources of a type can share."""

STATEFUL: Mapping[str, str] = {
    "AWS::FSx::FileSystem": "what is on it is lost: what was imported from the bucket is imported "
    "again, the rest is not; runs that read or write it fail",
    "AWS::S3::Bucket": "datasets, checkpoints, caches and results are in it",
    "AWS::ECR::Repository": "its images are gone; `cdk deploy` pushes today's again, and jobs that "
    "wait with another one cannot start",
    "AWS::EKS::Cluster": "every job, volume claim and object in it is gone",
    "AWS::Logs::LogGroup": "the log lines in it are gone",
}
"""Types whose contents cannot be restored, and what losing them means."""

COSTLY = (
    "AWS::EKS::Cluster",
    "AWS::EKS::Nodegroup",
    "AWS::FSx::FileSystem",
    "AWS::EC2::NatGateway",
    "AWS::EC2::VPCEndpoint",
    "AWS::S3::Bucket",
    "AWS::ECR::Repository",
)
"""Types that are billed while they exist."""


@dataclass(frozen=True, slots=True)
class Effect:
    """The way in which jobs end, or may end."""

    what: str
    within_minutes: float
    """Minutes that a running job has left; 0: none."""
    waiting_too: bool = False
    """Ends jobs that have not started, too."""
    size: int | None = None
    """Number of nodes left, if the update changes nothing but the number."""


def effect_of(change: Change) -> Effect | None:
    """Describe how the jobs on a resource end; None if they do not."""
    kind = change.resource_type
    if kind not in ENDS_WITH_IT or (kind == NODE_GROUP and not _has_trainium_nodes(change)):
        return None
    if change.gone:
        what = f"{ENDS_WITH_IT[kind]}: it is {change.fate}"
        return Effect(what, 0, waiting_too=kind in (QUEUE, CLUSTER))
    changed = change.changed if kind == ENVIRONMENT else change.changed_properties
    replacing = sorted(changed & REPLACES_MACHINES.get(kind, frozenset()))
    names = ", ".join(name.removeprefix("ComputeResources.") for name in replacing)
    if replacing and kind == ENVIRONMENT:
        policy = change.properties.get("UpdatePolicy", {})
        minutes = float(policy.get("JobExecutionTimeoutMinutes", DEFAULT_TIMEOUT_MINUTES))
        return Effect(f"an infrastructure update replaces its instances ({names})", minutes)
    if replacing:
        strategy = change.properties.get("UpdateConfig", {}).get("UpdateStrategy")
        how = "all at once" if strategy == "MINIMAL" else "one after the other"
        return Effect(f"an update of the node group ends its nodes {how} ({names})", 0)
    if kind == NODE_GROUP and "ScalingConfig" in changed:
        size = int(change.properties.get("ScalingConfig", {}).get("DesiredSize", 0))
        return Effect(f"it sets the number of nodes to {size}", 0, size=size)
    return None


def _has_trainium_nodes(change: Change) -> bool:
    taints = (change.old or change.new).get("Properties", {}).get("Taints", ())
    return any(taint.get("Key") == TAINT for taint in taints)
