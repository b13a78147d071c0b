"""A launcher's local processes: workers under torchrun, a single worker, or a user's program.

The node's roles (``supervisor.py``) know all three as ``WorkerNode``. This project's workers report
their own progress; a user's program (``program.py``) is observed from outside.
"""

from __future__ import annotations

import contextlib
import logging
import platform
import signal
import subprocess
import sys
import time
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
from training.launcher.compiler_slots import path_with_slots
from training.launcher.messages import Message
from training.launcher.verdict import Verdict, better
from training.workloads import IMPLEMENTATIONS
from trainium_catalogue.contract import CACHE_PREFIX
from trainium_catalogue.exit_codes import ExitCode
from trainium_catalogue.wording import counted

_WORKER_MODULE = "training.worker"
AGENT_LOG = "torchrun.log"
_POLL_INTERVAL_S = 0.25
_START_LIMIT_S = 120.0
"""Time allowed for workers to start, even if the hang limit is shorter."""
AGENT_GRACE_S = 10.0
"""Time for torchrun to report that a worker crashed after finishing its work."""
_ALONE: Mapping[str, str] = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
"""Variables that torchrun would set for a single process."""

log = logging.getLogger(__name__)


class JobObserver:
    """The main node's view of all nodes' workers, beyond the nodes' own verdicts.

    A no-op unless they run a user's program (``hangs.py``).
    """

    def begin(self, now_s: float) -> None:
        """Record that all nodes have joined."""

    def note(self, node: int, message: Message, now_s: float) -> None:
        """Record a node's report on its workers."""

    @property
    def all_prepared(self) -> bool:
        """True once workers that wait for every node may start."""
        return False

    def program_started(self, now_s: float) -> None:
        """Record that these workers have started."""

    def verdict(self, now_s: float) -> Verdict | None:
        """Judge all nodes together; return None while they are healthy."""
        return None

    def explained(self, decision: Verdict) -> Verdict:
        """Add the nodes' earlier reports to the decision."""
        return decision


@dataclass(slots=True)
class StopRequest:
    """Counts SIGTERM and SIGINT; the handler does nothing else."""

    count: int = 0


class GracePeriod:
    """The time left for a node's workers to finish.

    A stop request starts the platform's own countdown to SIGKILL: stop-grace-s plus a margin. It
    therefore shortens a longer period, as before the end of a Capacity Block, to stop-grace-s.
    """

    def __init__(self, length_s: float, stop: StopRequest, *, stop_grace_s: float) -> None:
        self.length_s = length_s
        self._ends_s = time.monotonic() + length_s
        self._stop, self._stop_grace_s = stop, stop_grace_s
        self._is_stopped = False

    def ends_s(self) -> float:
        """Return its end on the monotonic clock; a stop request shortens it first."""
        if self._stop.count:
            self.shorten()
        return self._ends_s

    def shorten(self) -> None:
        """Shorten the period to stop-grace-s from now."""
        ends_s = time.monotonic() + self._stop_grace_s
        if not self._is_stopped and ends_s < self._ends_s:
            log.info("launch: stop requested; %g s left to finish", self._stop_grace_s)
            self.length_s, self._ends_s = self._stop_grace_s, ends_s
        self._is_stopped = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown:
    """Callbacks for shutting down one node once the job is decided."""

    period: GracePeriod
    """The workers' grace period, which a stop request may shorten."""
    turn: Callable[[], None]
    """Runs one iteration of the loop that handles other nodes and the guardian."""
    heartbeat: Callable[[], None]
    is_alone: Callable[[], bool]
    """Returns whether the connection to another node is lost."""
    is_urgent: Callable[[], bool]
    """Returns whether a second stop request has arrived, which means stop immediately."""


def torchrun_command(
    node: NodeContract,
    *,
    python: str,
    rendezvous_port: int,
    log_folder: Path,
    worker: Sequence[str],
) -> list[str]:
    """Build the torchrun command that starts ``worker`` as this node's workers.

    The rendezvous is static: ranks follow from the node index, and only the main node is needed.
    There are no restarts: Batch retries the whole job, and an in-place restart would hide the
    reason (docs/adr/0004).
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
        # Otherwise the agent resolves its own host name, which may block on DNS.
        f"--local-addr={node.address}",
        "--max-restarts=0",
        # Unused, but otherwise torchrun would leave a folder in /tmp.
        f"--log-dir={log_folder}",
        *worker,
    ]


def worker_argv(argv: Sequence[str]) -> list[str]:
    """Build the last part of torchrun's command line: the worker module and its arguments."""
    # Otherwise argparse reads a workload's --run as an abbreviation of torchrun's --run-path.
    return ["-m", "--", _WORKER_MODULE, *argv]


