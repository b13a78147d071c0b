"""What a launcher runs on its node: a gang of workers, a lone one, or a user's program.

``LocalNode`` is all that the roles of a node (``supervisor.py``) know of it. The workers of this
project report for themselves; a program's node (``program.py``) is watched from outside.
"""

from __future__ import annotations

import contextlib
import logging
import platform
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from training.core.arguments import Request
from training.core.contract import NodeContract
from training.core.processes import is_gone, kill_marked, signal_quietly, start_process
from training.core.progress import ENV_SCRATCH, Failure, WorkerState, read_failures, read_states
from training.launcher import settings
from training.launcher.addresses import interface_of
from training.launcher.compile_graphs import compile_command
from training.launcher.messages import Message
from training.launcher.verdict import Verdict, better
from training.workloads import IMPLEMENTATIONS
from trainium_catalogue.contract import CACHE_PREFIX
from trainium_catalogue.exit_codes import ExitCode

_WORKER_MODULE = "training.worker"
AGENT_LOG = "torchrun.log"
_BETWEEN_LOOKS_S = 0.25
_START_LIMIT_S = 120.0
"""Time for workers to start, even if the hang limit is shorter."""
AGENT_GRACE_S = 10.0
"""Time for torchrun to report that a worker crashed after finishing its work."""
_ALONE: Mapping[str, str] = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
"""What torchrun would tell the only process."""

log = logging.getLogger(__name__)


class JobObserver:
    """What the main node knows of the workers of all nodes beyond the nodes' own verdicts: nothing,
    unless they run a user's program (``hangs.py``)."""

    def begin(self, now_s: float) -> None:
        """Note that all nodes are here."""

    def note(self, node: int, message: Message, now_s: float) -> None:
        """Note what a node reports of its workers."""

    @property
    def all_prepared(self) -> bool:
        """True once workers that wait for every node may go."""
        return False

    def went(self, now_s: float) -> None:
        """Note that they do."""

    def verdict(self, now_s: float) -> Verdict | None:
        """Judge all nodes together; None while all is well."""
        return None

    def explained(self, decision: Verdict) -> Verdict:
        """Add to the decision what the nodes have reported before."""
        return decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown:
    """The end of a job on one node, once it is decided."""

    grace_s: float
    turn: Callable[[], None]
    """Keeps the link to the other nodes and the guardian alive for a moment."""
    heartbeat: Callable[[], None]
    is_alone: Callable[[], bool]
    """Tells if the connection to another node is lost."""
    is_urgent: Callable[[], bool]
    """Tells if a second request has come, which means to stop at once."""


class LocalNode(ABC):
    """What a launcher runs on its node.

    Of the steps before the work only a program has any: the image has what built-in workloads
    need, and their workers begin when they are started and report for themselves.
    """

    def prepare(self) -> None:  # noqa: B027 - most have nothing to prepare
        """Begin to bring here what the workers need."""

    @abstractmethod
    def start(self, rendezvous_port: int) -> None:
        """Start the workers: all nodes are here."""

    def go(self) -> None:  # noqa: B027 - most do not wait
        """Let workers that wait for it begin: every node is prepared."""

    @abstractmethod
    def look(self, now_s: float) -> Verdict | None:
        """Judge the node's current state; None while all is well."""

    def news(self, now_s: float) -> Iterable[Message]:
        """Return what the main node's observer must know, each thing once."""
        return ()

    def observer(self, now_s: float) -> JobObserver:
        """Make what observes all nodes of the job, if this is the main one."""
        return JobObserver()

    @abstractmethod
    def end(self, decision: Verdict, shutdown: Shutdown) -> None:
        """Let the workers finish where that makes sense, then kill what is left."""

    @abstractmethod
    def kill(self, heartbeat: Callable[[], None]) -> None:
        """Kill everything this launch has started."""


def torchrun_command(
    node: NodeContract,
    *,
    python: str,
    rendezvous_port: int,
    log_folder: Path,
    worker: Sequence[str],
) -> list[str]:
    """Build the command line that starts this node's workers, each of which runs ``worker``.

    Static rendezvous: ranks follow from the node index, and nothing but the main node is needed.
    No restarts: Batch retries the whole job, and an in-place restart would hide the reason
    (docs/adr/0004).
    """
    return [
        python,
        "-m",
        "torch.distributed.run",
        f"--nnodes={node.num_nodes}",
        f"--nproc-per-node={node.processes_per_node}",
        f"--node-rank={node.node_rank}",
        "--rdzv-backend=static",
        f"--rdzv-id={node.job_id}-{node.attempt}",
        f"--master-addr={node.main_address}",
        f"--master-port={rendezvous_port}",
        # Otherwise the agent looks up its own host name, which may wait for a name server.
        f"--local-addr={node.address}",
        "--max-restarts=0",
        # Nothing is redirected, but torchrun creates the folder and would leave one in /tmp.
        f"--log-dir={log_folder}",
        *worker,
    ]


