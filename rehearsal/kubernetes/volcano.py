"""Volcano's controller and scheduler: turns jobs into gangs of pods, and restarts or ends them.

What it decides is in ``volcano_rules`` and ``scheduling``; the order of effects follows Volcano
1.15.1 (pkg/controllers/job/job_controller_actions.go, syncJob and killPods).
"""

from __future__ import annotations

import queue
import threading
import traceback

from rehearsal.executor.events import emit
from rehearsal.executor.faults import Fault
from rehearsal.executor.node import wait_for
from rehearsal.kubernetes import errors, objects
from rehearsal.kubernetes.kubelet import Kubelet
from rehearsal.kubernetes.resources import (
    COMMAND,
    CONFIG_MAP,
    NODE,
    POD,
    POD_GROUP,
    QUEUE,
    SERVICE,
    VOLCANO_JOB,
    Json,
    Kind,
)
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
from rehearsal.kubernetes.store import Change, Store, now, owned_by
from rehearsal.kubernetes.volcano_rules import (
    FINISHED,
    KILLED,
    Counts,
    action_for,
    next_phase,
    retained,
)

_TICK_S = 0.1
_START_LIMIT_S = 30.0
_ENDED = ("Succeeded", "Failed")


class Volcano:
    """One thread that looks after all jobs."""

    def __init__(self, store: Store, kubelet: Kubelet, settings: Settings) -> None:
        self._store = store
        self._kubelet = kubelet
        self._settings = settings
        self._changes: queue.Queue[Change | None] = queue.Queue()
        self._phases: dict[str, str] = {}
        self._removed: set[str] = set()
        self._faults: dict[str, Fault | None] = {}
        self._thread = threading.Thread(target=self._serve, name="volcano", daemon=True)
        self._stop_listening = store.listen(self._changes.put)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; pods are not touched."""
        self._stop_listening()
        self._changes.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                change = self._changes.get(timeout=_TICK_S)
            except queue.Empty:
                pass
            else:
                if change is None:
                    return
                self._guarded(self._on_change, change)
                if not self._changes.empty():
                    continue
            for job in self._store.list(VOLCANO_JOB):
                self._guarded(self._sync, job)

    @staticmethod
    def _guarded(step: object, argument: object) -> None:
        """An object may go while it is looked at; the next round sees what is there."""
        assert callable(step)
        try:
            step(argument)
        except errors.ApiError as error:
            if error.code not in (404, 409):
                traceback.print_exc()
        except Exception:
            traceback.print_exc()

    # --- events ---------------------------------------------------------------------------------
    def _on_change(self, change: Change) -> None:
        metadata = change.entry["metadata"]
        if change.kind == VOLCANO_JOB and change.type == "ADDED":
            emit("job-submitted", job_id=metadata["name"], run=_run(change.entry),
                 num_nodes=len(change.entry["spec"]["tasks"]))  # fmt: skip
        elif change.kind == VOLCANO_JOB and change.type == "DELETED":
            emit("job-ended", job_id=metadata["name"], status="Deleted", reason="",
                 attempts=1 + change.entry.get("status", {}).get("retryCount", 0))  # fmt: skip
        elif change.kind == COMMAND and change.type == "ADDED":
            self._store.delete(COMMAND, metadata["namespace"], metadata["name"])
            target = change.entry["target"]["name"]
            job = self._store.get(VOLCANO_JOB, metadata["namespace"], target)
            self._act(job, change.entry["action"], "")
        elif change.kind == POD:
            self._on_pod(change)

    def _on_pod(self, change: Change) -> None:
        """What pods do, as the events that policies are about."""
        pod = change.entry
        uid, annotations = pod["metadata"]["uid"], pod["metadata"].get("annotations") or {}
        phase = pod.get("status", {}).get("phase", "Pending")
        before = self._phases.get(uid)
        self._phases[uid] = phase
        owners = pod["metadata"].get("ownerReferences", ())
        if not owners or objects.JOB_NAME not in annotations:
            return
        name = annotations[objects.JOB_NAME]
        job = self._store.find(VOLCANO_JOB, pod["metadata"]["namespace"], name)
        if job is None or job["metadata"]["uid"] != owners[0]["uid"]:
            return
        event, code = "", 0
        if change.type == "DELETED":
            event = "PodEvicted"
        elif phase == "Failed" and before != "Failed":
            event = "PodFailed"
            for status in pod["status"].get("containerStatuses", ())[:1]:
                code = status["state"].get("terminated", {}).get("exitCode", 0)
        outdated = int(annotations[objects.JOB_VERSION]) < job["status"].get("version", 0)
        if not event or outdated or uid in self._removed:
            return
        task = annotations[objects.TASK]
        action = action_for(job, task=task, event=event, exit_code=code)
        if action is not None:
            ended = f" with exit code {code}" if code else ""
            self._act(job, action, f"{pod['metadata']['name']}: {event}{ended}")

    def _act(self, job: Json, action: str, why: str) -> None:
        """Execute an action in the phase that the job is in (state/*.go)."""
        phase = job["status"].get("state", {}).get("phase", "Pending")
        if action == "ResumeJob":
            if phase in ("Aborting", "Aborted"):
                self._kill(job, "Restarting", why)
        elif phase in ("Pending", "Running"):
            self._kill(job, KILLED[action], why)

    # --- phases ---------------------------------------------------------------------------------
    def _sync(self, job: Json) -> None:
        """Bring one job forward."""
        phase = job.get("status", {}).get("state", {}).get("phase")
        if phase is None:
            self._set(job, "Pending", {"minAvailable": job["spec"]["minAvailable"], "version": 0,
                                       "retryCount": 0})  # fmt: skip
            return
        pods = self._pods(job)
        if phase in ("Pending", "Running"):
            self._ensure(job)
            if phase == "Pending" and self._let_in(job):
                self._create_pods(job, pods)
                self._bind(job)
        elif phase in FINISHED and any(_alive(p) and not _leaving(p) for p in pods):
            # TorchX cancels a job by writing the phase itself.
            self._kill(job, phase, "")
        pods = self._pods(job)
        counts = Counts.of(pods)
        self._set(job, next_phase(job, counts), _pod_status(pods, counts))

    def _pods(self, job: Json) -> list[Json]:
        namespace = job["metadata"]["namespace"]
        return owned_by(self._store.list(POD, namespace), job["metadata"]["uid"])

    def _kill(self, job: Json, phase: str, why: str) -> None:
        """End the attempt: remove its pods, and what the plugins made for it."""
        status: Json = {"version": job["status"].get("version", 0) + 1}
        kept = retained(job, phase)
        if phase == "Restarting":
            status["retryCount"] = job["status"].get("retryCount", 0) + 1
        namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
        # Before the pods go, so that their end is known for a consequence.
        self._set(job, phase, status, why)
        for pod in self._pods(job):
            if pod["status"]["phase"] not in kept and not _leaving(pod):
                self._removed.add(pod["metadata"]["uid"])
                self._store.delete(POD, namespace, pod["metadata"]["name"])
        for kind, made in (
            (CONFIG_MAP, f"{name}-svc"),
            (SERVICE, name),
            (POD_GROUP, objects.group_name(job)),
        ):
            if self._store.find(kind, namespace, made) is not None:
                self._store.delete(kind, namespace, made)

    def _set(self, job: Json, phase: str, status: Json, why: str = "") -> None:
        """Write a status, with a condition when the phase is new."""
        namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
        old = job.get("status", {})
        status = {**old, **status}
        if old.get("state", {}).get("phase") != phase:
            moment = now()
            status["state"] = {"phase": phase, "lastTransitionTime": moment}
            status["conditions"] = [
                *(c for c in old.get("conditions", ()) if c["status"] != phase),
                {"status": phase, "lastTransitionTime": moment},
            ]
            emit("job-status", job_id=name, status=phase, reason=why)
            if why:
                objects.record_event(
                    self._store, job, reason="ExecuteAction", message=why, type_="Normal"
                )
            if phase in FINISHED:
                attempts = min(1 + status.get("retryCount", 0), job["spec"]["maxRetry"])
                emit("job-ended", job_id=name, status=phase, reason=why, attempts=attempts)
        job["status"] = status
        if status != old:
            self._store.set_status(VOLCANO_JOB, namespace, name, status)

    # --- pods -----------------------------------------------------------------------------------
    def _ensure(self, job: Json) -> None:
        """What belongs to an attempt: the gang, host names and the service behind them."""
        made: list[tuple[Kind, Json]] = [(POD_GROUP, objects.pod_group(job))]
        if "svc" in job["spec"].get("plugins", {}):
            made += [(CONFIG_MAP, objects.config_map(job)), (SERVICE, objects.service(job))]
        namespace = job["metadata"]["namespace"]
        for kind, entry in made:
            if self._store.find(kind, namespace, entry["metadata"]["name"]) is None:
                self._store.create(kind, namespace, entry)

    def _let_in(self, job: Json) -> bool:
        """Whether the gang may have pods: the scheduler's enqueue action."""
        namespace = job["metadata"]["namespace"]
        group = self._store.get(POD_GROUP, namespace, objects.group_name(job))
        if group["status"]["phase"] != "Pending":
            return True
        queue_ = self._store.get(QUEUE, "", job["spec"]["queue"])
        bound = [p for p in self._store.list(POD) if "nodeName" in p["spec"] and _alive(p)]
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

    def _create_pods(self, job: Json, pods: list[Json]) -> None:
        present = {pod["metadata"]["name"] for pod in pods}
        for task in job["spec"]["tasks"]:
            for index in range(task["replicas"]):
                pod = objects.pod(job, task, index)
                if pod["metadata"]["name"] not in present:
                    self._store.create(POD, job["metadata"]["namespace"], pod)

    def _bind(self, job: Json) -> None:
        """Give every pod of the gang a node and start them, or none."""
        namespace = job["metadata"]["namespace"]
        pods = [p for p in self._pods(job) if p["status"]["phase"] == "Pending"]
        pods = [p for p in pods if "nodeName" not in p["spec"] and _alive(p)]
        order = [task["name"] for task in job["spec"]["tasks"]]
        pods.sort(key=lambda pod: order.index(pod["metadata"]["annotations"][objects.TASK]))
        if not pods or len(pods) < job["spec"]["minAvailable"]:
            return
        names = self._nodes_for(pods)
        if len(names) < len(pods):
            self._note_unschedulable(job, len(pods) - len(names), len(pods))
            return
        bound = [self._bound(pod, name) for pod, name in zip(pods, names, strict=True)]
        group = objects.group_name(job)
        self._store.set_status(POD_GROUP, namespace, group, {"phase": "Running"})
        fault = self._fault(job)
        for index, pod in enumerate(bound):
            self._kubelet.start(pod, index=index, fault=fault)
        if fault is not None:
            arguments = (job["metadata"]["name"], fault, len(bound))
            threading.Thread(target=self._inject, args=arguments, daemon=True).start()

    def _nodes_for(self, pods: list[Json]) -> list[str]:
        if not self._settings.count_nodes:
            return [f"node-{index}" for index in range(len(pods))]
        used: dict[str, Amounts] = {}
        for pod in self._store.list(POD):
            if _alive(pod) and "nodeName" in pod["spec"]:
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

    # --- faults ---------------------------------------------------------------------------------
    def _fault(self, job: Json) -> Fault | None:
        """The fault that is armed for the run; only a first attempt is hit."""
        if job["status"].get("retryCount", 0):
            return None
        return self._settings.take_fault(_run(job))

    def _inject(self, name: str, fault: Fault, size: int) -> None:
        wait_for(lambda: len(self._kubelet.nodes(name, 1)) == size, _START_LIMIT_S)
        detail = fault.inject(self._kubelet.nodes(name, 1), main_index=0)
        if detail is not None:
            emit("fault-injected", job_id=name, attempt=1, kind=fault.kind, detail=detail)


def _run(job: Json) -> str:
    """The run that a job is for; its own name without a label."""
    labels = job["metadata"].get("labels") or {}
    return str(labels.get("trainium/run", job["metadata"]["name"]))


def _alive(pod: Json) -> bool:
    return pod.get("status", {}).get("phase") not in _ENDED


def _leaving(pod: Json) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _pod_status(pods: list[Json], counts: Counts) -> Json:
    """The part of a job's status that counts pods."""
    tasks: dict[str, Json] = {}
    for pod in pods:
        if not _leaving(pod):
            task = pod["metadata"]["annotations"][objects.TASK]
            phases = tasks.setdefault(task, {"phase": {}})["phase"]
            phase = pod["status"]["phase"]
            phases[phase] = phases.get(phase, 0) + 1
    return {**counts.status(), "taskStatusCount": tasks}
