"""What somebody who submits jobs may do in the cluster: what the commands call, and no more."""

from __future__ import annotations

from trainium_catalogue import kubernetes
from trainium_constructs.eks.manifests import Manifest

NAME = "trainium-submitter"

_READ = ["get", "list", "watch"]
# From Kubernetes 1.35 on a websocket's GET needs the right to create too (feature gate
# AuthorizePodWebsocketUpgradeCreatePermission); before, one of the two decided.
_CONNECT = ["get", "create"]


def submitters() -> list[Manifest]:
    """A role in the jobs' namespace, and one for what belongs to none, both bound to the group.

    Who may create jobs can run any image as any service account of the namespace, and who may
    enter pods can take what those have: the bucket, but nothing of the cluster's own.
    """
    return [
        _role(
            "Role",
            [
                # delete and the status: torchx delete and cancel, and a job between two attempts,
                # which Volcano leaves alone until its phase is changed.
                _rule("batch.volcano.sh", ["jobs"], [*_READ, "create", "patch", "delete"]),
                _rule("batch.volcano.sh", ["jobs/status"], ["get", "update", "patch"]),
                _rule("bus.volcano.sh", ["commands"], ["create"]),
                _rule("scheduling.volcano.sh", ["podgroups"], ["get"]),
                _rule("", ["pods"], _READ),
                _rule("", ["pods/log"], ["get"]),
                _rule("", ["pods/exec", "pods/portforward"], _CONNECT),
                _rule("", ["events"], ["list"]),
                _rule("", ["resourcequotas"], ["get", "list"]),
                _rule("", ["services"], ["get"]),
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
    """In the jobs' namespace, unless the kind belongs to none."""
    inside = {} if kind.startswith("Cluster") else {"namespace": kubernetes.NAMESPACE}
    return {"name": NAME, **inside}


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
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": NAME},
        "subjects": [
            {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "Group",
                "name": kubernetes.SUBMITTERS,
            }
        ],
    }
