"""What the API server and its webhooks add to new objects."""

from __future__ import annotations

from rehearsal.kubernetes import errors
from rehearsal.kubernetes.pod_security import violations
from rehearsal.kubernetes.resources import (
    ACCOUNT,
    CLAIM,
    NAMESPACE,
    POD,
    QUEUE,
    QUOTA,
    SERVICE,
    VOLCANO_JOB,
    Json,
    Kind,
)
from rehearsal.kubernetes.scheduling import pod_requests, quantity, total
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
    _check_security(store, entry)
    _check_account(store, entry)
    _check_quotas(store, entry)
    return {**entry, "spec": spec, "status": {"phase": "Pending"}}


def _check_security(store: Store, pod: Json) -> None:
    namespace = store.get(NAMESPACE, "", pod["metadata"]["namespace"])
    found = violations(namespace, pod["spec"])
    if found:
        why = f"violates PodSecurity: {', '.join(found)}"
        raise errors.forbidden(pod["metadata"]["name"], why)


def _check_account(store: Store, pod: Json) -> None:
    """Every namespace has an account called default; others have to be there."""
    namespace, name = pod["metadata"]["namespace"], pod["spec"].get("serviceAccountName")
    if name not in (None, "", "default") and store.find(ACCOUNT, namespace, name) is None:
        raise errors.forbidden(
            pod["metadata"]["name"],
            f"error looking up service account {namespace}/{name}: "
            f'serviceaccount "{name}" not found',
        )


def _check_quotas(store: Store, pod: Json) -> None:
    """What a ResourceQuota says of pods (apiserver, plugin/pkg/admission/resourcequota).

    Of processor and memory every container has to say how much, once the quota limits them.
    """
    metadata = pod["metadata"]
    wanted = pod_requests(pod["spec"])
    for quota in store.list(QUOTA, metadata["namespace"]):
        name = quota["metadata"]["name"]
        hard = {
            key.removeprefix("requests."): quantity(most)
            for key, most in quota["spec"]["hard"].items()
            if key.startswith("requests.")
        }
        silent = [key for key in ("cpu", "memory") if key in hard and key not in wanted]
        if silent:
            words = "; ".join(f"requests.{key} for: {_container(pod)}" for key in silent)
            raise errors.forbidden(metadata["name"], f"failed quota: {name}: must specify {words}")
        used = total(
            pod_requests(other["spec"])
            for other in store.list(POD, metadata["namespace"])
            if other["status"]["phase"] in ("Pending", "Running")
        )
        over = [
            f"requests.{key}"
            for key, most in hard.items()
            if key in wanted and wanted[key] + used.get(key, 0) > most
        ]
        if over:
            raise errors.forbidden(metadata["name"], f"exceeded quota: {name}: {', '.join(over)}")


def _container(pod: Json) -> str:
    return str(pod["spec"]["containers"][0]["name"])


ADMISSIONS: dict[Kind, Admission] = {
    CLAIM: _with_status("Bound"),
    NAMESPACE: _with_status("Active"),
    POD: _pod,
    QUEUE: _with_status("Open", "state"),
    SERVICE: _service,
    VOLCANO_JOB: admit,
}
