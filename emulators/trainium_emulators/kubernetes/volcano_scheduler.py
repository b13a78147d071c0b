"""Volcano's scheduler: admits gangs, and binds all pods of a gang or none.

Source: Volcano 1.15.1, with its chart's configuration. The plugins overcommit and proportion decide
whether a gang gets pods at all; gang and predicates decide whether the pods are bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from trainium_emulators.kubernetes import volcano_objects
from trainium_emulators.kubernetes.kubelet import Kubelet
from trainium_emulators.kubernetes.nodes import admits
from trainium_emulators.kubernetes.quantities import (
    Amounts,
    amounts,
    job_requests,
    pod_requests,
    total,
)
from trainium_emulators.kubernetes.resources import CLAIM, NODE, POD, POD_GROUP, QUEUE, Json
from trainium_emulators.kubernetes.settings import EmulatorSettings
from trainium_emulators.kubernetes.store import Store, now
from trainium_emulators.kubernetes.volcano_rules import group_phase
from trainium_emulators.kubernetes.volumes import UNBOUND, is_bound

OVERCOMMIT = Fraction(12, 10)
"""Default of overcommit-factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterUsage:
    """Resources of all nodes of the cluster."""

    allocatable: Amounts
    used: Amounts
    """Used by all unfinished pods that have a node, including terminating pods."""
    waiting: Amounts
    """Requested by admitted gangs that have no nodes yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueUsage:
    """Resources of the gang's queue."""

    capability: Amounts
    """The queue's limits; a resource without an entry has none."""
    used: Amounts
    """Used by unfinished pods that have a node, excluding terminating pods."""
    waiting: Amounts


def refusal(wanted: Amounts, *, queue: QueueUsage, nodes: ClusterUsage | None) -> str | None:
    """Return Volcano's reason for not admitting a gang yet; None if it is admitted.

    First comes overcommit's JobEnqueueableFn, then proportion's, which limits a queue to the sum
    of all nodes. ``nodes`` is None when nodes are not counted.
    """
    if nodes is not None:
        over = [
            name
            for name, amount in wanted.items()
            if nodes.waiting.get(name, 0) + amount
            > nodes.allocatable.get(name, 0) * OVERCOMMIT - nodes.used.get(name, 0)
        ]
        if over:
            return _overused("resource in cluster is overused", "overused", over)
    over = [
        name
        for name, amount in wanted.items()
        if (most := _most(name, queue, nodes)) is not None
        and amount + queue.used.get(name, 0) + queue.waiting.get(name, 0) > most
    ]
    return _overused("queue resource quota insufficient", "insufficient", over) if over else None


def _most(name: str, queue: QueueUsage, nodes: ClusterUsage | None) -> Fraction | None:
    """Return the queue's realCapability."""
    limits = [queue.capability[name]] if name in queue.capability else []
    limits += [] if nodes is None else [nodes.allocatable.get(name, Fraction())]
    return min(limits, default=None)


def _overused(what: str, adjective: str, names: Iterable[str]) -> str:
    return f"{what}: {', '.join(f'{adjective} {name}' for name in names)}"


def placed(pods: Sequence[Json], nodes: Sequence[Json], used: Mapping[str, Amounts]) -> list[str]:
    """Return a node name for each pod; fewer names than pods if not all fit."""
    taken = {name: dict(parts) for name, parts in used.items()}
    names = []
    for pod in pods:
        wanted = pod_requests(pod["spec"])
        for node in nodes:
            name = node["metadata"]["name"]
            room = amounts(node["status"]["allocatable"])
            own = taken.setdefault(name, {})
            if _allows(node, pod["spec"]) and all(
                own.get(key, 0) + amount <= room.get(key, 0) for key, amount in wanted.items()
            ):
                taken[name] = dict(total([own, wanted]))
                names.append(name)
                break
    return names


def _allows(node: Json, spec: Json) -> bool:
    """Return whether selector, taints and cordon allow the pod on the node."""
    return not node["spec"].get("unschedulable") and admits(node, spec)


