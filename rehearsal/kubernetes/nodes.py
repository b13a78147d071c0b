"""Nodes of a node group: as many Ready ones as it wants, with what each offers to pods."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rehearsal.kubernetes import errors
from rehearsal.kubernetes.resources import NODE, POD, Json
from rehearsal.kubernetes.store import Store
from trainium_catalogue import kubernetes
from trainium_catalogue.instances import InstanceType

GROUP_LABEL = "eks.amazonaws.com/nodegroup"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What all nodes of a group have in common."""

    name: str
    instance_type: str
    resources: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Json] = ()
    kubernetes_version: str = "1.35"


def trainium_group(name: str, instance_type: InstanceType) -> Group:
    """A group as the stack makes it."""
    taint = {"key": kubernetes.TAINT, "value": "true", "effect": "NoSchedule"}
    return Group(
        name=name,
        instance_type=instance_type.name,
        resources=trainium_resources(instance_type),
        taints=(taint,),
    )


def trainium_resources(instance_type: InstanceType) -> Mapping[str, str]:
    """What an instance offers to pods once its device plugins run."""
    return {
        "cpu": str(instance_type.num_vcpus),
        "memory": f"{instance_type.memory_mib}Mi",
        "pods": "110",
        kubernetes.NEURON_RESOURCE: str(instance_type.num_neuron_devices),
        kubernetes.EFA_RESOURCE: str(instance_type.num_efa_interfaces),
    }


def scale(store: Store, group: Group, number: int) -> None:
    """Have as many nodes; pods of a node that goes are evicted."""
    present = {
        entry["metadata"]["name"]
        for entry in store.list(NODE, labels=f"{GROUP_LABEL}={group.name}")
    }
    wanted = {f"{group.name.lower()}-{index}" for index in range(number)}
    for name in sorted(wanted - present):
        store.create(NODE, "", _node(group, name))
    for name in sorted(present - wanted):
        store.remove(NODE, "", name)
        for pod in store.list(POD, fields=f"spec.nodeName={name}"):
            with contextlib.suppress(errors.ApiError):  # gone by itself
                store.delete(POD, pod["metadata"]["namespace"], pod["metadata"]["name"])


def _node(group: Group, name: str) -> Json:
    own = {kubernetes.NODE_LABEL: group.instance_type, GROUP_LABEL: group.name}
    return {
        "metadata": {"name": name, "labels": {**group.labels, **own}},
        "spec": {"taints": list(group.taints)},
        "status": {
            "capacity": dict(group.resources),
            "allocatable": dict(group.resources),
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": f"v{group.kubernetes_version}.0-rehearsal"},
        },
    }
