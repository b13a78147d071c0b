"""ResourceQuotas: what a namespace may request, and how many objects it may have.

From kubernetes.io/docs/concepts/policy/resource-quotas and the API server's plug-in (apiserver,
plugin/pkg/admission/resourcequota, controller.go): a quota is looked at when an object is created.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from trainium_emulators.kubernetes import errors
from trainium_emulators.kubernetes.resources import POD, QUOTA, SERVICE, Json, Kind
from trainium_emulators.kubernetes.scheduling import Amounts, pod_requests, quantity, total
from trainium_emulators.kubernetes.store import Store

_COUNTED = frozenset(
    {"configmaps", "persistentvolumeclaims", "pods", "resourcequotas", "secrets", "services"}
)
"""Plurals that a quota names by themselves; the others are ``count/<plural>.<group>``."""
_FROM_OUTSIDE = ("NodePort", "LoadBalancer")
_MIB = 2**20


def check(store: Store, kind: Kind, entry: Json) -> None:
    """Refuse an object with which a quota of its namespace would be exceeded."""
    metadata = entry["metadata"]
    wanted = usage(kind, entry)
    for quota in store.list(QUOTA, metadata["namespace"]):
        name = quota["metadata"]["name"]
        hard = {key: quantity(most) for key, most in quota["spec"]["hard"].items()}
        if kind == POD:
            _check_said(name, hard, wanted, entry)
        used = total(
            usage(kind, other)
            for other in store.list(kind, metadata["namespace"])
            if kind != POD or other["status"]["phase"] in ("Pending", "Running")
        )
        over = [
            key
            for key, most in hard.items()
            if wanted.get(key) and wanted[key] + used.get(key, 0) > most
        ]
        if over:
            what = {
                "requested": {key: wanted[key] for key in over},
                "used": {key: used.get(key, Fraction()) for key in over},
                "limited": {key: hard[key] for key in over},
            }
            words = ", ".join(f"{verb}: {_listed(amounts)}" for verb, amounts in what.items())
            raise errors.forbidden(kind, metadata["name"], f"exceeded quota: {name}, {words}")


def usage(kind: Kind, entry: Json) -> Amounts:
    """What an object takes of a quota, by the quota's names."""
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
        if type_ in _FROM_OUTSIDE:
            counted["services.nodeports"] = Fraction(len(entry["spec"].get("ports") or ()))
    return counted


def _check_said(quota: str, hard: Mapping[str, Fraction], wanted: Amounts, pod: Json) -> None:
    """Of processor and memory every container says how much, once the quota limits them."""
    keys = [f"requests.{name}" for name in ("cpu", "memory")]
    silent = [key for key in keys if key in hard and key not in wanted]
    if silent:
        container = pod["spec"]["containers"][0]["name"]
        words = "; ".join(f"{key} for: {container}" for key in silent)
        why = f"failed quota: {quota}: must specify {words}"
        raise errors.forbidden(POD, pod["metadata"]["name"], why)


def _listed(amounts: Mapping[str, Fraction]) -> str:
    return ",".join(f"{key}={_text(key, amounts[key])}" for key in sorted(amounts))


def _text(key: str, amount: Fraction) -> str:
    if key.endswith("memory") and amount and amount % _MIB == 0:
        return f"{amount / _MIB}Mi"
    return str(amount) if amount.denominator == 1 else f"{amount * 1000}m"
