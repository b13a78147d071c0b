"""A main node's launcher, with peers simulated in one process that speaks its protocol."""

import asyncio
import json
import os
import re
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

from benchmarks.node import full_environment
from benchmarks.pairs import Comparison
from training.core.host import raise_file_limit
from training.launcher.messages import Hello
from trainium_catalogue import contract

NAMES = ("peers-dropped", "peers-silent")
MANY = 1000
_FEW = 10
_HEARTBEAT_S = 1.0
_JOIN_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 45.0
_MAX_MEMORY_MIB = 1000
_EXIT_TIMEOUT_S = 120.0


class PeerFault(StrEnum):
    """A fault of one peer after all have joined."""

    SILENT = "falls silent"
    DROPPED = "loses its connection"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerMeasurement:
    """Measurements of a main node's launcher."""

    joined_s: float
    """Seconds from the launcher's start until all nodes had joined."""
    stopped_s: float
    """Seconds from the fault until the main node stopped another peer."""
    memory_mib: float
    """Peak memory of the launcher."""
    cpu_s: float
    """CPU time of the launcher until it stopped the peers."""
    exit_code: int
    output: str


class _Peer(asyncio.Protocol):
    """The connection of one child's launcher."""

    def __init__(self, hello: Hello, stopped: asyncio.Event) -> None:
        self._hello, self._stopped = hello, stopped
        self._received = b""
        self.transport: asyncio.Transport | None = None

    def send(self, message: Mapping[str, object]) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(json.dumps(message).encode() + b"\n")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.send({"type": "hello", **asdict(self._hello)})

    def data_received(self, data: bytes) -> None:
        *lines, self._received = (self._received + data).split(b"\n")
        if any(json.loads(line)["type"] == "stop" for line in lines):
            self._stopped.set()
            self.send({"type": "ended"})
            assert self.transport is not None
            self.transport.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedJob:
    """A job whose main node is a real launcher and whose other nodes are simulated."""

    num_nodes: int
    environment: Mapping[str, str]
    flags: tuple[str, ...] = ()
    """Parameters of the launcher."""
    host: int = 2
    """Last octet of the main node's address."""

    @property
    def address(self) -> str:
        """The main node's loopback address."""
        return f"127.{64 + os.getpid() % 128}.252.{self.host}"

    def run(self, fault: PeerFault) -> PeerMeasurement:
        """Let all nodes join, then inject the fault; return the measurements."""
        raise_file_limit()
        return asyncio.run(self._run(fault))

    async def _run(self, fault: PeerFault) -> PeerMeasurement:
        job_id = uuid.uuid4().hex
        with tempfile.TemporaryDirectory() as folder:
            began_s = time.monotonic()
            main = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "training.launch", "all-reduce", *self.flags),
                cwd=folder,
                env=self.batch_environment(job_id),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            try:
                return await self._observe(main, job_id, fault, began_s)
            finally:
                if main.returncode is None:
                    main.kill()
                    await main.wait()

    async def _observe(
        self, main: asyncio.subprocess.Process, job_id: str, fault: PeerFault, began_s: float
    ) -> PeerMeasurement:
        output: list[str] = []
        all_joined, stopped = asyncio.Event(), asyncio.Event()

        async def read() -> None:
            assert main.stdout is not None
            async for line in main.stdout:
                output.append(line.decode())
                if f"all {self.num_nodes} nodes joined" in output[-1]:
                    all_joined.set()

        reading = asyncio.create_task(read())
        peers = await self._connect_peers(main, job_id, stopped)
        silent: set[int] = set()
        heartbeats = asyncio.create_task(_send_heartbeats(peers, silent))
        await _wait_for(all_joined, _JOIN_TIMEOUT_S, output)
        joined_s = time.monotonic() - began_s

        lost = self.num_nodes // 2
        fault_s = time.monotonic()
        if fault is PeerFault.SILENT:
            silent.add(lost)
        else:
            transport = peers[lost].transport
            assert transport is not None
            transport.abort()
        await _wait_for(stopped, _STOP_TIMEOUT_S, output)
        stopped_s = time.monotonic() - fault_s
        memory_mib, cpu_s = _memory_and_cpu_time(main.pid)
        exit_code = await asyncio.wait_for(main.wait(), _EXIT_TIMEOUT_S)
        await reading
        heartbeats.cancel()
        measurement = PeerMeasurement(
            joined_s=joined_s,
            stopped_s=stopped_s,
            memory_mib=memory_mib,
            cpu_s=cpu_s,
            exit_code=exit_code,
            output="".join(output),
        )
        if f"node {lost} was lost" not in measurement.output or memory_mib > _MAX_MEMORY_MIB:
            raise RuntimeError(f"{memory_mib:.0f} MiB\n{measurement.output}")
        return measurement

    async def _connect_peers(
        self, main: asyncio.subprocess.Process, job_id: str, stopped: asyncio.Event
    ) -> dict[int, _Peer]:
        """Connect every peer as soon as the main node listens."""
        peers: dict[int, _Peer] = {}
        loop = asyncio.get_running_loop()
        for index in range(1, self.num_nodes):
            hello = Hello(job=job_id, attempt=1, node=index, num_nodes=self.num_nodes, problem=None)
            while index not in peers:
                try:
                    _, peers[index] = await loop.create_connection(
                        partial(_Peer, hello, stopped), self.address, contract.PEER_WATCH
                    )
                except ConnectionRefusedError:
                    if main.returncode is not None:
                        raise
                    await asyncio.sleep(0.05)
        return peers

    def batch_environment(self, job_id: str) -> dict[str, str]:
        """Build the main node's environment."""
        return {
            **full_environment(self.environment),
            contract.ENV_PROCESSES_PER_NODE: "1",
            contract.ENV_NODE_ADDRESS: self.address,
            contract.ENV_RUN: "simulated",
            "AWS_BATCH_JOB_ID": f"{job_id}#0",
            "AWS_BATCH_JOB_ATTEMPT": "1",
            "AWS_BATCH_JOB_NODE_INDEX": "0",
            "AWS_BATCH_JOB_NUM_NODES": str(self.num_nodes),
            "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0",
        }


