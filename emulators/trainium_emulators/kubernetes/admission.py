"""Admission of new objects: defaults, quotas, Pod Security, and Volcano's webhooks.

Quotas follow kubernetes.io/docs/concepts/policy/resource-quotas and the API server's plugin
(apiserver, plugin/pkg/admission/resourcequota, controller.go), which checks quotas when an object
is created. Baseline is the only Pod Security level implemented, and also stands in for Restricted
(kubernetes.io/docs/concepts/security/pod-security-standards).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction

from trainium_emulators.kubernetes import errors
from trainium_emulators.kubernetes.quantities import Amounts, pod_requests, quantity, total
from trainium_emulators.kubernetes.resources import (
    ACCOUNT,
    CLAIM,
    CONFIG_MAP,
    EVENT,
    NAMESPACE,
    POD,
    QUEUE,
    QUOTA,
    SERVICE,
    VOLCANO_JOB,
    VOLUME,
    ApiResource,
    Json,
)
from trainium_emulators.kubernetes.store import Admission, Store
from trainium_emulators.kubernetes.volcano_rules import admit
from trainium_emulators.kubernetes.volumes import admit_claim, admit_volume

_COUNTED = frozenset(
    {"configmaps", "persistentvolumeclaims", "pods", "resourcequotas", "secrets", "services"}
)
"""Plurals that a quota names directly; the others are ``count/<plural>.<group>``."""
_EXTERNAL_TYPES = ("NodePort", "LoadBalancer")
_MIB = 2**20
LABEL = "pod-security.kubernetes.io/enforce"
_CAPABILITIES = frozenset(
    [
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ]
)
_SYSCTLS = frozenset(
    {
        "kernel.shm_rmid_forced",
        *(
            f"net.ipv4.{name}"
            for name in [
                "ip_local_port_range",
                "ip_local_reserved_ports",
                "ip_unprivileged_port_start",
                "ping_group_range",
                "tcp_fin_timeout",
                "tcp_keepalive_intvl",
                "tcp_keepalive_probes",
                "tcp_keepalive_time",
                "tcp_syncookies",
            ]
        ),
    }
)


def check_quotas(store: Store, kind: ApiResource, entry: Json) -> None:
    """Refuse an object that would exceed a quota of its namespace."""
    metadata = entry["metadata"]
    wanted = usage(kind, entry)
    for quota in store.list(QUOTA, metadata["namespace"]):
        name = quota["metadata"]["name"]
        hard = {key: quantity(limit) for key, limit in quota["spec"]["hard"].items()}
        if kind == POD:
            _require_requests(name, hard, wanted, entry)
        used = total(
            usage(kind, other)
            for other in store.list(kind, metadata["namespace"])
            if kind != POD or other["status"]["phase"] in ("Pending", "Running")
        )
        over = [
            key
            for key, limit in hard.items()
            if wanted.get(key) and wanted[key] + used.get(key, 0) > limit
        ]
        if over:
            amounts_by_verb = {
                "requested": {key: wanted[key] for key in over},
                "used": {key: used.get(key, Fraction()) for key in over},
                "limited": {key: hard[key] for key in over},
            }
            detail = ", ".join(
                f"{verb}: {_format_amounts(amounts)}" for verb, amounts in amounts_by_verb.items()
            )
            raise errors.forbidden(kind, metadata["name"], f"exceeded quota: {name}, {detail}")


def usage(kind: ApiResource, entry: Json) -> Amounts:
    """Return an object's quota usage, by the quota's resource names."""
    one = Fraction(1)
    counted = {f"count/{kind.reference}": one}
    if kind.plural in _COUNTED and not kind.group:
        counted[kind.plural] = one
    if kind == POD:
        requests = pod_requests(entry["spec"])
        return {**counted, **{f"requests.{name}": amount for name, amount in requests.items()}}
    if kind == SERVICE:
        type_ = entry["spec"].get("type", "ClusterIP")
        if type_ == "LoadBalancer":
            counted["services.loadbalancers"] = one
        if type_ in _EXTERNAL_TYPES:
            counted["services.nodeports"] = Fraction(len(entry["spec"].get("ports") or ()))
    return counted


def _require_requests(quota: str, hard: Mapping[str, Fraction], wanted: Amounts, pod: Json) -> None:
    """Require requests for CPU and memory if the quota limits them."""
    keys = [f"requests.{name}" for name in ("cpu", "memory")]
    missing = [key for key in keys if key in hard and key not in wanted]
    if missing:
        container = pod["spec"]["containers"][0]["name"]
        required = "; ".join(f"{key} for: {container}" for key in missing)
        why = f"failed quota: {quota}: must specify {required}"
        raise errors.forbidden(POD, pod["metadata"]["name"], why)


def _format_amounts(amounts: Mapping[str, Fraction]) -> str:
    return ",".join(f"{key}={_text(key, amounts[key])}" for key in sorted(amounts))


def _text(key: str, amount: Fraction) -> str:
    if key.endswith("memory") and amount and amount % _MIB == 0:
        return f"{amount / _MIB}Mi"
    return str(amount) if amount.denominator == 1 else f"{amount * 1000}m"


def violations(namespace: Json, spec: Json) -> list[str]:
    """List the fields of a pod that its namespace forbids."""
    level = (namespace["metadata"].get("labels") or {}).get(LABEL, "privileged")
    return [] if level == "privileged" else [*_pod_violations(spec), *_container_violations(spec)]


def _pod_violations(spec: Json) -> Iterator[str]:
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield f"host namespaces ({name}=true)"
    for volume in spec.get("volumes") or ():
        if "hostPath" in volume:
            yield f'hostPath volumes (volume "{volume["name"]}")'
    context = spec.get("securityContext") or {}
    for sysctl in context.get("sysctls") or ():
        if sysctl["name"] not in _SYSCTLS:
            yield f"forbidden sysctls ({sysctl['name']})"
    if (context.get("seccompProfile") or {}).get("type") == "Unconfined":
        yield "seccompProfile (Unconfined)"


def _container_violations(spec: Json) -> Iterator[str]:
    for container in (*spec["containers"], *(spec.get("initContainers") or ())):
        name, context = container["name"], container.get("securityContext") or {}
        if context.get("privileged"):
            yield f'privileged (container "{name}")'
        added = set((context.get("capabilities") or {}).get("add") or ()) - _CAPABILITIES
        if added:
            yield f'non-default capabilities (container "{name}": {", ".join(sorted(added))})'
        if any(port.get("hostPort") for port in container.get("ports") or ()):
            yield f'hostPort (container "{name}")'
        if (context.get("seccompProfile") or {}).get("type") == "Unconfined":
            yield f'seccompProfile (container "{name}": Unconfined)'


def _with_status(phase: str, key: str = "phase") -> Admission:
    def complete(store: Store, entry: Json) -> Json:
        return {**entry, "status": {key: phase, **entry.get("status", {})}}

    return complete


def _service(store: Store, entry: Json) -> Json:
    """Assign a service a cluster IP from EKS's default range."""
    spec = {"type": "ClusterIP", **entry["spec"]}
    number = len(store.list(SERVICE)) + 10
    spec.setdefault("clusterIP", f"10.100.{number // 250}.{number % 250}")
    check_quotas(store, SERVICE, {**entry, "spec": spec})
    return {**entry, "spec": spec}


