"""The controller that binds claims to existing volumes; it never provisions any.

Sources: kubernetes.io/docs/concepts/storage/persistent-volumes (binding) and the controller
(kubernetes, pkg/controller/volume/persistentvolume/index.go, findBestMatchForClaim).
"""

from __future__ import annotations

from trainium_emulators.kubernetes.quantities import quantity
from trainium_emulators.kubernetes.resources import CLAIM, VOLUME, Json
from trainium_emulators.kubernetes.store import Store

UNBOUND = "pod has unbound immediate PersistentVolumeClaims"


def admit_claim(store: Store, claim: Json) -> Json:
    """Bind a new claim immediately if a matching volume exists; otherwise leave it pending."""
    volume = next((each for each in store.list(VOLUME) if _fits(each, claim)), None)
    if volume is None:
        return {**claim, "status": {"phase": "Pending"}}
    store.set_status(VOLUME, "", volume["metadata"]["name"], {"phase": "Bound"})
    return {**_with_volume(claim, volume), "status": {"phase": "Bound"}}


def admit_volume(store: Store, volume: Json) -> Json:
    """Bind a new volume to the claim waiting for it, if any."""
    for claim in store.list(CLAIM):
        if not is_bound(claim) and _fits(volume, claim):
            metadata = claim["metadata"]

            def bind(waiting: Json) -> Json:
                return {**_with_volume(waiting, volume), "status": {"phase": "Bound"}}

            store.update(CLAIM, metadata["namespace"], metadata["name"], bind)
            return {**volume, "status": {"phase": "Bound"}}
    return {**volume, "status": {"phase": "Available"}}


def is_bound(claim: Json) -> bool:
    """Return whether a claim is bound, so that pods can mount it."""
    return bool(claim.get("status", {}).get("phase") == "Bound")


def _with_volume(claim: Json, volume: Json) -> Json:
    name = volume["metadata"]["name"]
    return {**claim, "spec": {**claim["spec"], "volumeName": name}}


def _fits(volume: Json, claim: Json) -> bool:
    """Return whether a volume matches a claim by claimRef, name, class, access modes and size."""
    offer, wanted = volume["spec"], claim["spec"]
    metadata = claim["metadata"]
    reserved = offer.get("claimRef") or {}
    reserved_for = (reserved.get("namespace"), reserved.get("name"))
    if reserved and reserved_for != (metadata["namespace"], metadata["name"]):
        return False
    if not reserved and volume.get("status", {}).get("phase") == "Bound":
        return False
    if wanted.get("volumeName") not in (None, "", volume["metadata"]["name"]):
        return False
    size = (wanted.get("resources") or {}).get("requests", {}).get("storage", 0)
    return (
        (offer.get("storageClassName") or "") == (wanted.get("storageClassName") or "")
        and set(wanted.get("accessModes") or ()) <= set(offer.get("accessModes") or ())
        and quantity(offer["capacity"]["storage"]) >= quantity(size)
    )
