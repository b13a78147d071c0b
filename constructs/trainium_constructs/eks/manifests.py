"""Manifests of the objects that the stack creates in the cluster, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainium_catalogue import kubernetes
from trainium_catalogue.instances import InstanceType
from trainium_constructs.lustre import LustreMount

Manifest = dict[str, Any]

_LUSTRE_VOLUME: Mapping[str, Any] = {
    # Fixed, regardless of the file system's size: it is not enforced, and a claim bound to a
    # statically provisioned volume cannot grow (Kubernetes, expanding persistent volume claims).
    "capacity": {"storage": "1200Gi"},
    "accessModes": ["ReadWriteMany"],
    # Disables dynamic provisioning.
    "storageClassName": "",
}

# Headroom for a user's debugging pods.
_SPARE_CPUS = 16
_SPARE_MEMORY_MIB = 65_536


def namespace(name: str, *, deployment: str, enforce: str, kubernetes_version: str) -> Manifest:
    """Build a namespace with Pod Security labels, which audit and warn at level restricted."""
    version = f"v{kubernetes_version}"
    levels = {"enforce": enforce, "audit": "restricted", "warn": "restricted"}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "labels": {
                kubernetes.LABEL_DEPLOYMENT: deployment,
                **{
                    f"pod-security.kubernetes.io/{mode}{suffix}": value
                    for mode, level in levels.items()
                    for suffix, value in (("", level), ("-version", version))
                },
            },
        },
    }


def total_resources(instance_type: InstanceType, nodes: int) -> dict[str, str]:
    """Add up the resource requests of the pods on all nodes."""
    return {
        name: f"{nodes * int(quantity.removesuffix('Mi'))}{'Mi' if quantity.endswith('Mi') else ''}"
        for name, quantity in kubernetes.pod_resources(instance_type).items()
    }


def resource_quota(instance_type: InstanceType, max_nodes: int) -> Manifest:
    """Limit the namespace to all nodes plus headroom; forbid LoadBalancer and NodePort Services."""
    total = total_resources(instance_type, max_nodes)
    cpu = int(total.pop("cpu")) + _SPARE_CPUS
    memory = int(total.pop("memory").removesuffix("Mi")) + _SPARE_MEMORY_MIB
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "trainium", "namespace": kubernetes.NAMESPACE},
        "spec": {
            "hard": {
                "requests.cpu": str(cpu),
                "requests.memory": f"{memory}Mi",
                **{f"requests.{name}": quantity for name, quantity in total.items()},
                "persistentvolumeclaims": "4",
                "services.loadbalancers": "0",
                "services.nodeports": "0",
            }
        },
    }


def volcano_queue(instance_type: InstanceType, max_nodes: int) -> Manifest:
    """Build the jobs' queue, which admits no gang larger than the capacity of all nodes."""
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": kubernetes.QUEUE},
        "spec": {
            "weight": 1,
            "reclaimable": False,
            "capability": total_resources(instance_type, max_nodes),
        },
    }


def service_account(name: str, *, namespace: str = kubernetes.NAMESPACE) -> Manifest:
    """Build a service account whose pods mount no API token unless they opt in."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": namespace},
        "automountServiceAccountToken": False,
    }


def lustre_name(mount: LustreMount) -> str:
    """Return the name of the volume and of its claim, which depends on the file system.

    Both are replaced with it: the source of a volume and the volume of a claim are immutable.
    """
    return f"{kubernetes.LUSTRE_CLAIM}-{mount.file_system_id}-{mount.mount_name}"


def lustre_volume(mount: LustreMount) -> Manifest:
    """Build a volume for the file system, which exists independently of the cluster."""
    name = lustre_name(mount)
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            **_LUSTRE_VOLUME,
            "volumeMode": "Filesystem",
            "persistentVolumeReclaimPolicy": "Retain",
            # flock: HDF5 and SQLite lock the files that they open.
            "mountOptions": ["flock"],
            "claimRef": {"name": name, "namespace": kubernetes.NAMESPACE},
            "csi": {
                "driver": "fsx.csi.aws.com",
                "volumeHandle": mount.file_system_id,
                "volumeAttributes": {"dnsname": mount.dns_name, "mountname": mount.mount_name},
            },
        },
    }


def lustre_claim(mount: LustreMount) -> Manifest:
    """Build the claim that pods mount."""
    name = lustre_name(mount)
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": kubernetes.NAMESPACE},
        "spec": {
            "accessModes": _LUSTRE_VOLUME["accessModes"],
            "storageClassName": _LUSTRE_VOLUME["storageClassName"],
            "volumeName": name,
            "resources": {"requests": _LUSTRE_VOLUME["capacity"]},
        },
    }


def node_request() -> Manifest:
    """Build an empty ConfigMap in which users request a number of nodes."""
    metadata = {"name": kubernetes.NODE_REQUEST, "namespace": kubernetes.NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


SUBMITTER = "trainium-submitter"

_READ = ["get", "list", "watch"]
# Since Kubernetes 1.35, a WebSocket GET request also needs the verb create (feature gate
# AuthorizePodWebsocketUpgradeCreatePermission); before, either verb was enough.
_CONNECT = ["get", "create"]


def submitters() -> list[Manifest]:
    """Build a role in the jobs' namespace and a cluster role, both bound to the submitters' group.

    A user who may create jobs can run any image as any service account of the namespace, and a
    user who may exec into pods can use their credentials: for the bucket, not for the cluster.
    """
    return [
        _role(
            "Role",
            [
                # For torchx delete and cancel. Cancel writes the status, as does stopping a job
                # between attempts, when Volcano ignores commands.
                _rule("batch.volcano.sh", ["jobs"], [*_READ, "create", "patch", "delete"]),
                _rule("batch.volcano.sh", ["jobs/status"], ["get", "update", "patch"]),
                _rule("bus.volcano.sh", ["commands"], ["create"]),
                _rule("scheduling.volcano.sh", ["podgroups"], ["get"]),
                _rule("", ["pods"], _READ),
                _rule("", ["pods/log"], ["get"]),
                _rule("", ["pods/exec"], _CONNECT),
                _rule("", ["events"], ["list"]),
                _rule("", ["resourcequotas"], ["get", "list"]),
                {
                    **_rule("", ["configmaps"], ["get", "patch"]),
                    "resourceNames": [kubernetes.NODE_REQUEST],
                },
            ],
        ),
        _binding("RoleBinding", "Role"),
        _role(
            "ClusterRole",
            [
                _rule("", ["nodes"], ["get", "list"]),
                _rule("scheduling.volcano.sh", ["queues"], ["get"]),
            ],
        ),
        _binding("ClusterRoleBinding", "ClusterRole"),
    ]


def _metadata(kind: str) -> Manifest:
    """Build metadata in the jobs' namespace, unless the kind is cluster-scoped."""
    inside = {} if kind.startswith("Cluster") else {"namespace": kubernetes.NAMESPACE}
    return {"name": SUBMITTER, **inside}


def _role(kind: str, rules: list[Manifest]) -> Manifest:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": _metadata(kind),
        "rules": rules,
    }


def _rule(group: str, resources: list[str], verbs: list[str]) -> Manifest:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}


def _binding(kind: str, role: str) -> Manifest:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": _metadata(kind),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": SUBMITTER},
        "subjects": [
            {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "Group",
                "name": kubernetes.SUBMITTERS,
            }
        ],
    }
