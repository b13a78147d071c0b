"""Effects of a resource's change on the jobs that use it."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.deploy_check.changes import Change, Fate
from jobs.deploy_check.replacements import Path
from trainium_catalogue.kubernetes import TAINT

ENVIRONMENT = "AWS::Batch::ComputeEnvironment"
QUEUE = "AWS::Batch::JobQueue"
NODE_GROUP = "AWS::EKS::Nodegroup"
CLUSTER = "AWS::EKS::Cluster"

# AWS Batch User Guide, "Perform infrastructure updates" (infrastructure-updates.html): changing any
# of these replaces the instances. A new launch template version is a change of launchTemplate.
INFRASTRUCTURE = frozenset(
    {
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
    }
)
DEFAULT_TIMEOUT_MINUTES = 30
"""Default of ``jobExecutionTimeoutMinutes`` (Batch API reference, UpdatePolicy)."""

UPDATE_TIMEOUT_MINUTES = 120
"""CloudFormation's time for one resource's update where its schema sets none, as that of a compute
environment does not (cloudformation-resource-schema, provider.definition.schema.v1.json)."""

# EKS API reference: changes that go through UpdateNodegroupVersion start new nodes; all others go
# through UpdateNodegroupConfig, which leaves the nodes alone except for their number.
NEW_NODES = frozenset({"LaunchTemplate", "ReleaseVersion", "Version"})


_VERSIONS = frozenset({"ReleaseVersion", "Version"})


@dataclass(frozen=True, slots=True)
class Effect:
    """The ways in which jobs end, or may end."""

    what: str
    within_minutes: float
    """Minutes that a running job has left; 0: none."""
    waiting_too: bool = False
    """Ends jobs that have not started, too."""
    size: int | None = None
    """Number of nodes left, if the update changes nothing but the number."""


def effect_on_environment(change: Change) -> Effect | None:
    """Describe how a compute environment's running jobs end; None if they do not."""
    if change.fate in (Fate.REPLACED, Fate.REMOVED):
        return Effect(f"its instances end with it: it is {change.fate}", 0)
    changed = sorted(_infrastructure(path) for path in change.paths if _infrastructure(path))
    if not changed:
        return None
    policy = change.properties.get("UpdatePolicy", {})
    minutes = float(policy.get("JobExecutionTimeoutMinutes", DEFAULT_TIMEOUT_MINUTES))
    if str(policy.get("TerminateJobsOnUpdate", "false")).lower() == "true":
        minutes = 0
    names = ", ".join(dict.fromkeys(changed))
    return Effect(f"an infrastructure update replaces its instances ({names})", minutes)


def _infrastructure(path: Path) -> str:
    """Name the setting that replaces the instances; empty if the path is not one."""
    if path[0] != "ComputeResources":
        return ""
    if len(path) == 1:
        return path[0]
    return path[1] if path[1] in INFRASTRUCTURE else ""


def effect_on_queue(change: Change) -> Effect | None:
    """Describe how a queue's removal ends all its jobs (Batch API reference, DeleteJobQueue)."""
    if change.fate in (Fate.REPLACED, Fate.REMOVED):
        return Effect(f"its jobs end with it: it is {change.fate}", 0, waiting_too=True)
    return None


def effect_on_node_group(change: Change) -> Effect | None:
    """Describe how the pods of the Trainium nodes end; None for the cluster's own nodes."""
    entry = change.old or change.new
    taints = entry.get("Properties", {}).get("Taints", ())
    if not any(taint.get("Key") == TAINT for taint in taints):
        return None
    if change.fate in (Fate.REPLACED, Fate.REMOVED):
        return Effect(f"its nodes end with it: it is {change.fate}", 0)
    changed = sorted({path[0] for path in change.paths} & NEW_NODES)
    if changed:
        strategy = change.properties.get("UpdateConfig", {}).get("UpdateStrategy")
        how = "all at once" if strategy == "MINIMAL" else "one after the other"
        return Effect(f"an update of the node group ends its nodes {how} ({', '.join(changed)})", 0)
    if any(path[0] == "ScalingConfig" for path in change.paths):
        size = int(change.properties.get("ScalingConfig", {}).get("DesiredSize", 0))
        return Effect(f"it sets the number of nodes to {size}", 0, size=size)
    return None


def mixed_with_version(change: Change) -> list[str]:
    """List what CloudFormation refuses to change along with a node group's image or version.

    CloudFormation template reference, AWS::EKS::Nodegroup, ReleaseVersion and Version: no other
    property at the same time (aws/containers-roadmap issue 1258).
    """
    changed = {path[0] for path in change.paths}
    if change.resource_type != NODE_GROUP or change.fate is not Fate.UPDATED:
        return []
    return sorted(changed - _VERSIONS) if changed & _VERSIONS else []


def effect_on_cluster(change: Change) -> Effect | None:
    """Describe how a cluster's removal ends everything in it."""
    if change.fate in (Fate.REPLACED, Fate.REMOVED):
        return Effect(f"all that is in it ends with it: it is {change.fate}", 0, waiting_too=True)
    return None
