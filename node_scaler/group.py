"""The Auto Scaling group of the node group.

Its size is changed there and not with EKS's UpdateNodegroupConfig, for which the group chooses the
instances that go. The Cluster Autoscaler does the same to managed node groups, and EKS takes the
new size over (Amazon EKS API reference, NodegroupScalingConfig).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from node_scaler.plan import Group

_CHANGING = frozenset({"UPDATING", "DELETING"})
"""States in which EKS adds and ends nodes itself (Amazon EKS API reference, Nodegroup)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """One managed node group."""

    cluster: str
    name: str
    eks: Any
    autoscaling: Any

    def read(self) -> Group:
        """Ask EKS for the name of the group behind it, and that group for the rest."""
        found = self.eks.describe_nodegroup(clusterName=self.cluster, nodegroupName=self.name)
        described = found["nodegroup"]
        (behind,) = described["resources"]["autoScalingGroups"]
        (group,) = self.autoscaling.describe_auto_scaling_groups(
            AutoScalingGroupNames=[behind["name"]]
        )["AutoScalingGroups"]
        return Group(
            name=behind["name"],
            desired=group["DesiredCapacity"],
            most=group["MaxSize"],
            instances={each["InstanceId"]: each["LifecycleState"] for each in group["Instances"]},
            changing=described["status"] in _CHANGING,
        )

    def resize(self, group: Group, number: int) -> None:
        """Have more nodes."""
        assert number > group.desired, "which nodes go is not for the group to choose"
        self.autoscaling.set_desired_capacity(
            AutoScalingGroupName=group.name, DesiredCapacity=number
        )

    def terminate(self, instance: str) -> None:
        """End one instance, and have one fewer."""
        self.autoscaling.terminate_instance_in_auto_scaling_group(
            InstanceId=instance, ShouldDecrementDesiredCapacity=True
        )
