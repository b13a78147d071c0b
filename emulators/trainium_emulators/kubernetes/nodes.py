"""Nodes of a node group: its desired number of Ready ones, with the resources each offers."""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainium_catalogue import kubernetes
from trainium_catalogue.instances import InstanceType
from trainium_emulators.kubernetes import errors, volcano_objects
from trainium_emulators.kubernetes.resources import NODE, POD, Json
from trainium_emulators.kubernetes.store import Store

GROUP_LABEL = "eks.amazonaws.com/nodegroup"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedNodeGroup:
    """The properties common to a group's nodes."""

    name: str
    instance_type: str
    resources: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Json] = ()
    kubernetes_version: str = "1.35"


def trainium_group(name: str, instance_type: InstanceType) -> EmulatedNodeGroup:
    """Return a group as the stack creates it."""
    taint = {"key": kubernetes.TAINT, "value": "true", "effect": "NoSchedule"}
    return EmulatedNodeGroup(
        name=name,
        instance_type=instance_type.name,
        resources=trainium_resources(instance_type),
        taints=(taint,),
    )


def trainium_resources(instance_type: InstanceType) -> Mapping[str, str]:
    """Return the resources for pods once device plugins run, minus the kubelet's share."""
    memory_mib = instance_type.memory_mib - kubernetes.kubelet_memory_mib(instance_type)
    return {
        "cpu": str(instance_type.num_vcpus),
        "memory": f"{memory_mib}Mi",
        "pods": str(kubernetes.max_pods(instance_type)),
        kubernetes.NEURON_RESOURCE: str(instance_type.num_neuron_devices),
        kubernetes.EFA_RESOURCE: str(instance_type.num_efa_interfaces),
    }


def admits(node: Json, spec: Json) -> bool:
    """Tell whether selector and taints allow a pod on the node."""
    labels = node["metadata"].get("labels", {})
    if any(labels.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
        return False
    keys = [entry.get("key") for entry in spec.get("tolerations", ())]
    taints = [t for t in node["spec"].get("taints", ()) if t["effect"] != "PreferNoSchedule"]
    return all(taint["key"] in keys or None in keys for taint in taints)


def members(store: Store, group: str) -> list[Json]:
    """Return the nodes of a group, sorted by name."""
    return store.list(NODE, labels=f"{GROUP_LABEL}={group}")


def instance_of(node: Json) -> str:
    """Return the instance id of a node."""
    return str(node["spec"]["providerID"]).rpartition("/")[2]


def scale(store: Store, group: EmulatedNodeGroup, number: int) -> None:
    """Add or remove nodes to reach a number, as an Auto Scaling group does.

    A group chooses by itself which ones to remove: it compares zones, launch templates and ages
    (Amazon EC2 Auto Scaling user guide, configure termination policies) and knows nothing of
    pods. The choice here is the worst it could make: nodes with pods go first.
    """
    present = members(store, group.name)
    names = {node["metadata"]["name"] for node in present}
    free = (f"{group.name.lower()}-{i}" for i in itertools.count())
    for name in itertools.islice((n for n in free if n not in names), max(0, number - len(names))):
        store.create(NODE, "", _node(group, name))
    worst_first = sorted(present, key=lambda node: not _is_busy(store, node))
    for node in worst_first[: max(0, len(present) - number)]:
        remove(store, node)


def remove(store: Store, node: Json) -> None:
    """Remove a node and evict its pods."""
    name = node["metadata"]["name"]
    store.remove(NODE, "", name)
    for pod in _pods_on(store, name):
        with contextlib.suppress(errors.ApiError):  # already gone
            store.delete(POD, pod["metadata"]["namespace"], pod["metadata"]["name"])


def _is_busy(store: Store, node: Json) -> bool:
    return any(volcano_objects.is_alive(pod) for pod in _pods_on(store, node["metadata"]["name"]))


def _pods_on(store: Store, name: str) -> list[Json]:
    return store.list(POD, fields=f"spec.nodeName={name}")


def _node(group: EmulatedNodeGroup, name: str) -> Json:
    own = {kubernetes.NODE_LABEL: group.instance_type, GROUP_LABEL: group.name}
    return {
        "metadata": {"name": name, "labels": {**group.labels, **own}},
        "spec": {
            "providerID": f"aws:///us-west-2d/i-{uuid.uuid4().hex[:17]}",
            "taints": list(group.taints),
        },
        "status": {
            "capacity": dict(group.resources),
            "allocatable": dict(group.resources),
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": f"v{group.kubernetes_version}.0-rehearsal"},
        },
    }
