"""The objects that the stack creates in the cluster, as plain data; the tests validate them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainium_catalogue import kubernetes
from trainium_catalogue.contract import LUSTRE_MOUNT
from trainium_catalogue.instances import InstanceType
from trainium_constructs.lustre import LustreMount

Manifest = dict[str, Any]

_LUSTRE_SIZE: Mapping[str, Any] = {
    # Fixed, whatever the file system's size: nothing enforces it here, and the claim of a volume
    # that was not provisioned can never grow (Kubernetes, expanding persistent volume claims).
    "capacity": {"storage": "1200Gi"},
    "accessModes": ["ReadWriteMany"],
    # No class: nothing is to be provisioned.
    "storageClassName": "",
}

# CPUs besides the nodes' pods: for pods that a user starts to look around.
_SPARE_CPUS = 16
_SPARE_MEMORY_MIB = 65_536


def namespace(name: str, *, deployment: str, enforce: str, kubernetes_version: str) -> Manifest:
    """A namespace with Pod Security labels; what is not enforced is still reported."""
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
    """Add up the requests of the pods of all nodes."""
    return {
        name: f"{nodes * int(quantity.removesuffix('Mi'))}{'Mi' if quantity.endswith('Mi') else ''}"
        for name, quantity in kubernetes.pod_resources(instance_type).items()
    }


def resource_quota(instance_type: InstanceType, max_nodes: int) -> Manifest:
    """Limit the namespace to the node group's capacity, and allow no access from outside."""
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
    """The jobs' queue, as large as all nodes, so that a larger gang waits outside."""
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
    """An account whose pods get AWS credentials, and the cluster's only on request."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": namespace},
        "automountServiceAccountToken": False,
    }


def lustre_name(mount: LustreMount) -> str:
    """Name of the volume and of its claim, new for another file system.

    Kubernetes refuses another source for a volume, and another volume for a claim.
    """
    return f"{kubernetes.LUSTRE_CLAIM}-{mount.file_system_id}-{mount.mount_name}"


def lustre_volume(mount: LustreMount) -> Manifest:
    """A volume for the file system, which exists before the cluster and independently of it."""
    name = lustre_name(mount)
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            **_LUSTRE_SIZE,
            "volumeMode": "Filesystem",
            "persistentVolumeReclaimPolicy": "Retain",
            # flock: writers of HDF5 or SQLite lock their files.
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
    """The claim that pods mount."""
    name = lustre_name(mount)
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": kubernetes.NAMESPACE},
        "spec": {
            "accessModes": _LUSTRE_SIZE["accessModes"],
            "storageClassName": _LUSTRE_SIZE["storageClassName"],
            "volumeName": name,
            "resources": {"requests": _LUSTRE_SIZE["capacity"]},
        },
    }


def lustre_mounts(mount: LustreMount) -> tuple[Manifest, Manifest]:
    """A pod's volume and its container's read-only mount of the claim."""
    volume = {"name": "lustre", "persistentVolumeClaim": {"claimName": lustre_name(mount)}}
    return volume, {"name": "lustre", "mountPath": LUSTRE_MOUNT, "readOnly": True}


def node_request() -> Manifest:
    """An empty ConfigMap in which users ask the node scaler for a number of nodes."""
    metadata = {"name": kubernetes.NODE_REQUEST, "namespace": kubernetes.NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


SUBMITTER = "trainium-submitter"

_READ = ["get", "list", "watch"]
# Since Kubernetes 1.35 a websocket's GET also needs the right to create (feature gate
# AuthorizePodWebsocketUpgradeCreatePermission); before, either one was enough.
_CONNECT = ["get", "create"]


def submitters() -> list[Manifest]:
    """A role in the jobs' namespace and a cluster role, both bound to the group.

    Whoever may create jobs can run any image as any service account of the namespace, and whoever
    may enter pods can use their credentials: for the bucket, but for nothing of the cluster's own.
    """
    return [
        _role(
            "Role",
            [
                # delete and the status: for torchx delete and cancel, and for a job between two
                # attempts, which Volcano leaves alone until its phase is changed.
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
    """Metadata that places an object in the jobs' namespace, unless its kind has none."""
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
