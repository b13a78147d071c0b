"""Starts the server in a separate process, listens to its events, and stops it."""

from __future__ import annotations

import ctypes
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rehearsal.deployment.cdk import StepFailed
from rehearsal.deployment.containers import ContainerNodes
from rehearsal.deployment.state import ROOT, RehearsalFolder

Event = dict[str, Any]
START_LIMIT_S = 60.0
# The server stops its nodes before it exits.
STOP_LIMIT_S = 30.0
JOBS_LIMIT_S = 60.0
_PR_SET_PDEATHSIG = 1
_NICENESS = 5
"""Niceness of the nodes' processes, so that they do not slow down commands."""


@dataclass(slots=True)
class ServerProcess:
    """The server, in a separate session so that Ctrl-C reaches only this process."""

    process: subprocess.Popen[str]
    on_event: Callable[[Event], None]
    endpoint: str = ""
    seeded: list[Event] = field(default_factory=list)
    environment_extras: dict[str, str] = field(default_factory=dict)
    kubernetes: str | None = None
    """Address of the Kubernetes API server; None until there is a cluster."""
    charts: dict[str, Event] = field(default_factory=dict)
    """The latest event of each Helm release."""
    _ended: queue.Queue[list[str]] = field(default_factory=queue.Queue)
    _ready: queue.Queue[str | None] = field(default_factory=queue.Queue)

    def wait_ready(self, folder: RehearsalFolder) -> str:
        """Wait for the address; raise ``StepFailed`` if the server exits or takes too long."""
        try:
            endpoint = self._ready.get(timeout=START_LIMIT_S)
        except queue.Empty:
            endpoint = None
        if endpoint is None:
            lines = folder.server_log.read_text(encoding="utf-8").splitlines()[-12:]
            last = "\n  ".join(lines)
            raise StepFailed(f"the server did not start; see {folder.server_log}:\n  {last}")
        self.endpoint = endpoint
        return endpoint

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def end_jobs(self) -> list[str]:
        """End all jobs and wait; return their nodes' leftovers on this machine."""
        self.process.send_signal(signal.SIGUSR1)
        try:
            return self._ended.get(timeout=JOBS_LIMIT_S)
        except queue.Empty:
            return [f"nodes that did not exit within {JOBS_LIMIT_S:.0f} s"]

    def stop(self) -> None:
        """Stop the server and its nodes."""
        for number, limit_s in ((signal.SIGTERM, STOP_LIMIT_S), (signal.SIGKILL, STOP_LIMIT_S)):
            if not self.alive:
                return
            self.process.send_signal(number)
            try:
                self.process.wait(timeout=limit_s)
            except subprocess.TimeoutExpired:
                continue

    def listen(self) -> None:
        """Read events until the server exits."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                event: Event = json.loads(line)
            except json.JSONDecodeError:
                continue
            if event.get("event") == "ready":
                self._ready.put(event["endpoint"])
            elif event.get("event") == "jobs-ended":
                self._ended.put(event["left"])
            elif event.get("event") == "seeded":
                self.seeded.append(event)
            elif event.get("event") == "kubernetes-ready":
                self.kubernetes = event["endpoint"]
            elif event.get("event") == "helm-release":
                self.charts[event["release"]] = event
            elif event.get("event") == "node-started":
                # Values, such as the address, differ between nodes: keep those of the first node,
                # unless a later one has more variables because of its emulated device.
                known, new = self.environment_extras, event["environment"]
                self.environment_extras = known | new if len(new) > len(known) else new | known
            self.on_event(event)
        self._ready.put(None)


def server_command(
    *,
    processes_per_node: int,
    addresses: str,
    processes_of: Mapping[str, int] | None = None,
    runnable_clock: float = 1.0,
    containers: ContainerNodes | None = None,
) -> tuple[str, ...]:
    """Return the server's command line."""
    command = [sys.executable, "-m", "trainium_emulators.aws.server", "--port", "0"]
    command += ["--processes-per-node", str(processes_per_node), "--addresses", addresses]
    command += ["--niceness", str(_NICENESS)]
    for name, number in (processes_of or {}).items():
        command += ["--processes-of", f"{name}={number}"]
    if runnable_clock != 1.0:
        command += ["--runnable-clock", f"{runnable_clock:g}"]
    if containers is not None:
        command += ["--container-image", containers.image]
        command += ["--container-engine", str(containers.engine)]
    return tuple(command)


def start_server(
    command: tuple[str, ...],
    *,
    folder: RehearsalFolder,
    environment: Mapping[str, str],
    on_event: Callable[[Event], None],
) -> ServerProcess:
    """Start the server, which exits with this process even if that is killed."""
    with folder.server_log.open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**environment, "PYTHONPATH": f"{ROOT / 'emulators'}:{ROOT}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
            preexec_fn=_die_with_parent(),
        )
    server = ServerProcess(process=process, on_event=on_event)
    threading.Thread(target=server.listen, name="server events", daemon=True).start()
    return server


def _die_with_parent() -> Callable[[], None] | None:
    """Return a function that, between fork and exec, requests a signal on the parent's death."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)  # before the fork, because imports are unsafe after it
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def wait_until(condition: Callable[[], bool], *, limit_s: float, step_s: float = 0.2) -> bool:
    """Wait until ``condition`` holds; return False if it does not within ``limit_s``."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(step_s)
    return True
