"""The nodes of one attempt: started, hit by faults, and awaited."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.local_storage import ENV_NODE, ENV_PLAN
from tests.faults.processes import REAL_MAIN, processes_of, start_node
from tests.faults.schedule import STEPS, Fault
from training.core.processes import signal_quietly
from trainium_catalogue.contract import PEER_WATCH

WORDS = (
    *("--vocab-size=256", "--hidden-size=32", "--intermediate-size=64", "--num-layers=1"),
    *("--seq-len=16", "--global-batch=8", "--micro-batch=4", "--warmup-steps=2", "--lr=0.01"),
    *("--dataset=words", f"--max-steps={STEPS}", "--save-every=2", f"--eval-every={STEPS // 2}"),
    *("--log-every=1", "--peer-timeout-s=4", "--join-timeout-s=30", "--hang-limit-s=15"),
    *("--stop-grace-s=8", "--tensor-parallel=1"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Location and shared state of a schedule's jobs."""

    folder: Path
    orchestrator: str
    network: str
    """First three numbers of its addresses."""
    s3_port: int | None
    bucket: str
    run: str
    plan: Path

    @property
    def num_nodes(self) -> int:
        return 1 if self.orchestrator == "local" else 2


@dataclass(slots=True)
class Job:
    """One attempt."""

    place: Place
    name: str
    attempt: int
    serial: int
    """Number of this attempt in the schedule, which gives its nodes addresses of their own."""
    skews_s: tuple[float, ...] = (0.0, 0.0)
    pids: dict[int, int] = field(default_factory=dict)
    codes: dict[int, int] = field(default_factory=dict)
    cut: threading.Event = field(default_factory=threading.Event)

    def address(self, index: int) -> str:
        return f"{self.place.network}.{4 * self.serial + index + 1}"

    @property
    def forwarder(self) -> str:
        return f"{self.place.network}.{4 * self.serial + 3}"

    @property
    def num_nodes(self) -> int:
        return self.place.num_nodes

    def log_path(self, index: int) -> Path:
        return self.place.folder / f"attempt-{self.serial}-node-{index}.log"

    def _environment(self, index: int) -> dict[str, str]:
        place = self.place
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(place.folder),
            "TRAINIUM_DEVICE": "cpu",
            "TRAINIUM_NODE_ADDRESS": self.address(index),
            "TRAINIUM_RUN": place.run,
            "TRAINIUM_PROCESSES_PER_NODE": "1",
            ENV_PLAN: str(place.plan),
            ENV_NODE: self.address(index),
            REAL_MAIN: self.address(0),
        }
        if place.s3_port is not None:
            env |= {
                "TRAINIUM_BUCKET": place.bucket,
                "AWS_REGION": "us-east-1",
                # The proxy identifies the node by its listening address.
                "AWS_ENDPOINT_URL": f"http://{self.address(index)}:{place.s3_port}",
                "AWS_ACCESS_KEY_ID": "none",
                "AWS_SECRET_ACCESS_KEY": "none",
            }
        if place.orchestrator == "batch":
            env |= {
                "AWS_BATCH_JOB_ID": f"{self.name}#{index}",
                "AWS_BATCH_JOB_ATTEMPT": str(self.attempt),
                "AWS_BATCH_JOB_NODE_INDEX": str(index),
                "AWS_BATCH_JOB_NUM_NODES": str(self.num_nodes),
                "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0",
            }
            if index:
                env["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = self.forwarder
        elif place.orchestrator == "eks":
            env |= {
                "TRAINIUM_JOB_ID": self.name,
                "TRAINIUM_ATTEMPT": str(self.attempt - 1),
                "TRAINIUM_NODE_INDEX": str(index),
                "TRAINIUM_NUM_NODES": str(self.num_nodes),
                "TRAINIUM_MAIN_HOST_FROM": "VC_NODE_0_HOSTS" if index else "TORCHX_RANK0_HOST",
                "VC_NODE_0_HOSTS": self.forwarder,
            }
            if not index:
                env["TORCHX_RANK0_HOST"] = "localhost"
        return env

    def start(self) -> None:
        """Start every node, and the forwarder of their link."""
        for index in range(self.num_nodes):
            self.pids[index] = start_node(
                self._environment(index),
                WORDS,
                folder=self.place.folder,
                log=self.log_path(index),
                skew_s=self.skews_s[index],
            )

    def log(self, index: int) -> str:
        with suppress(FileNotFoundError):
            return self.log_path(index).read_text(errors="replace")
        return ""

    def has(self, line: str) -> bool:
        """Return whether the main node's log has a line that begins so."""
        return f"\n{line}" in f"\n{self.log(0)}"

    def poll(self) -> bool:
        """Collect exited launchers; return True once all have exited."""
        for index, pid in self.pids.items():
            if index not in self.codes:
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    self.codes[index] = os.waitstatus_to_exitcode(status)
        return len(self.codes) == self.num_nodes

    def pids_of(self, what: str, node: int) -> list[int]:
        """Return processes of a node, or of all for -1: of one kind, or every one for ``node``."""
        found = []
        for index in range(self.num_nodes) if node < 0 else (node,):
            for pid in processes_of(self.address(index)):
                kind = "launcher" if pid == self.pids[index] else "worker"
                with suppress(OSError):
                    if Path(f"/proc/{pid}/comm").read_text().strip() == "guardian":
                        kind = "guardian"
                if what in (kind, "node"):
                    found.append(pid)
        return found

    def signal(self, number: signal.Signals, what: str, node: int) -> None:
        for pid in self.pids_of(what, node):
            signal_quietly(pid, number)

    def kill(self) -> None:
        """Kill all remaining processes."""
        for _ in range(3):
            self.signal(signal.SIGKILL, "node", -1)
            time.sleep(0.01)
        while not self.poll():
            time.sleep(0.01)


@dataclass(slots=True)
class Forwarder:
    """Separate process that forwards the launchers' connection until told to drop it."""

    pid: int = 0

    def start(self, listens: str, target: str, switch: Path) -> None:
        self.pid = os.fork()
        if not self.pid:
            with suppress(BaseException):
                _forward(listens, target, switch)
            os._exit(0)

    def end(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0


def _forward(listens: str, target: str, switch: Path) -> None:
    """Forward bytes while the file ``switch`` is absent; hold them while it exists."""
    server = socket.create_server((listens, PEER_WATCH))
    selector = selectors.DefaultSelector()
    selector.register(server, selectors.EVENT_READ)
    other: dict[socket.socket, socket.socket] = {}
    while True:
        ready = selector.select(0.5)
        if switch.exists():
            time.sleep(0.05)
            continue
        for key, _ in ready:
            source: socket.socket = key.fileobj  # type: ignore[assignment]
            if source is server:
                client, _ = server.accept()
                try:
                    peer = socket.create_connection((target, PEER_WATCH), timeout=1)
                except OSError:
                    client.close()
                    continue
                other[client], other[peer] = peer, client
                selector.register(client, selectors.EVENT_READ)
                selector.register(peer, selectors.EVENT_READ)
                continue
            try:
                data = source.recv(65536)
                if data:
                    other[source].sendall(data)
                    continue
            except OSError:
                pass
            for end in (source, other.pop(source)):
                other.pop(end, None)
                with suppress(KeyError, ValueError):
                    selector.unregister(end)
                end.close()


def write_plan(path: Path, faults: list[Mapping[str, object]]) -> None:
    """Replace the storage faults that nodes and the proxy meet."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(faults))
    part.replace(path)


def storage_fault(job: Job, fault: Fault) -> Mapping[str, object]:
    """Return the plan's entry for a fault."""
    return {
        "kind": fault.error,
        "keys": fault.what,
        "node": "" if fault.node < 0 else job.address(fault.node),
        "tenths": fault.tenths,
        "until_s": time.monotonic() + fault.seconds,
    }
