"""Runs the pods bound to nodes, each as its own process group or container."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainium_catalogue import kubernetes
from trainium_emulators.kubernetes import errors, nodes, volcano_objects
from trainium_emulators.kubernetes.log_agent import PodLog
from trainium_emulators.kubernetes.pod_environment import (
    ApiAccess,
    CreateContainerConfigError,
    container_command,
    container_environment,
)
from trainium_emulators.kubernetes.resources import POD, Json
from trainium_emulators.kubernetes.settings import EmulatorSettings
from trainium_emulators.kubernetes.store import Store, now
from trainium_emulators.nodes.environment import device_variables, node_address, rehearsal_extras
from trainium_emulators.nodes.events import emit
from trainium_emulators.nodes.faults import NodeFault
from trainium_emulators.nodes.node import NodeProcess, image_environment

_LAST_LINES, _LAST_BYTES = 80, 2048
"""Maximum lines and bytes of a termination message."""
MARK = "REHEARSAL_POD"
"""Environment variable that identifies a pod's processes."""
_FIRST_ADDRESS = 200
"""First loopback address for pods, above those of Batch's nodes and containers."""
_ADDRESSES = 50
_POLL_S = 0.2
_RESTART_DELAY_S = 0.5


@dataclass(slots=True, kw_only=True)
class ContainerOutput:
    """A container's output so far, as a ``Stream`` for its node."""

    name: str
    lines: list[tuple[float, str]] = field(default_factory=list)
    log: PodLog | None = None
    """The file that the agents on the node read."""

    def write(self, line: str) -> None:
        """Append one line immediately."""
        self.lines.append((time.time(), line))
        if self.log is not None:
            self.log.write(line)


@dataclass(slots=True, kw_only=True)
class PodRun:
    """A pod that runs or has run."""

    pod: Json
    index: int
    """Index in its gang."""
    output: ContainerOutput
    fault: NodeFault | None = None
    node: NodeProcess | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    restarts: int = 0
    ended: bool = False

    @property
    def job(self) -> str:
        """The Volcano job's name, or the pod's own."""
        return str(self._annotations.get(volcano_objects.JOB_NAME, self.pod["metadata"]["name"]))

    @property
    def attempt(self) -> int:
        """Number of the attempt, from 1 as on Batch."""
        return 1 + int(self._annotations.get(volcano_objects.RETRY_COUNT, 0))

    def emit_event(self, event: str, **details: Any) -> None:
        """Emit a node's event, unless the pod has no job and is therefore not a node."""
        if volcano_objects.JOB_NAME in self._annotations:
            emit(event, job_id=self.job, attempt=self.attempt, node=self.index, **details)

    @property
    def _annotations(self) -> Mapping[str, str]:
        return self.pod["metadata"].get("annotations") or {}

    def label(self, name: str) -> str:
        """Return a label of the pod; empty if absent."""
        return str((self.pod["metadata"].get("labels") or {}).get(name, ""))


def termination_message(run: PodRun, code: int | None) -> Json:
    """Return the end of a failed container's log as its message (kubelet, kuberuntime).

    Empty if the container succeeded, or if its policy does not request the log.
    """
    policy = run.pod["spec"]["containers"][0].get("terminationMessagePolicy")
    if not code or policy != "FallbackToLogsOnError":
        return {}
    lines = [text for _, text in run.output.lines[-_LAST_LINES:]]
    return {"message": "\n".join(lines).encode()[-_LAST_BYTES:].decode(errors="ignore")}


def container_status(run: PodRun, state: Json, *, ready: bool) -> Json:
    """Return an entry of ``containerStatuses``."""
    container = run.pod["spec"]["containers"][0]
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "ready": ready,
        "started": ready,
        "restartCount": run.restarts,
        "state": state,
        "lastState": {},
    }


