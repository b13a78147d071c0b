"""Volcano's scheduler: lets gangs in, and binds all pods of one or none.

What it decides is in ``scheduling``; see there for the sources.
"""

from __future__ import annotations

from rehearsal.kubernetes import objects
from rehearsal.kubernetes.kubelet import Kubelet
from rehearsal.kubernetes.resources import NODE, POD, POD_GROUP, QUEUE, Json
from rehearsal.kubernetes.scheduling import (
    Amounts,
    amounts,
    job_requests,
    placed,
    pod_requests,
    refusal,
    total,
)
from rehearsal.kubernetes.settings import Settings
from rehearsal.kubernetes.store import Store, now


class Scheduler:
    """Of all queues."""

    def __init__(self, store: Store, kubelet: Kubelet, settings: Settings) -> None:
        self._store = store
        self._kubelet = kubelet
        self._settings = settings

    def let_in(self, job: Json) -> bool:
        """Whether the gang may have pods: the scheduler's enqueue action."""
        namespace = job["metadata"]["namespace"]
        group = self._store.get(POD_GROUP, namespace, objects.group_name(job))
        if group["status"]["phase"] != "Pending":
            return True
        queue_ = self._store.get(QUEUE, "", job["spec"]["queue"])
        bound = [
            p for p in self._store.list(POD) if "nodeName" in p["spec"] and objects.is_alive(p)
        ]
        others = [
            amounts(other["spec"]["minResources"])
            for other in self._store.list(POD_GROUP)
            if other["spec"]["queue"] == job["spec"]["queue"]
            and other["status"]["phase"] in ("Inqueue", "Running")
        ]
        why = refusal(
            job_requests(job),
            used_by_queue=total(others),
            capability=amounts(queue_["spec"].get("capability")),
            used=total(pod_requests(pod["spec"]) for pod in bound),
            allocatable=self._allocatable(),
        )
        if why is not None:
            objects.record_event(
                self._store, group, reason="Unschedulable", message=why, type_="Normal"
            )
            return False
        name = group["metadata"]["name"]
        self._store.set_status(POD_GROUP, namespace, name, {"phase": "Inqueue"})
        return True

    def _allocatable(self) -> Amounts | None:
        if not self._settings.count_nodes:
            return None
        return total(amounts(n["status"]["allocatable"]) for n in self._store.list(NODE))

    def bind(self, job: Json, pods: list[Json]) -> list[Json]:
        """Give every pod of the gang a node and an address; nothing when there is no room."""
        namespace = job["metadata"]["namespace"]
        pods = _unbound(pods)
        order = [task["name"] for task in job["spec"]["tasks"]]
        pods.sort(key=lambda pod: order.index(pod["metadata"]["annotations"][objects.TASK]))
        if not pods or len(pods) < job["spec"]["minAvailable"]:
            return []
        names = self._nodes_for(pods)
        if len(names) < len(pods):
            self._note_unschedulable(job, len(pods) - len(names), len(pods))
            return []
        bound = [self._bound(pod, name) for pod, name in zip(pods, names, strict=True)]
        group = objects.group_name(job)
        self._store.set_status(POD_GROUP, namespace, group, {"phase": "Running"})
        return bound

    def bind_each(self, pods: list[Json]) -> list[Json]:
        """Bind pods that belong to no gang, as many as there is room for: the default scheduler."""
        return [self._bound(pod, name) for pod in _unbound(pods) for name in self._nodes_for([pod])]

    def _nodes_for(self, pods: list[Json]) -> list[str]:
        if not self._settings.count_nodes:
            return [f"node-{index}" for index in range(len(pods))]
        used: dict[str, Amounts] = {}
        for pod in self._store.list(POD):
            if objects.is_alive(pod) and "nodeName" in pod["spec"]:
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

    def _note_unschedulable(self, job: Json, missing: int, size: int) -> None:
        """plugins/gang/gang.go, and recordPodGroupEvent of the job controller."""
        message = (
            f"{missing}/{size} tasks in gang unschedulable: pod group is not ready, "
            f"{size} Pending, {job['spec']['minAvailable']} minAvailable"
        )
        namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
        condition = {
            "type": "Unschedulable",
            "status": "True",
            "reason": "NotEnoughResources",
            "message": message,
        }
        group = objects.group_name(job)
        self._store.set_status(POD_GROUP, namespace, group, {"conditions": [condition]})
        words = f"PodGroup {namespace}:{name} unschedulable, reason: {message}"
        objects.record_event(
            self._store, job, reason="PodGroupPending", message=words, type_="Warning"
        )


def _unbound(pods: list[Json]) -> list[Json]:
    """Pods that wait for a node."""
    return [
        pod
        for pod in pods
        if pod["status"]["phase"] == "Pending"
        and "nodeName" not in pod["spec"]
        and not objects.is_leaving(pod)
    ]