def _pod(store: Store, entry: Json) -> Json:
    spec = {"restartPolicy": "Always", "terminationGracePeriodSeconds": 30, **entry["spec"]}
    _check_security(store, entry)
    _check_account(store, entry)
    check_quotas(store, POD, entry)
    return {**entry, "spec": spec, "status": {"phase": "Pending"}}


def _check_security(store: Store, pod: Json) -> None:
    namespace = store.get(NAMESPACE, "", pod["metadata"]["namespace"])
    violated = violations(namespace, pod["spec"])
    if violated:
        why = f"violates PodSecurity: {', '.join(violated)}"
        raise errors.forbidden(POD, pod["metadata"]["name"], why)


def _check_account(store: Store, pod: Json) -> None:
    """Require the pod's service account to exist; only "default" exists in every namespace."""
    namespace, name = pod["metadata"]["namespace"], pod["spec"].get("serviceAccountName")
    if name not in (None, "", "default") and store.find(ACCOUNT, namespace, name) is None:
        raise errors.forbidden(
            POD,
            pod["metadata"]["name"],
            f"error looking up service account {namespace}/{name}: "
            f'serviceaccount "{name}" not found',
        )


def _event(store: Store, entry: Json) -> Json:
    """Require an event to be in its object's namespace, or in "default" if the object has none.

    Source: the API server (pkg/apis/core/validation/events.go, legacyValidateEvent).
    """
    namespace = entry["involvedObject"].get("namespace", "")
    if entry["metadata"]["namespace"] != (namespace or "default"):
        cause = errors.StatusCause(
            field="involvedObject.namespace",
            reason="FieldValueInvalid",
            message=f'Invalid value: "{namespace}": does not match event.namespace',
        )
        raise errors.invalid(EVENT, entry["metadata"]["name"], cause)
    return entry


def _claim(store: Store, entry: Json) -> Json:
    check_quotas(store, CLAIM, entry)
    return admit_claim(store, entry)


def _job(store: Store, entry: Json) -> Json:
    entry = admit(store, entry)
    check_quotas(store, VOLCANO_JOB, entry)
    return entry


def _config_map(store: Store, entry: Json) -> Json:
    check_quotas(store, CONFIG_MAP, entry)
    return entry


ADMISSIONS: dict[ApiResource, Admission] = {
    CLAIM: _claim,
    CONFIG_MAP: _config_map,
    EVENT: _event,
    NAMESPACE: _with_status("Active"),
    POD: _pod,
    QUEUE: _with_status("Open", "state"),
    SERVICE: _service,
    VOLCANO_JOB: _job,
    VOLUME: admit_volume,
}