class Kubelet:
    """The kubelet of every node of the cluster."""

    def __init__(self, store: Store, settings: EmulatorSettings, claims: Path) -> None:
        """Initialize; ``claims`` is the parent folder of the PersistentVolumeClaims' volumes."""
        self._store = store
        self._settings = settings
        self._claims = claims
        self.api: ApiAccess | None = None
        """Access to the API server for pods, set once it listens."""
        self._runs: dict[str, PodRun] = {}
        self._addresses = 0

    def take_address(self) -> str:
        """Return a loopback address for the next pod; reuse the oldest once all have been used."""
        self._addresses += 1
        index = _FIRST_ADDRESS + self._addresses % _ADDRESSES
        return node_address(self._settings.addresses, index)

    def start(self, pod: Json, *, index: int = 0, fault: NodeFault | None = None) -> None:
        """Run a bound pod, which already has its address."""
        uid = pod["metadata"]["uid"]
        open_stream = self._settings.open_stream
        log = None if open_stream is None else PodLog(self._store, pod, open_stream)
        run = PodRun(pod=pod, index=index, output=ContainerOutput(name=uid, log=log), fault=fault)
        self._runs[uid] = run
        threading.Thread(target=self._run_pod, args=(run,), daemon=True).start()

    def has(self, uid: str) -> bool:
        """Return whether a pod was passed to ``start``."""
        return uid in self._runs

    def nodes(self, job: str, attempt: int) -> Mapping[int, NodeProcess]:
        """Return the started nodes of one attempt of a job, by index."""
        return {
            run.index: run.node
            for run in list(self._runs.values())
            if run.node is not None and (run.job, run.attempt) == (job, attempt)
        }

    def running(self) -> bool:
        """Return whether any pod is running."""
        return any(not run.ended for run in list(self._runs.values()))

    # --- called by the API server ---------------------------------------------------------------
    def lines(self, uid: str) -> list[tuple[float, str]]:
        """Return a pod's output so far; the list keeps growing."""
        run = self._runs.get(uid)
        return run.output.lines if run else []

    def has_ended(self, uid: str) -> bool:
        """Return whether a pod's output is complete; False before it starts."""
        run = self._runs.get(uid)
        return run is not None and run.ended

    def environment(self, uid: str) -> tuple[Mapping[str, str], Path] | None:
        """Return the environment and folder of a pod that runs as processes."""
        run = self._runs.get(uid)
        if run is None or run.node is None or run.ended or self._settings.engine is not None:
            return None
        return {**image_environment(), **run.environment}, run.node.folder

    # --- one pod's life cycle -------------------------------------------------------------------
    def _run_pod(self, run: PodRun) -> None:
        policy = run.pod["spec"].get("restartPolicy", "Always")
        while True:
            try:
                code, reason = self._run_container(run)
            except CreateContainerConfigError as error:
                self._wait_for_deletion(run, str(error))
                return
            self._wait_for_node(run)
            restart = policy == "Always" or (policy == "OnFailure" and code != 0)
            current = self._current(run)
            if not restart or reason or current is None or volcano_objects.is_terminating(current):
                break
            run.restarts += 1
            time.sleep(_RESTART_DELAY_S)
        run.ended = True
        self._report(run, phase="Failed" if code or reason else "Succeeded", code=code,
                     reason=reason)  # fmt: skip
        current = self._current(run)
        if current is not None and volcano_objects.is_terminating(current):
            self._remove(run)

    def _run_container(self, run: PodRun) -> tuple[int, str]:
        """Run the container to completion; return its exit code, and the reason if the pod
        exceeded its deadline."""
        node = self._start_container(run)
        deadline_s = run.pod["spec"].get("activeDeadlineSeconds")
        started_s = time.monotonic()
        reason = ""
        self._report(run, phase="Running")
        while node.exit_code() is None:
            current = self._current(run)
            if current is None:
                node.stop(0)
            elif volcano_objects.is_terminating(current) and self._ends_pods(run):
                node.stop(current["metadata"]["deletionGracePeriodSeconds"])
            elif deadline_s is not None and time.monotonic() - started_s > deadline_s:
                reason = "DeadlineExceeded"
                node.stop(run.pod["spec"].get("terminationGracePeriodSeconds", 30))
            else:
                time.sleep(_POLL_S)
        code = node.exit_code()
        assert code is not None
        node.finish()
        run.emit_event("node-ended", exit_code=code, reason=reason or "the container ended")
        return code, reason

    def _start_container(self, run: PodRun) -> NodeProcess:
        settings = self._settings
        address = run.pod["status"]["podIP"]
        processes = settings.processes_of.get(
            run.label(kubernetes.LABEL_WORKLOAD), settings.processes_per_node
        )
        given = container_environment(self._store, run.pod, self._claims)
        extras = rehearsal_extras(
            endpoint=settings.aws_endpoint,
            processes_per_node=processes,
            address=address,
            device=device_variables(given, in_container=settings.engine is not None),
        )
        if not settings.aws_endpoint:
            del extras["AWS_ENDPOINT_URL"]
        command = container_command(run.pod, given, self._claims, self.api)
        run.environment = {
            "HOSTNAME": run.pod["metadata"]["name"],
            **given,
            **extras,
            MARK: run.pod["metadata"]["uid"],
        }
        run.node = NodeProcess(
            command=command,
            environment=run.environment,
            stream=run.output,
            engine=settings.engine,
            open_files=run.fault.open_files(run.index) if run.fault else None,
            niceness=settings.niceness,
            marks=(MARK,),
        )
        run.emit_event(
            "node-started",
            run=run.label(kubernetes.LABEL_RUN) or run.job,
            pid=run.node.pid,
            address=address,
            command=command,
            environment=extras,
        )
        return run.node

    def _current(self, run: PodRun) -> Json | None:
        """Return the pod's current state; None if it is gone or a new pod has its name."""
        metadata = run.pod["metadata"]
        current = self._store.find(POD, metadata["namespace"], metadata["name"])
        same = current is not None and current["metadata"]["uid"] == metadata["uid"]
        return current if same else None

    def _ends_pods(self, run: PodRun) -> bool:
        return nodes.ends_pods(self._store, run.pod["spec"]["nodeName"])

    def _wait_for_node(self, run: PodRun) -> None:
        """Wait until the node can report the pod's termination, or the Pod object is gone."""
        while not self._ends_pods(run) and self._current(run) is not None:
            time.sleep(_POLL_S)

    def _report(
        self, run: PodRun, *, phase: str, code: int | None = None, reason: str = ""
    ) -> None:
        """Write the pod's status."""
        if self._current(run) is None:
            return
        running = phase == "Running"
        started = run.pod["status"].setdefault("startTime", now())
        if running:
            state: Json = {"running": {"startedAt": started}}
        else:
            state = {
                "terminated": {
                    "exitCode": code,
                    "reason": reason or ("Completed" if code == 0 else "Error"),
                    "startedAt": started,
                    "finishedAt": now(),
                    "containerID": f"rehearsal://{run.pod['metadata']['uid']}",
                    **termination_message(run, code),
                }
            }
        status: Json = {
            "phase": phase,
            "startTime": started,
            "containerStatuses": [container_status(run, state, ready=running)],
            # Probes are not run: a running container is ready.
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": "True" if running else "False"},
            ],
        }
        if reason:
            status["reason"] = reason
        metadata = run.pod["metadata"]
        self._store.set_status(POD, metadata["namespace"], metadata["name"], status)

    def _wait_for_deletion(self, run: PodRun, why: str) -> None:
        """Leave the pod Waiting, as a real kubelet does, until it is deleted."""
        metadata = run.pod["metadata"]
        state = {"waiting": {"reason": "CreateContainerConfigError", "message": why}}
        status = {"containerStatuses": [container_status(run, state, ready=False)]}
        self._store.set_status(POD, metadata["namespace"], metadata["name"], status)
        while (current := self._current(run)) is not None:
            if volcano_objects.is_terminating(current) and self._ends_pods(run):
                self._remove(run)
            time.sleep(_POLL_S)
        run.ended = True

    def _remove(self, run: PodRun) -> None:
        metadata = run.pod["metadata"]
        try:
            self._store.remove(POD, metadata["namespace"], metadata["name"])
        except errors.ApiError:
            return  # already removed
