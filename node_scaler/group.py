"""Managed node groups, scaled through their Auto Scaling group.

With EKS's UpdateNodegroupConfig, the group would choose which instances to terminate. The Cluster
Autoscaler also scales managed node groups this way, and EKS adopts the new size (Amazon EKS API
reference, NodegroupScalingConfig).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from node_scaler.model import Group

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
        """Read the Auto Scaling group's name and the status from EKS, the rest from the group."""
        found = self.eks.describe_nodegroup(clusterName=self.cluster, nodegroupName=self.name)
        described = found["nodegroup"]
        (asg,) = described["resources"]["autoScalingGroups"]
        (group,) = self.autoscaling.describe_auto_scaling_groups(
            AutoScalingGroupNames=[asg["name"]]
        )["AutoScalingGroups"]
        return Group(
            name=asg["name"],
            desired=group["DesiredCapacity"],
            max_size=group["MaxSize"],
            instances={each["InstanceId"]: each["LifecycleState"] for each in group["Instances"]},
            changing=described["status"] in _CHANGING,
        )

    def resize(self, group: Group, number: int) -> None:
        """Raise the group's desired capacity to ``number``."""
        assert number > group.desired, "the group must not choose which nodes to terminate"
        self.autoscaling.set_desired_capacity(
            AutoScalingGroupName=group.name, DesiredCapacity=number
        )

    def lower(self, group: Group, number: int) -> int:
        """Cancel the request for instances that EC2 has not launched; return the new size.

        The group is read again: with a desired capacity below its current number of instances, it
        would choose which ones to terminate, possibly a busy node (as in kubernetes/autoscaler
        issue 10147).
        """
        size = max(number, len(self.read().instances))
        if size < group.desired:
            self.autoscaling.set_desired_capacity(
                AutoScalingGroupName=group.name, DesiredCapacity=size
            )
        return size

    def terminate(self, instance: str, *, is_replaced: bool = False) -> None:
        """Terminate an instance; the group launches a replacement or shrinks by one."""
        self.autoscaling.terminate_instance_in_auto_scaling_group(
            InstanceId=instance, ShouldDecrementDesiredCapacity=not is_replaced
        )
