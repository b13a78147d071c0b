"""Lists in the form that kubectl prints: a ``Table`` with the columns of each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from trainium_emulators.kubernetes.resources import (
    DEPLOYMENT,
    NAMESPACE,
    NODE,
    POD,
    POD_GROUP,
    QUEUE,
    VOLCANO_JOB,
    Json,
    Kind,
)

Column = tuple[str, Callable[[Json], Any]]


def _status(*names: str) -> Callable[[Json], Any]:
    def value(entry: Json) -> Any:
        found: Any = entry.get("status", {})
        for name in names:
            found = (found or {}).get(name)
        return found

    return value


def _pod_status(entry: Json) -> str:
    """As kubectl says it: the phase, or why the container ended (printers, printPod)."""
    if "deletionTimestamp" in entry["metadata"]:
        return "Terminating"
    status = entry.get("status", {})
    reasons = [
        state["reason"]
        for container in status.get("containerStatuses", ())
        for state in (container["state"].get("terminated"), container["state"].get("waiting"))
        if state and state.get("reason")
    ]
    return str(status.get("reason") or (reasons or [status.get("phase", "Unknown")])[0])


def _ready(entry: Json) -> str:
    containers = entry.get("status", {}).get("containerStatuses", ())
    return f"{sum(c['ready'] for c in containers)}/{len(entry['spec']['containers'])}"


def _restarts(entry: Json) -> int:
    return sum(c["restartCount"] for c in entry.get("status", {}).get("containerStatuses", ()))


_COLUMNS: Mapping[Kind, Sequence[Column]] = {
    POD: (("Ready", _ready), ("Status", _pod_status), ("Restarts", _restarts)),
    # Volcano's additionalPrinterColumns (config/crd/volcano/bases, 1.15.1).
    VOLCANO_JOB: (
        ("STATUS", _status("state", "phase")),
        ("minAvailable", _status("minAvailable")),
        ("RUNNINGS", _status("running")),
    ),
    POD_GROUP: (
        ("STATUS", _status("phase")),
        ("minMember", lambda entry: entry["spec"].get("minMember")),
        ("RUNNINGS", _status("running")),
    ),
    QUEUE: (("PARENT", lambda entry: entry.get("spec", {}).get("parent")),),
    NAMESPACE: (("Status", _status("phase")),),
    NODE: (("Status", lambda entry: "Ready"), ("Version", _status("nodeInfo", "kubeletVersion"))),
    DEPLOYMENT: (
        (
            "Ready",
            lambda entry: (
                f"{entry.get('status', {}).get('readyReplicas', 0)}"
                f"/{entry['spec'].get('replicas', 1)}"
            ),
        ),
    ),
}


def table(kind: Kind, entries: Sequence[Json], *, version: int) -> Json:
    """The objects as rows."""
    columns = _COLUMNS.get(kind, ())
    names = ["Name", *(name for name, _ in columns), "Age"]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": str(version)},
        "columnDefinitions": [
            {
                "name": name,
                "type": "string",
                "format": "name" if name == "Name" else "",
                "description": "",
                "priority": 0,
            }
            for name in names
        ],
        "rows": [
            {
                "cells": [
                    entry["metadata"]["name"],
                    *(value(entry) for _, value in columns),
                    _age(entry),
                ],
                "object": {
                    "kind": "PartialObjectMetadata",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": entry["metadata"],
                },
            }
            for entry in entries
        ],
    }


def _age(entry: Json) -> str:
    created = datetime.fromisoformat(entry["metadata"]["creationTimestamp"])
    seconds = int((datetime.now(UTC) - created).total_seconds())
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
