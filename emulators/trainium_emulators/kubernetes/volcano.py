"""Volcano's controller: creates gangs of pods for jobs, and restarts or ends them.

Decisions are made in ``volcano_rules`` and ``volcano_scheduler``; the order of effects follows
Volcano 1.15.1 (pkg/controllers/job/job_controller_actions.go, syncJob and killPods).
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from trainium_emulators.kubernetes import errors, volcano_objects
from trainium_emulators.kubernetes.kubelet import Kubelet
from trainium_emulators.kubernetes.resources import (
    COMMAND,
    POD,
    POD_GROUP,
    QUEUE,
    VOLCANO_JOB,
    Json,
)
from trainium_emulators.kubernetes.settings import EmulatorSettings
from trainium_emulators.kubernetes.store import Store, StoreChange
from trainium_emulators.kubernetes.volcano_rules import (
    FINISHED,
    KILL_PHASES,
    Counts,
    action_for,
    changed_status,
    next_phase,
    retained,
)
from trainium_emulators.kubernetes.volcano_scheduler import GangScheduler
from trainium_emulators.nodes.events import emit
from trainium_emulators.nodes.faults import NodeFault
from trainium_emulators.nodes.node import wait_for

DELETED = "Deleted"
"""Phase reported for a deleted job; Volcano has no such phase."""
ENDED = (*FINISHED, DELETED)
_TICK_S = 0.1
_PERIOD_S = 1.0
"""Interval at which the scheduler checks unchanged jobs, as Volcano's does."""
_START_LIMIT_S = 30.0