def worker_argv(argv: Sequence[str]) -> list[str]:
    """Build the end of torchrun's command line: the worker of a workload, and its arguments."""
    # Otherwise argparse takes a workload's --run for an abbreviation of torchrun's --run-path.
    return ["-m", "--", _WORKER_MODULE, *argv]


class WorkerNode(LocalNode):
    """The workers of a built-in workload on this node, under torchrun."""

    agent_name = "torchrun"

    def __init__(
        self, request: Request, node: NodeContract, env: Mapping[str, str], scratch: Path
    ) -> None:
        self._request, self._node, self._env, self._scratch = request, node, env, scratch
        self._label = f"node {node.node_index}"
        self._num_workers = node.processes_per_node
        self._hang_limit_s = request.launch.hang_limit_s
        self._agent: subprocess.Popen[bytes] | None = None
        self._looked_s = float("-inf")
        self._stamps: dict[Path, int] = {}
        self._moved_s: dict[Path, float] = {}
        self._started_s = 0.0
        self._succeeded = False
        self.verdict: Verdict | None = None

    def start(self, rendezvous_port: int) -> None:
        """Start the workers: all nodes are here."""
        command, env = self._command(rendezvous_port), self._environment()
        log.info("launch: start: %s", " ".join(command))
        self._start_agent(command, env)

    def _command(self, rendezvous_port: int) -> list[str]:
        command = torchrun_command(
            self._node,
            python=sys.executable,
            rendezvous_port=rendezvous_port,
            log_folder=self._scratch,
            worker=self._worker(),
        )
        if self._request.values.get("compile-only"):
            return compile_command(
                self._node, command, python=sys.executable, argv=self._request.argv
            )
        return command

    def _worker(self) -> list[str]:
        return worker_argv(self._request.argv)

    def _environment(self) -> dict[str, str]:
        workload = self._request.workload
        system = settings.System(
            kernel=platform.release(),
            interface=interface_of(self._node.address),
            has_cache=CACHE_PREFIX in workload.writes,
            dataset_kind=workload.dataset_kind,
            is_own_model=not workload.runs_program,
            needs_torch=IMPLEMENTATIONS[workload.name].needs_torch,
        )
        env, remarks = settings.worker_environment(self._env, self._node, system)
        for remark in remarks:
            log.info("launch: %s", remark)
        return env

    def _start_agent(
        self, command: Sequence[str], env: Mapping[str, str], *, stdout: int | None = None
    ) -> None:
        """Start torchrun, or the only worker; its output goes to ``stdout``, a file descriptor, or
        to this process's own."""
        self._started_s = time.monotonic()
        # torchrun reports a failed worker with its own traceback and names whichever broken
        # connection it saw first as "root cause". The workers' reports are better, so this is
        # shown only if there are none.
        with (self._scratch / AGENT_LOG).open("wb") as agent_log:
            env = {**env, ENV_SCRATCH: str(self._scratch)}
            self._agent = start_process(command, env, stdout=stdout, stderr=agent_log)

    def look(self, now_s: float) -> Verdict | None:
        """Judge the node's current state; None while all is well."""
        if self._agent is None or self._succeeded:
            return self.verdict
        status = self._agent.poll()
        if status is None and now_s - self._looked_s < _BETWEEN_LOOKS_S:
            return self.verdict
        self._looked_s = now_s
        found = self._judge(status, now_s)
        if found is not None:
            self.verdict = better(self.verdict, found)
            self._succeeded = self.verdict.code is ExitCode.OK
        return self.verdict

    def _judge(self, status: int | None, now_s: float) -> Verdict | None:
        states = read_states(self._scratch)
        gone = [path for path, state in states.items() if not state.done and is_gone(state.pid)]
        # Again, because a worker writes its last report, or its failure, just before it exits.
        states = read_states(self._scratch)
        failures = read_failures(self._scratch)
        if failures:
            return self._failed(failures)
        if status == 0:
            return self._finished()
        if silent := [states[path] for path in gone if not states[path].done]:
            ranks = ", ".join(str(state.rank) for state in silent)
            return self._host(
                f"rank {ranks} ended without a word (killed, crashed or out of memory)"
            )
        if status is not None:
            return self._agent_failed(status)
        return self._hang(states, now_s)

    def _failed(self, failures: Iterable[Failure]) -> Verdict:
        """Judge workers that have reported why they fail: the best evidence counts."""
        first = min(failures, key=lambda f: (Verdict(code=f.code, reason="").strength, f.weak))
        return Verdict(
            code=first.code,
            reason=f"{self._label}: {first.whose}{first.error}",
            symptom=first.code is ExitCode.HOST,
            weak=first.weak,
        )

    def _agent_failed(self, status: int) -> Verdict:
        """Judge an agent that has failed although no worker has reported anything."""
        if self.verdict is None:
            log.info("%s", self._agent_log())
        how = f"ended with {status}" if status > 0 else f"was killed by signal {-status}"
        return self._host(f"{self.agent_name} {how} and no worker says why")

    def _agent_log(self) -> str:
        return (self._scratch / AGENT_LOG).read_text(errors="replace")

    def _finished(self) -> Verdict:
        return Verdict(code=ExitCode.OK, reason=f"{self._label}: all workers finished")

    def _hang(self, states: Mapping[Path, WorkerState], now_s: float) -> Verdict | None:
        for path in states:
            # Look for changes of the file's time, not its age: the wall clock may be adjusted.
            stamp = path.stat().st_mtime_ns
            if self._stamps.get(path) != stamp:
                self._stamps[path], self._moved_s[path] = stamp, now_s
        limit_s, limit_name = self._hang_limit_s, "hang-limit-s"
        if len(states) < self._num_workers or not all(s.ready for s in states.values()):
            # Imports and the rendezvous of all ranks wait for the slowest node.
            limit_s, limit_name = max(limit_s, _START_LIMIT_S), "to start"
        if len(states) < self._num_workers:
            silent_s = now_s - self._started_s
            what = f"{self._num_workers - len(states)} of {self._num_workers} workers did not start"
        elif waiting := [path for path, state in states.items() if not is_gone(state.pid)]:
            path = min(waiting, key=lambda p: self._moved_s[p])
            silent_s = now_s - self._moved_s[path]
            state = states[path]
            step = "the end of its process" if state.done else state.step
            what = f"rank {state.rank} made no progress at: {step}"
        elif now_s - max(self._moved_s.values()) > AGENT_GRACE_S:
            # torchrun is waiting for the other nodes' agents or is stuck; the work is done anyway.
            return self._finished()
        else:
            return None
        if silent_s <= limit_s:
            return None
        return self._host(f"{what}, for {limit_s:g} s ({limit_name})")

    def _host(self, reason: str) -> Verdict:
        return Verdict(code=ExitCode.HOST, reason=f"{self._label}: {reason}")

    def end(self, decision: Verdict, shutdown: Shutdown) -> None:
        """Let the workers finish where that makes sense, then kill what is left."""
        if decision.graceful and self.running:
            self._wait_for_workers(shutdown, shutdown.grace_s)
        self.kill(shutdown.heartbeat)

    def _wait_for_workers(self, shutdown: Shutdown, grace_s: float) -> None:
        log.info("launch: SIGTERM to the workers; %g s to finish", grace_s)
        self.send_sigterm()
        deadline = time.monotonic() + grace_s
        while self.running and time.monotonic() < deadline and not shutdown.is_urgent():
            shutdown.turn()

    def send_sigterm(self) -> None:
        """Pass SIGTERM on to the workers."""
        for state in read_states(self._scratch).values():
            if not state.done:
                signal_quietly(state.pid, signal.SIGTERM)

    @property
    def running(self) -> bool:
        """True while any worker process is alive."""
        return any(not is_gone(state.pid) for state in read_states(self._scratch).values())

    def kill(self, heartbeat: Callable[[], None]) -> None:
        """Kill everything this launch has started."""
        if self._agent is None:
            return
        self._agent.kill()
        kill_launch(self._scratch, heartbeat)
        reap(self._agent)


class LoneWorkerNode(WorkerNode):
    """The only worker of a data job.

    There is nothing to rendezvous with, and without torchrun a job starts without torch, whose
    import takes longer than many a data job.
    """

    agent_name = "its process"

    def _command(self, rendezvous_port: int) -> list[str]:
        return [sys.executable, "-u", "-m", _WORKER_MODULE, *self._request.argv]

    def _environment(self) -> dict[str, str]:
        return {**super()._environment(), **_ALONE}


def kill_launch(scratch: Path, heartbeat: Callable[[], None]) -> None:
    """Kill every process with the mark of the launch that ``scratch`` belongs to."""
    if left := kill_marked(ENV_SCRATCH, str(scratch), heartbeat=heartbeat):
        log.info("launch: processes %s cannot be killed; they wait in the kernel", left)


def reap(process: subprocess.Popen[bytes]) -> None:
    """Collect a process that has been killed."""
    with contextlib.suppress(subprocess.TimeoutExpired):  # it is stuck in the kernel
        process.wait(timeout=1)
