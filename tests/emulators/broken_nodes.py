"""Breaks nodes of the emulated cluster."""

from __future__ import annotations

from trainium_catalogue import kubernetes
from trainium_emulators.kubernetes.nodes import STUCK
from trainium_emulators.kubernetes.resources import NODE, Json
from trainium_emulators.kubernetes.store import Store

_READY_TAINTS = {
    "False": "node.kubernetes.io/not-ready",
    "Unknown": "node.kubernetes.io/unreachable",
}
"""Taint for each status of the condition Ready (Kubernetes, pkg/controller/nodelifecycle,
nodeConditionToTaintKeyStatusMap)."""


def set_ready(store: Store, name: str, status: str) -> None:
    """Set a node's condition Ready to ``True``, ``False`` or ``Unknown``.

    ``Unknown``: the kubelet reports and terminates nothing; its containers keep running. The taints
    follow the node lifecycle controller: NoSchedule, and NoExecute, which evicts pods when their
    toleration of 300 seconds expires (``nodes.evict``).
    """

    def change(entry: Json) -> None:
        taints = [t for t in entry["spec"]["taints"] if t["key"] not in _READY_TAINTS.values()]
        if status != "True":
            key = _READY_TAINTS[status]
            taints += [{"key": key, "effect": effect} for effect in ("NoSchedule", "NoExecute")]
        entry["spec"]["taints"] = taints
        entry["status"]["conditions"] = [{"type": "Ready", "status": status}]

    store.update(NODE, "", name, change)


def lose_chips(store: Store, name: str) -> None:
    """Make the device plugin report a chip as unhealthy, so that pods get one fewer."""

    def change(entry: Json) -> None:
        allocatable = entry["status"]["allocatable"]
        left = int(allocatable[kubernetes.NEURON_RESOURCE]) - 1
        allocatable[kubernetes.NEURON_RESOURCE] = str(left)

    store.update(NODE, "", name, change)


def hold_pods(store: Store, name: str, *, held: bool = True) -> None:
    """Keep a Ready node's deleted pods Terminating, as if a process hung in the kernel.

    ``held=False`` lets them terminate.
    """

    def change(entry: Json) -> None:
        annotations = entry["metadata"].setdefault("annotations", {})
        annotations.pop(STUCK, None)
        annotations |= {STUCK: "true"} if held else {}

    store.update(NODE, "", name, change)