class WorkerNode:
    """The workers of a built-in workload on this node, under torchrun.

    Only programs are prepared and wait for ``go``: the image contains everything that built-in
    workloads need, so their workers start immediately and report their own progress.
    """

    agent_name = "torchrun"
    verdict: Verdict | None = None
    """The latest result of ``poll``."""

    def __init__(
        self, request: Request, node: NodeContract, env: Mapping[str, str], scratch: Path
    ) -> None:
        self._request, self._node, self._env, self._scratch = request, node, env, scratch
        self._label = f"node {node.node_index}"
        self._num_workers = node.processes_per_node
        self._hang_limit_s = request.launch.hang_limit_s
        self._agent: subprocess.Popen[bytes] | None = None
        self._polled_s = float("-inf")
        self._stamps: dict[Path, int] = {}
        self._progress_s: dict[Path, float] = {}
        self._started_s = 0.0
        self._succeeded = False

    def prepare(self) -> None:
        """Start fetching the workers' files and data."""

    def start(self, rendezvous_port: int) -> None:
        """Start the workers once all nodes have joined."""
        command, env = self._command(rendezvous_port), self._environment()
        log.info("launch: start: %s", " ".join(command))
        self._start_agent(command, env)

    def go(self) -> None:
        """Let waiting workers start, now that every node is prepared."""

    def news(self, now_s: float) -> Iterable[Message]:
        """Return new messages for the main node's observer."""
        return ()

    def mail(self) -> Iterable[Message]:
        """Return messages for every child (main node) or for the main node (child)."""
        return ()

    def receive(self, node: int, message: Message) -> Message | None:
        """Handle another node's mail; return the reply, if any."""
        return None

    def observer(self, now_s: float) -> JobObserver:
        """Create the main node's observer of all nodes."""
        return JobObserver()

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
            neff_cache="" if workload.runs_program else str(self._scratch / "neff"),
            neff_local_cache=str(self._scratch / "neff-local"),
            needs_torch=IMPLEMENTATIONS[workload.name].needs_torch,
        )
        env, remarks = settings.worker_environment(self._env, self._node, system)
        for remark in remarks:
            log.info("launch: %s", remark)
        env = self._adapt(env)
        if path := env.get("PATH"):
            env["PATH"] = path_with_slots(path, self._node, self._scratch)
        return env

    def _adapt(self, env: dict[str, str]) -> dict[str, str]:
        """Adapt the environment of this project's workers to other ones."""
        return env

    def _start_agent(
        self, command: Sequence[str], env: Mapping[str, str], *, stdout: int | None = None
    ) -> None:
        """Start torchrun, or the single worker, with file descriptor ``stdout`` (None: inherit)."""
        self._started_s = time.monotonic()
        # When a worker fails, torchrun prints its own traceback and calls the first broken
        # connection the "root cause". The workers' reports are better, so its log is shown only if
        # there are none.
        with (self._scratch / AGENT_LOG).open("wb") as agent_log:
            env = {**env, ENV_SCRATCH: str(self._scratch)}
            self._agent = start_process(command, env, stdout=stdout, stderr=agent_log)

    def poll(self, now_s: float) -> Verdict | None:
        """Judge the node's current state; return None while it is healthy."""
        if self._agent is None or self._succeeded:
            return self.verdict
        status = self._agent.poll()
        if status is None and now_s - self._polled_s < _POLL_INTERVAL_S:
            return self.verdict
        self._polled_s = now_s
        verdict = self._judge(status, now_s)
        if verdict is not None:
            self.verdict = better(self.verdict, verdict)
            self._succeeded = self.verdict.code is ExitCode.OK
        return self.verdict

    def _judge(self, status: int | None, now_s: float) -> Verdict | None:
        states = read_states(self._scratch)
        gone = [path for path, state in states.items() if not state.done and is_gone(state.pid)]
        # Read again: a worker writes its last report or its failure just before it exits.
        states = read_states(self._scratch)
        failures = read_failures(self._scratch)
        if failures:
            return self._failure_verdict(failures)
        if status == 0:
            return self._success_verdict()
        if silent := [states[path] for path in gone if not states[path].done]:
            noun = "rank" if len(silent) == 1 else "ranks"
            ranks = ", ".join(str(state.rank) for state in silent)
            return self._host_verdict(
                f"{noun} {ranks} exited without reporting an error (killed, crashed or out of "
                "memory)"
            )
        if status is not None:
            return self._agent_verdict(status)
        return self._hang_verdict(states, now_s)

    @property
    def steps_completed(self) -> int | None:
        """Optimizer steps completed by the workers; None if they do not report them."""
        states = read_states(self._scratch).values()
        return max((state.steps_completed for state in states), default=0) or None

    def _failure_verdict(self, failures: Iterable[Failure]) -> Verdict:
        """Judge reported failures by the best evidence."""
        first = min(
            failures,
            key=lambda f: (Verdict(code=f.code, reason="").precedence, f.weak, not f.unfit_host),
        )
        return Verdict(
            code=first.code,
            reason=f"{self._label}: {first.whose}{first.error}",
            unfit_host=first.unfit_host,
            symptom=first.code is ExitCode.HOST and not first.unfit_host,
            weak=first.weak,
        )

    def _agent_verdict(self, status: int) -> Verdict:
        """Judge a failed agent whose workers reported nothing."""
        if self.verdict is None:
            log.info("%s", self._agent_log())
        how = f"exited with {status}" if status > 0 else f"was killed by signal {-status}"
        return self._host_verdict(f"{self.agent_name} {how} and no worker reported an error")

    def _agent_log(self) -> str:
        return (self._scratch / AGENT_LOG).read_text(errors="replace")

    def _success_verdict(self) -> Verdict:
        return Verdict(code=ExitCode.OK, reason=f"{self._label}: all workers finished")

    def _hang_verdict(self, states: Mapping[Path, WorkerState], now_s: float) -> Verdict | None:
        for path in states:
            # Compare modification times for changes, not age: the wall clock may be adjusted.
            stamp = path.stat().st_mtime_ns
            if self._stamps.get(path) != stamp:
                self._stamps[path], self._progress_s[path] = stamp, now_s
        limit_s, limit_name = self._hang_limit_s, "hang-limit-s"
        if len(states) < self._num_workers or not all(s.ready for s in states.values()):
            # Every node waits for the slowest one's imports in the rendezvous.
            limit_s, limit_name = max(limit_s, _START_LIMIT_S), "the limit for starting"
        if len(states) < self._num_workers:
            silent_s = now_s - self._started_s
            what = (
                f"{self._num_workers - len(states)} of {counted(self._num_workers, 'worker')} did "
                "not start"
            )
        elif waiting := [path for path, state in states.items() if not is_gone(state.pid)]:
            path = min(waiting, key=lambda p: self._progress_s[p])
            silent_s = now_s - self._progress_s[path]
            state = states[path]
            step = "the end of its process" if state.done else state.step
            what = f"rank {state.rank} made no progress at: {step}"
        elif now_s - max(self._progress_s.values()) > AGENT_GRACE_S:
            # torchrun waits for other nodes' agents or is stuck, but the work is done.
            return self._success_verdict()
        else:
            return None
        if silent_s <= limit_s:
            return None
        return self._host_verdict(f"{what}, for {limit_s:g} s ({limit_name})")

    def _host_verdict(self, reason: str) -> Verdict:
        return Verdict(code=ExitCode.HOST, reason=f"{self._label}: {reason}")

    def end(self, decision: Verdict, shutdown: Shutdown) -> None:
        """Let the workers finish if possible, then kill remaining processes."""
        if decision.graceful and self.running:
            self._wait_for_workers(shutdown, shutdown.period.ends_s)
        self.kill(shutdown.heartbeat)

    def _wait_for_workers(self, shutdown: Shutdown, ends_s: Callable[[], float]) -> None:
        remaining_s = round(ends_s() - time.monotonic(), 1)
        log.info("launch: SIGTERM to the workers; %g s to finish", remaining_s)
        self.send_sigterm()
        while self.running and time.monotonic() < ends_s() and not shutdown.is_urgent():
            shutdown.turn()

    def send_sigterm(self) -> None:
        """Forward SIGTERM to the workers."""
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
    """The single worker of a data job.

    It needs no rendezvous. Without torchrun it also avoids importing torch, which takes longer than
    many data jobs.
    """

    agent_name = "its process"

    def _command(self, rendezvous_port: int) -> list[str]:
        return [sys.executable, "-u", "-m", _WORKER_MODULE, *self._request.argv]

    def _environment(self) -> dict[str, str]:
        return {**super()._environment(), **_ALONE}


def kill_launch(scratch: Path, heartbeat: Callable[[], None]) -> None:
    """Kill every process marked with ``scratch``."""
    if remaining := kill_marked(ENV_SCRATCH, str(scratch), heartbeat=heartbeat):
        log.info(
            "launch: cannot kill these processes, which are stuck in the kernel: %s",
            ", ".join(map(str, remaining)),
        )


def reap(process: subprocess.Popen[bytes]) -> None:
    """Reap a killed process."""
    with contextlib.suppress(subprocess.TimeoutExpired):  # it is stuck in the kernel
        process.wait(timeout=1)
