"""Nodes of a node group, with what the catalogue says that they have."""

from __future__ import annotations

from rehearsal.kubernetes.resources import NODE, POD, Json
from rehearsal.kubernetes.store import Store
from trainium_catalogue import kubernetes
from trainium_catalogue.instances import InstanceType

GROUP_LABEL = "eks.amazonaws.com/nodegroup"


def node(group: str, index: int, instance_type: InstanceType) -> Json:
    """One node, as it registers itself once its device plugins run."""
    resources = {
        "cpu": str(instance_type.num_vcpus),
        "memory": f"{instance_type.memory_mib}Mi",
        "pods": "110",
        kubernetes.NEURON_RESOURCE: str(instance_type.num_neuron_devices),
        kubernetes.EFA_RESOURCE: str(instance_type.num_efa_interfaces),
    }
    taint = {"key": kubernetes.TAINT, "value": "true", "effect": "NoSchedule"}
    labels = {kubernetes.NODE_LABEL: instance_type.name, GROUP_LABEL: group}
    return {
        "metadata": {"name": f"{group}-{index}", "labels": labels},
        "spec": {"taints": [taint]},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": "v1.35.0-rehearsal"},
        },
    }


def scale(store: Store, group: str, instance_type: InstanceType, number: int) -> None:
    """Have as many nodes in the group; pods of a node that goes are evicted."""
    present = {
        entry["metadata"]["name"] for entry in store.list(NODE, labels=f"{GROUP_LABEL}={group}")
    }
    for index in range(number):
        new = node(group, index, instance_type)
        if new["metadata"]["name"] not in present:
            store.create(NODE, "", new)
        present.discard(new["metadata"]["name"])
    for name in present:
        store.remove(NODE, "", name)
        for pod in store.list(POD, fields=f"spec.nodeName={name}"):
            store.delete(POD, pod["metadata"]["namespace"], pod["metadata"]["name"])
