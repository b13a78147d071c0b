"""Scales the nodes of EKS node groups, directly or through their Auto Scaling groups.

EKS follows external changes to such a group: "the desiredSize parameter is altered by the Cluster
Autoscaler (but can be out-of-date for short periods of time)" (Amazon EKS API reference,
NodegroupScalingConfig). The Cluster Autoscaler does so with two operations of Auto Scaling
(github.com/kubernetes/autoscaler, cluster-autoscaler/cloudprovider/aws/auto_scaling_groups.go). In
moto, the Auto Scaling groups of node groups are only names.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from moto.autoscaling.exceptions import ValidationError
from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import ActionResult, EmptyResult
from moto.ec2.models.instance_types import INSTANCE_TYPES as EC2_INSTANCE_TYPES
from moto.eks.models import eks_backends
from moto.eks.responses import EKSResponse
from moto.ssm.models import ssm_backends

from trainium_catalogue.instances import INSTANCE_TYPES
from trainium_emulators.aws.cloudformation.eks_cluster import CLUSTER
from trainium_emulators.kubernetes import nodes
from trainium_emulators.kubernetes.scaling_group import CapacityFaults, ScalingGroup

_EFFECTS = {
    "NO_SCHEDULE": "NoSchedule",
    "NO_EXECUTE": "NoExecute",
    "PREFER_NO_SCHEDULE": "PreferNoSchedule",
}
"""Taint effects of EKS and their Kubernetes names (Amazon EKS API reference, Taint)."""
CAPACITY_FAULTS = "/rehearsal/capacity"
"""Parameters ``<this>/<node group>`` whose JSON sets ``CapacityFaults`` in a running server."""


def match(group: Any) -> None:
    """Match the number of nodes to the desired size of ``group``, a moto object."""
    _scaling_group(group).set_desired(int(group.scaling_config["desiredSize"]))


def remove(group: Any) -> None:
    """Remove all nodes of a group."""
    _scaling_group(group).set_desired(0)


def _scaling_group(group: Any) -> ScalingGroup:
    """Return the Auto Scaling group behind a node group, with its current faults."""
    instance_type = group.instance_types[0]
    described_group = nodes.EmulatedNodeGroup(
        name=group.nodegroup_name,
        instance_type=instance_type,
        resources=_resources(instance_type),
        labels=group.labels,
        taints=[
            {"key": t["key"], "value": t.get("value", ""), "effect": _EFFECTS[t["effect"]]}
            for t in group.taints
        ],
        kubernetes_version=group.version,
    )
    scaling_group = CLUSTER.running.scaling_group(described_group)
    account, region = group.arn.split(":")[4], group.region
    faults = ssm_backends[account][region].get_parameter(
        f"{CAPACITY_FAULTS}/{group.nodegroup_name}"
    )
    if faults is not None:
        scaling_group.plant(CapacityFaults(**json.loads(faults.value)))
    return scaling_group


def _resources(instance_type: str) -> Mapping[str, str]:
    """Return a node's allocatable resources: from the catalogue, which lists all Trainium
    instance types, or otherwise from moto's list of EC2 instance types."""
    if (known := INSTANCE_TYPES.get(instance_type)) is not None:
        return nodes.trainium_resources(known)
    described = EC2_INSTANCE_TYPES[instance_type]
    return {
        "cpu": str(described["VCpuInfo"]["DefaultVCpus"]),
        "memory": f"{described['MemoryInfo']['SizeInMiB']}Mi",
        "pods": "58",
    }


def _groups(response: AutoScalingResponse) -> Iterator[tuple[str, Any]]:
    """Yield each Auto Scaling group's name with its node group, a moto object."""
    for cluster in eks_backends[response.current_account][response.region].clusters.values():
        for group in cluster.nodegroups.values():
            yield group.resources["autoScalingGroups"][0]["name"], group


def describe_auto_scaling_groups(response: AutoScalingResponse) -> ActionResult:
    """DescribeAutoScalingGroups, by name: moto's own groups and those of node groups."""
    wanted = response._get_param("AutoScalingGroupNames", [])
    eks_groups = [
        {
            "AutoScalingGroupName": name,
            "MinSize": group.scaling_config["minSize"],
            "MaxSize": group.scaling_config["maxSize"],
            "DesiredCapacity": group.scaling_config["desiredSize"],
            "Instances": [
                {
                    "InstanceId": instance,
                    "AvailabilityZone": nodes.ZONE,
                    "LifecycleState": state,
                    "HealthStatus": "Healthy",
                    "ProtectedFromScaleIn": False,
                }
                for instance, state in _scaling_group(group).instances().items()
            ],
        }
        for name, group in _groups(response)
        if not wanted or name in wanted
    ]
    others = response.autoscaling_backend.describe_auto_scaling_groups(wanted)
    return ActionResult({"AutoScalingGroups": [*others, *eks_groups]})


