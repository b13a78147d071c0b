"""What the API server and its webhooks add to new objects."""

from __future__ import annotations

from trainium_emulators.kubernetes import errors, quotas
from trainium_emulators.kubernetes.pod_security import violations
from trainium_emulators.kubernetes.resources import (
    ACCOUNT,
    CLAIM,
    CONFIG_MAP,
    NAMESPACE,
    POD,
    QUEUE,
    SERVICE,
    VOLCANO_JOB,
    VOLUME,
    Json,
    Kind,
)
from trainium_emulators.kubernetes.store import Admission, Store
from trainium_emulators.kubernetes.volcano_rules import admit
from trainium_emulators.kubernetes.volumes import admit_claim, admit_volume


def _with_status(phase: str, key: str = "phase") -> Admission:
    def complete(store: Store, entry: Json) -> Json:
        return {**entry, "status": {key: phase, **entry.get("status", {})}}

    return complete


def _service(store: Store, entry: Json) -> Json:
    """An address of the cluster's own, as EKS gives them by default."""
    spec = {"type": "ClusterIP", **entry["spec"]}
    number = len(store.list(SERVICE)) + 10
    spec.setdefault("clusterIP", f"10.100.{number // 250}.{number % 250}")
    quotas.check(store, SERVICE, {**entry, "spec": spec})
    return {**entry, "spec": spec}


def _pod(store: Store, entry: Json) -> Json:
    spec = {"restartPolicy": "Always", "terminationGracePeriodSeconds": 30, **entry["spec"]}
    _check_security(store, entry)
    _check_account(store, entry)
    quotas.check(store, POD, entry)
    return {**entry, "spec": spec, "status": {"phase": "Pending"}}


def _check_security(store: Store, pod: Json) -> None:
    namespace = store.get(NAMESPACE, "", pod["metadata"]["namespace"])
    found = violations(namespace, pod["spec"])
    if found:
        why = f"violates PodSecurity: {', '.join(found)}"
        raise errors.forbidden(POD, pod["metadata"]["name"], why)


def _check_account(store: Store, pod: Json) -> None:
    """Every namespace has an account called default; others have to be there."""
    namespace, name = pod["metadata"]["namespace"], pod["spec"].get("serviceAccountName")
    if name not in (None, "", "default") and store.find(ACCOUNT, namespace, name) is None:
        raise errors.forbidden(
            POD,
            pod["metadata"]["name"],
            f"error looking up service account {namespace}/{name}: "
            f'serviceaccount "{name}" not found',
        )


def _claim(store: Store, entry: Json) -> Json:
    quotas.check(store, CLAIM, entry)
    return admit_claim(store, entry)


def _job(store: Store, entry: Json) -> Json:
    entry = admit(store, entry)
    quotas.check(store, VOLCANO_JOB, entry)
    return entry


def _counted(kind: Kind) -> Admission:
    """Nothing is added; a quota may count it."""

    def count(store: Store, entry: Json) -> Json:
        quotas.check(store, kind, entry)
        return entry

    return count


ADMISSIONS: dict[Kind, Admission] = {
    CLAIM: _claim,
    CONFIG_MAP: _counted(CONFIG_MAP),
    NAMESPACE: _with_status("Active"),
    POD: _pod,
    QUEUE: _with_status("Open", "state"),
    SERVICE: _service,
    VOLCANO_JOB: _job,
    VOLUME: admit_volume,
}
