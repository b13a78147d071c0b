"""Jobs of several emulated nodes, as real processes on this machine."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from training.core.logs import set_up_logging
from training.core.processes import find_marked, signal_quietly

ROOT = Path(__file__).resolve().parents[2]
BUCKET = "bucket-of-nodes"
_SERIAL = itertools.count()
ENDLESS = ("--max-bytes=1024", "--iterations=10000000", "--seconds-per-size=600")


class Cluster:
    """Nodes 0 to n - 1 of one job, each a ``python -m training.launch``."""

    def __init__(self, folder: Path, *, num_nodes: int, main_index: int = 0) -> None:
        self.folder = folder
        self.num_nodes = num_nodes
        self.main_index = main_index
        self.mark = uuid.uuid4().hex
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        # A separate network, because other tests may run concurrently; all of 127/8 is loopback.
        self._network = f"127.{64 + os.getpid() % 128}.{next(_SERIAL) % 250}"

    def address(self, index: int) -> str:
        return f"{self._network}.{2 + index}"

    def environment(self, index: int) -> dict[str, str]:
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "PYTHONPATH": str(ROOT),
            "CLUSTER_MARK": self.mark,
            "TRAINIUM_DEVICE": "cpu",
            "TRAINIUM_NODE_ADDRESS": self.address(index),
            "TRAINIUM_RUN": "test-run",
            "AWS_BATCH_JOB_ID": f"{self.mark}#{index}",
            "AWS_BATCH_JOB_ATTEMPT": "1",
            "AWS_BATCH_JOB_NODE_INDEX": str(index),
            "AWS_BATCH_JOB_NUM_NODES": str(self.num_nodes),
            "AWS_BATCH_JOB_MAIN_NODE_INDEX": str(self.main_index),
        }
        if index != self.main_index:
            env["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = self.address(self.main_index)
        return env

    def start(
        self,
        *flags: str,
        workload: str = "all-reduce",
        nodes: Sequence[int] | None = None,
        prefix: Sequence[str] = (),
        extra: Mapping[str, str] | None = None,
    ) -> None:
        """Start nodes (all by default) with ``flags`` after the workload."""
        for index in range(self.num_nodes) if nodes is None else nodes:
            with self.log_path(index).open("wb") as log:
                self.nodes[index] = subprocess.Popen(
                    [*prefix, sys.executable, "-m", "training.launch", workload, *flags],
                    env={**self.environment(index), **(extra or {})},
                    cwd=self.folder,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )

    def start_endless(self, *flags: str) -> None:
        """Start all nodes on work that ends only by a fault, and wait until it runs."""
        self.start("--peer-timeout-s=3", *ENDLESS, *flags)
        self.wait_for("correct", node=self.main_index)

    def log_path(self, index: int) -> Path:
        return self.folder / f"node-{index}.log"

    def log(self, index: int) -> str:
        return self.log_path(index).read_text()

    def wait_for(self, text: str, *, node: int, within_s: float = 120) -> None:
        deadline = time.monotonic() + within_s
        while text not in self.log(node):
            assert time.monotonic() < deadline, f"no {text!r} in\n{self.log(node)}"
            assert self.nodes[node].poll() is None, self.log(node)
            time.sleep(0.05)

    def launcher(self, index: int) -> int:
        return self.nodes[index].pid

    def worker(self, index: int) -> int:
        """Return the process id of the worker of a node that runs only one."""
        marks = {"TRAINIUM_NODE_ADDRESS": self.address(index), "LOCAL_RANK": "0"}
        (pid,) = set(self.processes()).intersection(*(find_marked(*mark) for mark in marks.items()))
        return pid

    def processes(self) -> list[int]:
        """Return the ids of all running processes started by this cluster."""
        return find_marked("CLUSTER_MARK", self.mark)

    def end(self, *, within_s: float) -> dict[int, int]:
        """Return shell exit codes once every node has ended without leaving processes."""
        deadline = time.monotonic() + within_s
        codes = {}
        for index, node in self.nodes.items():
            try:
                code = node.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pytest.fail(f"node {index} still runs after {within_s} s:\n{self.all_logs()}")
            codes[index] = code if code >= 0 else 128 - code
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self.processes() == [], self.all_logs()
        return codes

    def all_logs(self) -> str:
        return "\n".join(f"--- node {index}\n{self.log(index)}" for index in self.nodes)

    def kill(self) -> None:
        for pid in self.processes():
            signal_quietly(pid, signal.SIGKILL)
        for node in self.nodes.values():
            node.wait()


class Pods(Cluster):
    """Nodes started by Volcano and TorchX."""

    def environment(self, index: int) -> dict[str, str]:
        env = super().environment(index)
        own = {name: value for name, value in env.items() if not name.startswith("AWS_BATCH")}
        main = "VC_NODE_0_HOSTS" if index else "TORCHX_RANK0_HOST"
        return {
            **own,
            "TRAINIUM_JOB_ID": self.mark,
            "TRAINIUM_ATTEMPT": "0",
            "TRAINIUM_NODE_INDEX": str(index),
            "TRAINIUM_NUM_NODES": str(self.num_nodes),
            "TRAINIUM_MAIN_HOST_FROM": main,
            main: self.address(0),
        }


@pytest.fixture(autouse=True, scope="session")
def _log() -> None:
    """Send messages to standard output, as in an entry point."""
    set_up_logging()


@pytest.fixture
def bucket() -> Iterator[dict[str, str]]:
    """Return the environment of nodes with an empty bucket."""
    from tests.training.s3_server import bucket_environment  # takes seconds to import

    with bucket_environment(BUCKET) as environment:
        yield environment


def _job(kind: type[Cluster], *, num_nodes: int, main_index: int = 0) -> Any:
    """Return a fixture that creates a job, and kills its leftover processes after the test."""

    @pytest.fixture
    def job(tmp_path: Path) -> Iterator[Cluster]:
        created = kind(tmp_path, num_nodes=num_nodes, main_index=main_index)
        yield created
        created.kill()

    return job


cluster = _job(Cluster, num_nodes=2)
pods = _job(Pods, num_nodes=2)
# For tests that need only one node: every node starts a torchrun.
lone_node = _job(Cluster, num_nodes=1)
# Its main node is not node 0.
large_cluster = _job(Cluster, num_nodes=4, main_index=1)
