"""Nodes of node groups: their resources, taints and conditions, and the eviction of their pods."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainium_catalogue import kubernetes
from trainium_catalogue.instances import InstanceType
from trainium_emulators.kubernetes import errors, volcano_objects
from trainium_emulators.kubernetes.resources import NODE, POD, Json
from trainium_emulators.kubernetes.store import Store

GROUP_LABEL = "eks.amazonaws.com/nodegroup"
ZONE = "us-west-2d"
STUCK = "rehearsal/stuck"
"""Annotation of a node whose kubelet terminates no pods: deleted pods stay Terminating."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedNodeGroup:
    """The common properties of a group's nodes."""

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
    """Return the allocatable resources once device plugins run, minus kubelet reservations."""
    memory_mib = instance_type.memory_mib - kubernetes.kubelet_memory_mib(instance_type)
    return {
        "cpu": str(instance_type.num_vcpus),
        "memory": f"{memory_mib}Mi",
        "pods": str(kubernetes.max_pods(instance_type)),
        kubernetes.NEURON_RESOURCE: str(instance_type.num_neuron_devices),
        kubernetes.EFA_RESOURCE: str(instance_type.num_efa_interfaces),
    }


def admits(node: Json, spec: Json) -> bool:
    """Return whether a pod's selector and tolerations allow it on the node."""
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


def remove(store: Store, name: str) -> None:
    """Remove a node, if it still exists, and evict its pods."""
    with contextlib.suppress(errors.ApiError):
        store.remove(NODE, "", name)
    evict(store, name)


def evict(store: Store, name: str) -> None:
    """Delete a node's pods, as the taint eviction controller does."""
    for pod in pods_on(store, name):
        with contextlib.suppress(errors.ApiError):  # already gone
            store.delete(POD, pod["metadata"]["namespace"], pod["metadata"]["name"])


def ends_pods(store: Store, name: str) -> bool:
    """Return whether a node's kubelet reports and terminates pods; True if the node is gone."""
    node = store.find(NODE, "", name)
    if node is None:
        return True
    is_known = {"type": "Ready", "status": "Unknown"} not in node["status"]["conditions"]
    return is_known and STUCK not in (node["metadata"].get("annotations") or {})


def is_busy(store: Store, name: str) -> bool:
    """Return whether a node has an unfinished pod."""
    return any(volcano_objects.is_alive(pod) for pod in pods_on(store, name))


def pods_on(store: Store, name: str) -> list[Json]:
    """Return the pods that are bound to a node."""
    return store.list(POD, fields=f"spec.nodeName={name}")


def node(group: EmulatedNodeGroup, name: str, instance_id: str) -> Json:
    """Return the Node object of an instance that has joined."""
    own = {kubernetes.NODE_LABEL: group.instance_type, GROUP_LABEL: group.name}
    return {
        "metadata": {"name": name, "labels": {**group.labels, **own}},
        "spec": {
            "providerID": f"aws:///{ZONE}/{instance_id}",
            "taints": list(group.taints),
        },
        "status": {
            "capacity": dict(group.resources),
            "allocatable": dict(group.resources),
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": f"v{group.kubernetes_version}.0-rehearsal"},
        },
    }