def set_desired_capacity(response: AutoScalingResponse) -> EmptyResult:
    """SetDesiredCapacity; the group chooses the instances to remove when it shrinks."""
    wanted, number = (
        response._get_param("AutoScalingGroupName"),
        response._get_int_param("DesiredCapacity"),
    )
    for name, group in _groups(response):
        if name != wanted:
            continue
        for key, sign, violation in (("maxSize", 1, "above max"), ("minSize", -1, "below min")):
            limit = group.scaling_config[key]
            if sign * number > sign * limit:
                raise ValidationError(
                    f"New SetDesiredCapacity value {number} is {violation} value {limit} for the "
                    "AutoScalingGroup."
                )
        _resize(group, number)
        match(group)
        return EmptyResult()
    raise ValidationError("AutoScalingGroup name not found - null")


def terminate_instance(response: AutoScalingResponse) -> ActionResult:
    """TerminateInstanceInAutoScalingGroup: shrink the group by the instance, or replace it."""
    instance = response._get_param("InstanceId")
    decrement = response._get_bool_param("ShouldDecrementDesiredCapacity", False)
    for name, group in _groups(response):
        if instance not in _scaling_group(group).instances():
            continue
        wanted, least = group.scaling_config["desiredSize"], group.scaling_config["minSize"]
        if decrement and wanted <= least:
            raise ValidationError(
                f"Currently, desiredSize equals minSize ({least}). Terminating instance without "
                "replacement will violate group's min size constraint. Either set "
                "shouldDecrementDesiredCapacity flag to false or lower group's min size."
            )
        if decrement:
            _resize(group, wanted - 1)
        _scaling_group(group).terminate(instance, decrement=decrement)
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


def describe_scaling_activities(response: AutoScalingResponse) -> ActionResult:
    """DescribeScalingActivities of one group, newest first."""
    wanted = response._get_param("AutoScalingGroupName")
    activities = [
        {
            "ActivityId": each.activity_id,
            "AutoScalingGroupName": name,
            "Cause": "a difference between desired and actual capacity",
            "Description": each.description,
            "StartTime": moment - timedelta(seconds=clock_s - each.started_at),
            "StatusCode": "Failed" if each.message else "Successful",
            "Progress": 100,
            **({"StatusMessage": each.message} if each.message else {}),
        }
        for name, group in _groups(response)
        if name == wanted
        for scaling_group in [_scaling_group(group)]
        for clock_s, moment in [(scaling_group.clock(), datetime.now(UTC))]
        for each in scaling_group.activities
    ]
    return ActionResult({"Activities": activities})


def describe_nodegroup(response: EKSResponse) -> ActionResult:
    """moto's DescribeNodegroup, with the issues that EKS finds in the Auto Scaling group."""
    group = response.eks_backend.describe_nodegroup(
        response._get_param("name"), response._get_param("nodegroupName")
    )
    failed = _scaling_group(group).failure()
    name = group.resources["autoScalingGroups"][0]["name"]
    issue = {"code": "AsgInstanceLaunchFailures", "message": failed, "resourceIds": [name]}
    group.health = {"issues": [issue] if failed else []}
    group.status = "DEGRADED" if failed else "ACTIVE"
    return _moto_describe_nodegroup(response)


_moto_describe_nodegroup = EKSResponse.describe_nodegroup


def _resize(group: Any, number: int) -> None:
    group.scaling_config = {**group.scaling_config, "desiredSize": number}


def install() -> None:
    """Patch moto in this process."""
    AutoScalingResponse.describe_auto_scaling_groups = describe_auto_scaling_groups
    AutoScalingResponse.describe_scaling_activities = describe_scaling_activities
    EKSResponse.describe_nodegroup = describe_nodegroup
    AutoScalingResponse.set_desired_capacity = set_desired_capacity
    AutoScalingResponse.terminate_instance_in_auto_scaling_group = terminate_instance