class VolcanoController:
    """A thread that advances all jobs."""

    def __init__(
        self, store: Store, kubelet: Kubelet, scheduler: GangScheduler, settings: EmulatorSettings
    ) -> None:
        self._store = store
        self._kubelet = kubelet
        self._settings = settings
        self._scheduler = scheduler
        self._changes: queue.Queue[StoreChange | None] = queue.Queue()
        self._phases: dict[str, str] = {}
        self._removed: set[str] = set()
        self._reported: dict[str, str] = {}
        self._delayed: list[tuple[float, Json, str, str]] = []
        """Actions of policies with a timeout: due time, job at the event, action and reason."""
        self._synced, self._synced_at = 0, 0.0
        self._thread = threading.Thread(target=self._serve, name="volcano", daemon=True)
        self._stop_listening = store.listen(self._changes.put)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; pods are not touched."""
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
                if not _try_step(self._on_change, change):
                    self._changes.put(change)
                if not self._changes.empty():
                    continue
            self._run_delayed()
            version, moment = self._store.version, time.monotonic()
            if version == self._synced and moment < self._synced_at + _PERIOD_S:
                continue
            # The scheduler takes the older job first (Volcano 1.15.1, framework, JobOrderFn).
            for job in sorted(self._store.list(VOLCANO_JOB), key=volcano_objects.age):
                _try_step(self._sync, job)
                _try_step(self._schedule, job)
            # Record the version from before this pass, because later changes may affect jobs that
            # were already read. While a change is queued, ``_sync`` postpones part of its work.
            if self._changes.empty():
                self._synced, self._synced_at = version, moment

    # --- events ---------------------------------------------------------------------------------
    def _on_change(self, change: StoreChange) -> None:
        metadata = change.entry["metadata"]
        if change.kind == VOLCANO_JOB and change.type == "ADDED":
            emit("job-submitted", job_id=metadata["name"], run=volcano_objects.run_of(change.entry),
                 num_nodes=len(change.entry["spec"]["tasks"]))  # fmt: skip
        elif change.kind == VOLCANO_JOB and change.type == "DELETED":
            self._report_phase(change.entry, DELETED)
            # Pods that were bound while the job was being deleted: no kubelet runs or ends them.
            for pod in self._pods(change.entry):
                if not self._kubelet.has(pod["metadata"]["uid"]):
                    self._store.remove(POD, metadata["namespace"], pod["metadata"]["name"])
        elif change.kind == COMMAND and change.type == "ADDED":
            # Delete the command before executing it, so that it is executed at most once, even if
            # the job is gone.
            if self._store.find(COMMAND, metadata["namespace"], metadata["name"]) is not None:
                self._store.delete(COMMAND, metadata["namespace"], metadata["name"])
            target, action = change.entry["target"], change.entry["action"]
            if target["kind"] == "Queue":
                self._set_queue(target["name"], action)
                return
            job = self._store.get(VOLCANO_JOB, metadata["namespace"], target["name"])
            self._act(job, action, "")
        elif change.kind == POD:
            self._on_pod(change)

    def _on_pod(self, change: StoreChange) -> None:
        """Translate pod changes into the events that policies refer to."""
        pod = change.entry
        uid, annotations = pod["metadata"]["uid"], pod["metadata"].get("annotations") or {}
        phase = pod.get("status", {}).get("phase", "Pending")
        before = self._phases.get(uid)
        owners = pod["metadata"].get("ownerReferences", ())
        if not owners or volcano_objects.JOB_NAME not in annotations:
            return
        name = annotations[volcano_objects.JOB_NAME]
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
        outdated = int(annotations[volcano_objects.JOB_VERSION]) < job["status"].get("version", 0)
        if not event or outdated or uid in self._removed:
            self._phases[uid] = phase
            return
        task = annotations[volcano_objects.TASK]
        decision = action_for(job, task=task, event=event, exit_code=code)
        if decision is not None:
            action, delay_s = decision
            ended = f" with exit code {code}" if code else ""
            why = f"{pod['metadata']['name']}: {event}{ended}"
            if delay_s:
                self._delayed.append((time.monotonic() + delay_s, job, action, why))
            else:
                self._act(job, action, why)
        self._phases[uid] = phase

    def _run_delayed(self) -> None:
        """Execute delayed actions that are due, unless their attempt has already been ended
        (AddDelayActionForJob and cleanupDelayActions of job_controller.go)."""
        due = [each for each in self._delayed if each[0] <= time.monotonic()]
        self._delayed = [each for each in self._delayed if each not in due]
        for _, job_at_event, action, why in due:
            metadata = job_at_event["metadata"]
            job = self._store.find(VOLCANO_JOB, metadata["namespace"], metadata["name"])
            if job is None or job["metadata"]["uid"] != metadata["uid"]:
                continue
            if job["status"].get("version") == job_at_event["status"].get("version"):
                self._act(job, action, why)

    def _set_queue(self, name: str, action: str) -> None:
        """Open or close a queue (pkg/controllers/queue/state); one that has gangs stays Closing."""
        gangs = [g for g in self._store.list(POD_GROUP) if g["spec"]["queue"] == name]
        closed = "Closing" if gangs else "Closed"
        state = {"OpenQueue": "Open", "CloseQueue": closed}[action]
        self._store.set_status(QUEUE, "", name, {"state": state})

    def _act(self, job: Json, action: str, why: str) -> None:
        """Execute an action in the job's current phase (state/*.go)."""
        phase = job["status"].get("state", {}).get("phase", "Pending")
        if phase in ("Pending", "Running") and action in KILL_PHASES:
            self._kill(job, KILL_PHASES[action], why)

    # --- phases ---------------------------------------------------------------------------------
    def _sync(self, job: Json) -> None:
        """Advance one job."""
        phase = job.get("status", {}).get("state", {}).get("phase")
        if phase is None:
            self._set(job, "Pending", {"minAvailable": job["spec"]["minAvailable"], "version": 0,
                                       "retryCount": 0})  # fmt: skip
            return
        pods = self._pods(job)
        admitted = True
        if phase in ("Pending", "Running", "Restarting"):
            admitted = self._scheduler.is_admitted(job)
            volcano_objects.ensure(self._store, job)
            if admitted:
                # This recreates even a pod whose disappearance no policy covers.
                volcano_objects.create_pods(self._store, job, pods)
        elif phase in FINISHED and volcano_objects.remain(self._store, job, pods):
            # This frees the gang's share of the queue along with the pods, also for jobs whose
            # phase was written by TorchX, which cancels jobs that way.
            self._kill(job, phase, "")
        pods = self._pods(job)
        if not self._changes.empty():
            return  # policies handle these pods' events first
        if admitted:
            counts = Counts.of(pods)
            status = {**counts.status(), **volcano_objects.count_by_task(pods)}
            self._set(job, next_phase(job, counts), status)
        else:
            # Until the gang is admitted, the previous attempt's counts apply: a job whose nodes are
            # missing stays Restarting, with deleted pods still counted as terminating.
            self._set(job, next_phase(job, Counts.last(job)), {})

    def _schedule(self, job: Json) -> None:
        """Run a scheduler session for one gang, based on pod groups, not on phases of jobs."""
        if self._scheduler.admit(job):
            self._start(job, self._scheduler.bind(job, self._pods(job)))
        self._scheduler.close(job, self._pods(job))

    def _pods(self, job: Json) -> list[Json]:
        metadata = job["metadata"]
        return self._store.list(POD, metadata["namespace"], owner=metadata["uid"])

    def _kill(self, job: Json, phase: str, why: str) -> None:
        """End the attempt: remove its pods and the objects that plugins created for it."""
        phases = retained(job, phase)
        pods = self._pods(job)
        left = [pod for pod in pods if pod["status"]["phase"] in phases]
        status: Json = {
            **Counts.of(left).status(),
            "terminating": len(pods) - len(left),
            **volcano_objects.count_by_task(left),
            "version": job["status"].get("version", 0) + 1,
        }
        if phase == "Restarting":
            status["retryCount"] = job["status"].get("retryCount", 0) + 1
        # Write the status before the pods are removed, so that their deletion triggers no policy.
        self._set(job, phase, status, why)
        for pod in pods:
            if pod["status"]["phase"] not in phases and not volcano_objects.is_terminating(pod):
                self._removed.add(pod["metadata"]["uid"])
                self._store.delete(POD, pod["metadata"]["namespace"], pod["metadata"]["name"])
        volcano_objects.remove(self._store, job)

    def _set(self, job: Json, phase: str, status: Json, why: str = "") -> None:
        """Write a job's status."""
        namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
        old = job.get("status", {})
        status = changed_status(old, phase, status)
        if why:
            volcano_objects.record_event(
                self._store, job, reason="ExecuteAction", message=why, type_="Normal"
            )
        if status != old:

            def change(entry: Json) -> Json:
                # Keep the resourceVersion as read, so that a concurrent write causes a conflict.
                return {**entry, "metadata": {**job["metadata"]}, "status": status}

            job |= self._store.update(VOLCANO_JOB, namespace, name, change)
        self._report_phase(job, phase, why)

    def _report_phase(self, job: Json, phase: str, why: str = "") -> None:
        """Report a job's phase once, including one written by a client."""
        uid, name = job["metadata"]["uid"], job["metadata"]["name"]
        before = self._reported.get(uid)
        if before == phase:
            return
        self._reported[uid] = phase
        emit("job-status", job_id=name, status=phase, reason=why)
        if phase in ENDED and before not in ENDED:
            started = 1 + job.get("status", {}).get("retryCount", 0)
            attempts = min(started, job["spec"]["maxRetry"])
            emit("job-ended", job_id=name, status=phase, reason=why, attempts=attempts)

    # --- pods -----------------------------------------------------------------------------------
    def _start(self, job: Json, pods: list[Json]) -> None:
        """Hand the gang's pods to the kubelet, and inject the fault armed for the run."""
        fault = self._settings.take_fault(volcano_objects.run_of(job)) if pods else None
        for pod in pods:
            self._kubelet.start(pod, index=self._index(job, pod), fault=fault)
        if fault is not None:
            attempt = 1 + job["status"].get("retryCount", 0)
            arguments = (job, attempt, fault, len(pods))
            threading.Thread(target=self._inject, args=arguments, daemon=True).start()

    @staticmethod
    def _index(job: Json, pod: Json) -> int:
        order = [task["name"] for task in job["spec"]["tasks"]]
        return order.index(pod["metadata"]["annotations"][volcano_objects.TASK])

    def _inject(self, job: Json, attempt: int, fault: NodeFault, size: int) -> None:
        name = job["metadata"]["name"]
        wait_for(lambda: len(self._kubelet.nodes(name, attempt)) == size, _START_LIMIT_S)
        pods = {self._index(job, pod): pod["metadata"] for pod in self._pods(job)}

        def reclaim(index: int) -> None:
            """Delete the pod, as the eviction API does when a node is drained."""
            self._store.delete(POD, pods[index]["namespace"], pods[index]["name"])

        detail = fault.inject(self._kubelet.nodes(name, attempt), main_index=0, reclaim=reclaim)
        if detail is not None:
            emit("fault-injected", job_id=name, attempt=attempt, kind=fault.kind, detail=detail)


def _try_step(step: Callable[[Any], None], argument: object) -> bool:
    """Run a step; return False if the job was changed concurrently and must be read again."""
    try:
        step(argument)
    except errors.ApiError as error:
        if error.reason == "Conflict":
            return False
        # Objects may disappear at any time.
        if error.code != 404:
            traceback.print_exc()
    except Exception:
        traceback.print_exc()
    return True
