"""Nodes of EKS's node groups, in the API server of the cluster that belongs to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPES as EC2_INSTANCE_TYPES

from trainium_catalogue.instances import INSTANCE_TYPES
from trainium_emulators.aws.cloudformation.eks_cluster import CLUSTER
from trainium_emulators.kubernetes import nodes

_EFFECTS = {
    "NO_SCHEDULE": "NoSchedule",
    "NO_EXECUTE": "NoExecute",
    "PREFER_NO_SCHEDULE": "PreferNoSchedule",
}
"""EKS's words and Kubernetes' (Amazon EKS API reference, Taint)."""


def match(group: Any) -> None:
    """Have as many nodes as the group, an object of moto's, wants."""
    _scale(group, int(group.scaling_config["desiredSize"]))


def remove(group: Any) -> None:
    """Take all of a group's nodes away."""
    _scale(group, 0)


def instances(group: Any) -> list[str]:
    """Ids of a group's instances."""
    members = nodes.members(CLUSTER.running.store, group.nodegroup_name)
    return [nodes.instance_of(node) for node in members]


def terminate(group: Any, instance: str) -> None:
    """Take the node of one instance away."""
    store = CLUSTER.running.store
    for node in nodes.members(store, group.nodegroup_name):
        if nodes.instance_of(node) == instance:
            nodes.remove(store, node)


def _scale(group: Any, number: int) -> None:
    instance_type = group.instance_types[0]
    made = nodes.Group(
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
    nodes.scale(CLUSTER.running.store, made, number)


def _resources(instance_type: str) -> Mapping[str, str]:
    """Trainium's chips and cards are the catalogue's; EC2 describes the rest."""
    if (known := INSTANCE_TYPES.get(instance_type)) is not None:
        return nodes.trainium_resources(known)
    described = EC2_INSTANCE_TYPES[instance_type]
    return {
        "cpu": str(described["VCpuInfo"]["DefaultVCpus"]),
        "memory": f"{described['MemoryInfo']['SizeInMiB']}Mi",
        "pods": "58",
    }