class GangScheduler:
    """Admits gangs and binds their pods, for all queues."""

    def __init__(self, store: Store, kubelet: Kubelet, settings: EmulatorSettings) -> None:
        self._store = store
        self._kubelet = kubelet
        self._settings = settings

    def admit(self, job: Json) -> bool:
        """Decide whether the gang may have pods (the scheduler's enqueue action)."""
        namespace = job["metadata"]["namespace"]
        group = self._store.find(POD_GROUP, namespace, volcano_objects.group_name(job))
        if group is None:
            return False
        if group["status"]["phase"] != "Pending":
            return True
        queue = job["spec"]["queue"]
        admitted = [g for g in self._store.list(POD_GROUP) if g["status"]["phase"] == "Inqueue"]
        why = refusal(
            job_requests(job),
            queue=QueueUsage(
                capability=amounts(self._store.get(QUEUE, "", queue)["spec"].get("capability")),
                used=total(
                    pod_requests(pod["spec"])
                    for pod in self._bound_pods()
                    if pod["metadata"].get("labels", {}).get(volcano_objects.QUEUE_NAME) == queue
                    and not volcano_objects.is_terminating(pod)
                ),
                waiting=_wanted(group for group in admitted if group["spec"]["queue"] == queue),
            ),
            nodes=self._nodes(_wanted(admitted)),
        )
        if why is not None:
            volcano_objects.record_event(
                self._store, group, reason="Unschedulable", message=why, type_="Normal"
            )
            return False
        name = group["metadata"]["name"]
        self._store.set_status(POD_GROUP, namespace, name, {"phase": "Inqueue"})
        return True

    def _nodes(self, waiting: Amounts) -> ClusterUsage | None:
        if not self._settings.count_nodes:
            return None
        return ClusterUsage(
            allocatable=total(amounts(n["status"]["allocatable"]) for n in self._store.list(NODE)),
            used=total(pod_requests(pod["spec"]) for pod in self._bound_pods()),
            waiting=waiting,
        )

    def _bound_pods(self) -> list[Json]:
        return [
            p
            for p in self._store.list(POD)
            if "nodeName" in p["spec"] and volcano_objects.is_alive(p)
        ]

    def bind(self, job: Json, pods: list[Json]) -> list[Json]:
        """Assign a node and an address to every pod of the gang, or to none if there is no room."""
        namespace = job["metadata"]["namespace"]
        # A terminating pod does not count; only the new pod that takes its name does.
        if (
            sum(not volcano_objects.is_terminating(pod) for pod in pods)
            < job["spec"]["minAvailable"]
        ):
            return []
        pods = _unbound(pods)
        if not pods:
            return []
        order = [task["name"] for task in job["spec"]["tasks"]]
        pods.sort(key=lambda pod: order.index(pod["metadata"]["annotations"][volcano_objects.TASK]))
        refusal_of_volume = self._volume_refusal(pods)
        names = [] if refusal_of_volume else self._nodes_for(pods)
        if len(names) < len(pods):
            self._note_unschedulable(
                job, pods, missing=len(pods) - len(names), why=refusal_of_volume
            )
            return []
        bound = [self._bound(pod, name) for pod, name in zip(pods, names, strict=True)]
        condition = {
            "type": "Scheduled",
            "status": "True",
            "reason": "tasks in gang are ready to be scheduled",
            "lastTransitionTime": now(),
        }
        status = {"conditions": [condition]}
        self._store.set_status(POD_GROUP, namespace, volcano_objects.group_name(job), status)
        return bound

    def close(self, job: Json, pods: list[Json]) -> None:
        """Write the phase of the gang's pod group at the end of a session."""
        namespace, name = job["metadata"]["namespace"], volcano_objects.group_name(job)
        group = self._store.find(POD_GROUP, namespace, name)
        if group is not None:
            phase = group_phase(group["status"]["phase"], pods, job["spec"]["minAvailable"])
            self._store.set_status(POD_GROUP, namespace, name, {"phase": phase})

    def is_admitted(self, job: Json) -> bool:
        """Return whether a gang has been admitted and the controller therefore handles its pods
        (``syncTask`` in ``syncJob``)."""
        name = volcano_objects.group_name(job)
        group = self._store.find(POD_GROUP, job["metadata"]["namespace"], name)
        return group is not None and group["status"]["phase"] != "Pending"

    def _volume_refusal(self, pods: list[Json]) -> str:
        """Apply the volume predicate: return the reason if a claim is missing or has no volume.

        Such a pod fits no node. Empty if there is no such pod.
        """
        for pod in pods:
            for volume in pod["spec"].get("volumes") or ():
                name = volume.get("persistentVolumeClaim", {}).get("claimName")
                if not name:
                    continue
                claim = self._store.find(CLAIM, pod["metadata"]["namespace"], name)
                if claim is None:
                    return f'persistentvolumeclaim "{name}" not found'
                if not is_bound(claim):
                    return UNBOUND
        return ""

    def bind_each(self, pods: list[Json]) -> list[Json]:
        """Bind as many pods without a gang as fit, like the default scheduler."""
        return [
            self._bound(pod, name)
            for pod in _unbound(pods)
            if not self._volume_refusal([pod])
            for name in self._nodes_for([pod])
        ]

    def _nodes_for(self, pods: list[Json]) -> list[str]:
        if not self._settings.count_nodes:
            return [f"node-{index}" for index in range(len(pods))]
        used: dict[str, Amounts] = {}
        for pod in self._bound_pods():
            name = pod["spec"]["nodeName"]
            used[name] = total([used.get(name, {}), pod_requests(pod["spec"])])
        return placed(pods, self._store.list(NODE), used)

    def _bound(self, pod: Json, node: str) -> Json:
        address = self._kubelet.take_address()

        def change(entry: Json) -> None:
            entry["spec"]["nodeName"] = node
            entry["status"] |= {
                "podIP": address,
                "podIPs": [{"ip": address}],
                "hostIP": address,
                "startTime": now(),
                "conditions": [{"type": "PodScheduled", "status": "True"}],
            }

        metadata = pod["metadata"]
        return self._store.update(POD, metadata["namespace"], metadata["name"], change)

    def _note_unschedulable(
        self, job: Json, pods: list[Json], *, missing: int, why: str = ""
    ) -> None:
        """Record the effects of plugins/gang's OnSessionClose, the cache's taskUnschedulable for
        each pod, and the job controller's recordPodGroupEvent."""
        size = len(pods)
        message = (
            f"{missing}/{size} tasks in gang unschedulable: pod group is not ready, "
            f"{size} Pending, {job['spec']['minAvailable']} minAvailable; "
            f"Pending: {size} Unschedulable"
        ) + (f". Origin reason is: {why}" if why else "")
        namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
        group = self._store.get(POD_GROUP, namespace, volcano_objects.group_name(job))
        if any(c.get("message") == message for c in group["status"].get("conditions", ())):
            return
        condition = {
            "type": "Unschedulable",
            "status": "True",
            "reason": "NotEnoughResources",
            "message": message,
            "lastTransitionTime": now(),
        }
        self._store.set_status(
            POD_GROUP, namespace, group["metadata"]["name"], {"conditions": [condition]}
        )
        scheduled = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": why or "all nodes are unavailable",
        }
        for pod in pods:
            self._store.set_status(
                POD, namespace, pod["metadata"]["name"], {"conditions": [scheduled]}
            )
        warning = f"PodGroup {namespace}:{name} unschedulable, reason: {message}"
        volcano_objects.record_event(
            self._store, job, reason="PodGroupPending", message=warning, type_="Warning"
        )


def _wanted(groups: Iterable[Json]) -> Amounts:
    return total(amounts(group["spec"]["minResources"]) for group in groups)


def _unbound(pods: list[Json]) -> list[Json]:
    """Return the pods that wait for a node."""
    return [
        pod
        for pod in pods
        if pod["status"]["phase"] == "Pending"
        and "nodeName" not in pod["spec"]
        and not volcano_objects.is_terminating(pod)
    ]
