"""Kinds of objects that the server stores; all others are "not found", as in a cluster.

Names, short names and scopes are Kubernetes 1.35's (``kubectl api-resources``) and Volcano 1.15.1's
(config/crd/volcano/bases).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiResource:
    """A kind of object that the API serves."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    short: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        """Group and version, as in a manifest."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def is_custom(self) -> bool:
        """True for kinds defined by a CustomResourceDefinition."""
        return "." in self.group and not self.group.endswith(".k8s.io")

    @property
    def reference(self) -> str:
        """Name used in messages, such as ``jobs.batch.volcano.sh`` or ``pods``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


_TABLE: Mapping[tuple[str, str], tuple[str, ...]] = {
    # kind, plural and short names; a leading ! marks a cluster-scoped kind
    ("", "v1"): (
        "Pod pods po",
        "Service services svc",
        "ConfigMap configmaps cm",
        "Secret secrets",
        "ServiceAccount serviceaccounts sa",
        "ResourceQuota resourcequotas quota",
        "LimitRange limitranges limits",
        "PersistentVolumeClaim persistentvolumeclaims pvc",
        "Event events ev",
        "!PersistentVolume persistentvolumes pv",
        "!Namespace namespaces ns",
        "!Node nodes no",
    ),
    ("apps", "v1"): ("Deployment deployments deploy", "DaemonSet daemonsets ds"),
    ("batch", "v1"): ("Job jobs", "CronJob cronjobs cj"),
    ("networking.k8s.io", "v1"): ("NetworkPolicy networkpolicies netpol",),
    ("rbac.authorization.k8s.io", "v1"): (
        "Role roles",
        "RoleBinding rolebindings",
        "!ClusterRole clusterroles",
        "!ClusterRoleBinding clusterrolebindings",
    ),
    ("storage.k8s.io", "v1"): ("!StorageClass storageclasses sc",),
    ("scheduling.k8s.io", "v1"): ("!PriorityClass priorityclasses pc",),
    ("batch.volcano.sh", "v1alpha1"): ("Job jobs vcjob vj",),
    ("bus.volcano.sh", "v1alpha1"): ("Command commands",),
    ("scheduling.volcano.sh", "v1beta1"): (
        "PodGroup podgroups pg",
        "!Queue queues q",
    ),
}


def _kind(group: str, version: str, row: str) -> ApiResource:
    name, plural, *short = row.split()
    return ApiResource(
        group=group,
        version=version,
        kind=name.removeprefix("!"),
        plural=plural,
        namespaced=not name.startswith("!"),
        short=tuple(short),
    )


BUILT_IN: tuple[ApiResource, ...] = tuple(
    _kind(group, version, row) for (group, version), rows in _TABLE.items() for row in rows
)


def _built_in(api_version: str, kind: str) -> ApiResource:
    (resource,) = (k for k in BUILT_IN if (k.api_version, k.kind) == (api_version, kind))
    return resource


POD = _built_in("v1", "Pod")
SERVICE = _built_in("v1", "Service")
CONFIG_MAP = _built_in("v1", "ConfigMap")
NAMESPACE = _built_in("v1", "Namespace")
NODE = _built_in("v1", "Node")
EVENT = _built_in("v1", "Event")
ACCOUNT = _built_in("v1", "ServiceAccount")
QUOTA = _built_in("v1", "ResourceQuota")
CLAIM = _built_in("v1", "PersistentVolumeClaim")
VOLUME = _built_in("v1", "PersistentVolume")
DAEMON_SET = _built_in("apps/v1", "DaemonSet")
DEPLOYMENT = _built_in("apps/v1", "Deployment")
ROLE = _built_in("rbac.authorization.k8s.io/v1", "Role")
ROLE_BINDING = _built_in("rbac.authorization.k8s.io/v1", "RoleBinding")
CLUSTER_ROLE = _built_in("rbac.authorization.k8s.io/v1", "ClusterRole")
CLUSTER_ROLE_BINDING = _built_in("rbac.authorization.k8s.io/v1", "ClusterRoleBinding")
VOLCANO_JOB = _built_in("batch.volcano.sh/v1alpha1", "Job")
COMMAND = _built_in("bus.volcano.sh/v1alpha1", "Command")
POD_GROUP = _built_in("scheduling.volcano.sh/v1beta1", "PodGroup")
QUEUE = _built_in("scheduling.volcano.sh/v1beta1", "Queue")
