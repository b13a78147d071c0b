"""The Auto Scaling groups behind EKS's node groups; moto gives them a name and nothing else.

EKS takes over what others do to such a group: "the desiredSize parameter is altered by the Cluster
Autoscaler (but can be out-of-date for short periods of time)" (Amazon EKS API reference,
NodegroupScalingConfig). The Cluster Autoscaler does so with the two operations below
(github.com/kubernetes/autoscaler, cluster-autoscaler/cloudprovider/aws/auto_scaling_groups.go).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from moto.autoscaling.exceptions import ValidationError
from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import ActionResult, EmptyResult
from moto.eks.models import eks_backends

from trainium_emulators.aws.cloudformation import eks_nodes

_ZONE = "us-west-2d"


def _groups(response: AutoScalingResponse) -> Iterator[tuple[str, Any]]:
    """Name of the Auto Scaling group, and the node group it belongs to, an object of moto's."""
    for cluster in eks_backends[response.current_account][response.region].clusters.values():
        for group in cluster.nodegroups.values():
            yield group.resources["autoScalingGroups"][0]["name"], group


def describe_auto_scaling_groups(response: AutoScalingResponse) -> ActionResult:
    """DescribeAutoScalingGroups, by name."""
    wanted = response._get_param("AutoScalingGroupNames", [])
    found = [
        {
            "AutoScalingGroupName": name,
            "MinSize": group.scaling_config["minSize"],
            "MaxSize": group.scaling_config["maxSize"],
            "DesiredCapacity": group.scaling_config["desiredSize"],
            "Instances": [
                {
                    "InstanceId": instance,
                    "AvailabilityZone": _ZONE,
                    "LifecycleState": "InService",
                    "HealthStatus": "Healthy",
                    "ProtectedFromScaleIn": False,
                }
                for instance in eks_nodes.instances(group)
            ],
        }
        for name, group in _groups(response)
        if not wanted or name in wanted
    ]
    return ActionResult({"AutoScalingGroups": found})


def set_desired_capacity(response: AutoScalingResponse) -> EmptyResult:
    """SetDesiredCapacity; which instances go for a smaller number is the group's choice."""
    wanted, number = (
        response._get_param("AutoScalingGroupName"),
        response._get_int_param("DesiredCapacity"),
    )
    for name, group in _groups(response):
        if name != wanted:
            continue
        for key, sign, word in (("maxSize", 1, "above max"), ("minSize", -1, "below min")):
            limit = group.scaling_config[key]
            if sign * number > sign * limit:
                raise ValidationError(
                    f"New SetDesiredCapacity value {number} is {word} value {limit} for the "
                    "AutoScalingGroup."
                )
        _resize(group, number)
        eks_nodes.match(group)
        return EmptyResult()
    raise ValidationError("AutoScalingGroup name not found - null")


def terminate_instance(response: AutoScalingResponse) -> ActionResult:
    """TerminateInstanceInAutoScalingGroup: this instance, and one fewer or another one for it."""
    instance = response._get_param("InstanceId")
    fewer = response._get_bool_param("ShouldDecrementDesiredCapacity", False)
    for name, group in _groups(response):
        if instance not in eks_nodes.instances(group):
            continue
        wanted, least = group.scaling_config["desiredSize"], group.scaling_config["minSize"]
        if fewer and wanted <= least:
            raise ValidationError(
                f"Currently, desiredSize equals minSize ({least}). Terminating instance without "
                "replacement will violate group's min size constraint. Either set "
                "shouldDecrementDesiredCapacity flag to false or lower group's min size."
            )
        if fewer:
            _resize(group, wanted - 1)
        eks_nodes.terminate(group, instance)
        eks_nodes.match(group)
        activity = {
            "ActivityId": str(uuid.uuid4()),
            "AutoScalingGroupName": name,
            "Cause": f"instance {instance} was taken out of service in response to a user request",
            "StartTime": datetime.now(UTC),
            "StatusCode": "InProgress",
        }
        return ActionResult({"Activity": activity})
    raise ValidationError(
        f"Instance Id not found - No managed instance found for instance ID: {instance}"
    )


def _resize(group: Any, number: int) -> None:
    group.scaling_config = {**group.scaling_config, "desiredSize": number}


def install() -> None:
    """Patch moto in this process."""
    AutoScalingResponse.describe_auto_scaling_groups = describe_auto_scaling_groups
    AutoScalingResponse.set_desired_capacity = set_desired_capacity
    AutoScalingResponse.terminate_instance_in_auto_scaling_group = terminate_instance
