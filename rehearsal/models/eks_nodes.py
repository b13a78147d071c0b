"""Nodes of node groups: as many Ready nodes in the API server as a group's desired size."""

from __future__ import annotations

from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPES as EC2_INSTANCE_TYPES

from rehearsal.kubernetes import errors
from rehearsal.kubernetes.nodes import GROUP_LABEL
from rehearsal.kubernetes.resources import NODE, POD
from rehearsal.models.eks_cluster import CLUSTER
from rehearsal.models.spi import Properties
from trainium_catalogue import kubernetes
from trainium_catalogue.instances import INSTANCE_TYPES

_EFFECTS = {
    "NO_SCHEDULE": "NoSchedule",
    "NO_EXECUTE": "NoExecute",
    "PREFER_NO_SCHEDULE": "PreferNoSchedule",
}
"""EKS's words and Kubernetes' (Amazon EKS API reference, Taint)."""


def node(group: Any, index: int) -> Properties:
    """One node, as it registers itself once its device plugins run."""
    instance_type = group.instance_types[0]
    resources = _resources(instance_type)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": f"{group.nodegroup_name.lower()}-{index}",
            "labels": {
                **group.labels,
                kubernetes.NODE_LABEL: instance_type,
                GROUP_LABEL: group.nodegroup_name,
            },
        },
        "spec": {
            "taints": [
                {"key": t["key"], "value": t.get("value", ""), "effect": _EFFECTS[t["effect"]]}
                for t in group.taints
            ]
        },
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": f"v{group.version}.0-rehearsal"},
        },
    }


def _resources(instance_type: str) -> dict[str, str]:
    """What an instance offers to pods; Trainium's chips and cards are the catalogue's."""
    if (known := INSTANCE_TYPES.get(instance_type)) is not None:
        return {
            "cpu": str(known.num_vcpus),
            "memory": f"{known.memory_mib}Mi",
            "pods": "110",
            kubernetes.NEURON_RESOURCE: str(known.num_neuron_devices),
            kubernetes.EFA_RESOURCE: str(known.num_efa_interfaces),
        }
    described = EC2_INSTANCE_TYPES[instance_type]
    return {
        "cpu": str(described["VCpuInfo"]["DefaultVCpus"]),
        "memory": f"{described['MemoryInfo']['SizeInMiB']}Mi",
        "pods": "58",
    }


def match(group: Any) -> None:
    """Have as many nodes as the group wants; pods of a node that goes are evicted."""
    store = CLUSTER.running.store
    present = {
        entry["metadata"]["name"]
        for entry in store.list(NODE, labels=f"{GROUP_LABEL}={group.nodegroup_name}")
    }
    wanted = [node(group, index) for index in range(int(group.scaling_config["desiredSize"]))]
    for entry in wanted:
        if entry["metadata"]["name"] not in present:
            store.create(NODE, "", entry)
        present.discard(entry["metadata"]["name"])
    for name in present:
        _remove(name)


def remove(group: Any) -> None:
    """Take all of a group's nodes away."""
    store = CLUSTER.running.store
    for entry in store.list(NODE, labels=f"{GROUP_LABEL}={group.nodegroup_name}"):
        _remove(entry["metadata"]["name"])


def _remove(name: str) -> None:
    store = CLUSTER.running.store
    store.remove(NODE, "", name)
    for pod in store.list(POD, fields=f"spec.nodeName={name}"):
        try:
            store.delete(POD, pod["metadata"]["namespace"], pod["metadata"]["name"])
        except errors.ApiError:
            continue  # gone by itself
