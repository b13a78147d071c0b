"""Lists what the Kubernetes API server holds, to prove that destroy took everything out of it."""

from __future__ import annotations

import json
import urllib.request

from rehearsal.leftovers import Item

_KINDS = {
    "namespace": "/api/v1/namespaces",
    "node": "/api/v1/nodes",
    "pod": "/api/v1/pods",
    "service": "/api/v1/services",
    "config map": "/api/v1/configmaps",
    "secret": "/api/v1/secrets",
    "service account": "/api/v1/serviceaccounts",
    "volume": "/api/v1/persistentvolumes",
    "volume claim": "/api/v1/persistentvolumeclaims",
    "deployment": "/apis/apps/v1/deployments",
    "daemon set": "/apis/apps/v1/daemonsets",
    "Volcano job": "/apis/batch.volcano.sh/v1alpha1/jobs",
    "pod group": "/apis/scheduling.volcano.sh/v1beta1/podgroups",
    "queue": "/apis/scheduling.volcano.sh/v1beta1/queues",
}
SERVICE = "kubernetes"
_LIMIT_S = 30.0


def take_inventory(endpoint: str | None) -> frozenset[Item]:
    """All objects of these kinds; none where no cluster was made."""
    if endpoint is None:
        return frozenset()
    return frozenset(
        Item(SERVICE, kind, name)
        for kind, path in _KINDS.items()
        for name in _names(endpoint, path)
    )


def _names(endpoint: str, path: str) -> list[str]:
    # Loopback: never through a proxy of the user's.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(endpoint + path, timeout=_LIMIT_S) as answer:
        items = json.load(answer)["items"]
    names = []
    for item in items:
        metadata = item["metadata"]
        place = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
        names.append(place + metadata["name"])
    return names