async def _send_heartbeats(peers: Mapping[int, _Peer], silent: set[int]) -> None:
    """Send each peer's heartbeat once a second, evenly spread as with real nodes."""
    while True:
        began_s = time.monotonic()
        for number, (index, peer) in enumerate(peers.items()):
            ahead_s = number / len(peers) * _HEARTBEAT_S - (time.monotonic() - began_s)
            if ahead_s > 0:
                await asyncio.sleep(ahead_s)
            if index not in silent:
                peer.send({"type": "alive"})
        await asyncio.sleep(max(0.0, _HEARTBEAT_S - (time.monotonic() - began_s)))


async def _wait_for(event: asyncio.Event, limit_s: float, output: list[str]) -> None:
    try:
        await asyncio.wait_for(event.wait(), limit_s)
    except TimeoutError:
        raise RuntimeError(f"timed out after {limit_s:g} s:\n{''.join(output)}") from None


def _memory_and_cpu_time(pid: int) -> tuple[float, float]:
    """Read a process's peak resident memory in MiB and its CPU time in seconds."""
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert peak is not None
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(peak[1]) / 1024, (int(fields[11]) + int(fields[12])) / 100


def comparisons(
    environment: Mapping[str, str], note: Callable[[str], None], *, small: bool
) -> list[Comparison]:
    """Compare the time to stop a job that lost a node, with a thousand nodes and with ten.

    ``small`` shortens the peer timeout.
    """
    flags = ("--peer-timeout-s=5",) if small else ()

    def measure(num_nodes: int, fault: PeerFault) -> float:
        job = SimulatedJob(num_nodes=num_nodes, environment=environment, flags=flags)
        measurement = job.run(fault)
        note(
            f"{num_nodes} nodes: all joined after {measurement.joined_s:.1f} s; one {fault}, and "
            f"the job stops after {measurement.stopped_s:.1f} s; launcher: "
            f"{measurement.memory_mib:.0f} MiB, {measurement.cpu_s:.1f} s of CPU time"
        )
        return measurement.stopped_s

    return [
        Comparison(
            name=name,
            product=f"time to stop the job after a node {fault}, {MANY} nodes",
            baseline=f"the same, {_FEW} nodes",
            target=1.2,
            measure_product=partial(measure, MANY, fault),
            measure_baseline=partial(measure, _FEW, fault),
        )
        for name, fault in zip(NAMES, (PeerFault.DROPPED, PeerFault.SILENT), strict=True)
    ]
