"""The Auto Scaling group of the node group.

Its size is changed there, not with EKS's UpdateNodegroupConfig, where the group would choose which
instances go. The Cluster Autoscaler does the same with managed node groups, and EKS adopts the
new size (Amazon EKS API reference, NodegroupScalingConfig).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from node_scaler.plan import Group

_CHANGING = frozenset({"UPDATING", "DELETING"})
"""States in which EKS itself adds and removes nodes (Amazon EKS API reference, Nodegroup)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedNodeGroup:
    """One managed node group."""

    cluster: str
    name: str
    eks: Any
    autoscaling: Any

    def read(self) -> Group:
        """Ask EKS for the Auto Scaling group's name, and that group for the rest."""
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
        """Raise the group to ``number`` nodes."""
        assert number > group.desired, "which nodes go is not for the group to choose"
        self.autoscaling.set_desired_capacity(
            AutoScalingGroupName=group.name, DesiredCapacity=number
        )

    def lower(self, group: Group, number: int) -> int:
        """Give up instances that EC2 has not delivered; returns the new size.

        The group is read again: below the number of instances that it has got meanwhile, it would
        choose which of them to terminate, even a busy node (as in kubernetes/autoscaler issue
        10147).
        """
        size = max(number, len(self.read().instances))
        if size < group.desired:
            self.autoscaling.set_desired_capacity(
                AutoScalingGroupName=group.name, DesiredCapacity=size
            )
        return size

    def terminate(self, instance: str) -> None:
        """Terminate one instance and shrink the group by one."""
        self.autoscaling.terminate_instance_in_auto_scaling_group(
            InstanceId=instance, ShouldDecrementDesiredCapacity=True
        )
