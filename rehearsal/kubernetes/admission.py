"""What the API server and its webhooks add to new objects."""

from __future__ import annotations

from rehearsal.kubernetes.resources import (
    CLAIM,
    NAMESPACE,
    POD,
    QUEUE,
    SERVICE,
    VOLCANO_JOB,
    Json,
    Kind,
)
from rehearsal.kubernetes.store import Admission, Store
from rehearsal.kubernetes.volcano_rules import admit


def _with_status(phase: str, key: str = "phase") -> Admission:
    def complete(store: Store, entry: Json) -> Json:
        return {**entry, "status": {key: phase, **entry.get("status", {})}}

    return complete


def _service(store: Store, entry: Json) -> Json:
    """An address of the cluster's own, as EKS gives them by default."""
    spec = {"type": "ClusterIP", **entry["spec"]}
    number = len(store.list(SERVICE)) + 10
    spec.setdefault("clusterIP", f"10.100.{number // 250}.{number % 250}")
    return {**entry, "spec": spec}


def _pod(store: Store, entry: Json) -> Json:
    spec = {"restartPolicy": "Always", "terminationGracePeriodSeconds": 30, **entry["spec"]}
    return {**entry, "spec": spec, "status": {"phase": "Pending"}}


ADMISSIONS: dict[Kind, Admission] = {
    CLAIM: _with_status("Bound"),
    NAMESPACE: _with_status("Active"),
    POD: _pod,
    QUEUE: _with_status("Open", "state"),
    SERVICE: _service,
    VOLCANO_JOB: admit,
}
