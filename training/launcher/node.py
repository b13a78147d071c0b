"""The workers of this node: their command line, start, supervision and end."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from training.core.contract import NodeContract
from training.core.processes import die_with_parent, is_gone, kill_marked, signal_quietly
from training.core.progress import ENV_SCRATCH, WorkerState, read_failures, read_states
from training.launcher.verdict import Verdict, better
from trainium_catalogue.exit_codes import ExitCode

_WORKER_MODULE = "training.worker"
AGENT_LOG = "torchrun.log"
_BETWEEN_LOOKS_S = 0.25
_START_LIMIT_S = 120.0
"""Time for workers to start, even if the hang limit is shorter."""
AGENT_GRACE_S = 10.0
"""Time for torchrun to report that a worker crashed after finishing its work."""

log = logging.getLogger(__name__)


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


def worker_words(argv: Sequence[str]) -> list[str]:
    """Build the end of torchrun's command line: the worker of a workload, and its arguments."""
    # Otherwise argparse takes a workload's --run for an abbreviation of torchrun's --run-path.
    return ["-m", "--", _WORKER_MODULE, *argv]


def lone_worker_command(argv: Sequence[str], *, python: str) -> list[str]:
    """Build the command line of a data job's only process.

    There is nothing to rendezvous with, and without torchrun a job starts without torch, whose
    import takes longer than many a data job.
    """
    return [python, "-u", "-m", _WORKER_MODULE, *argv]


ALONE: Mapping[str, str] = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
"""What torchrun would tell the only process."""


class LocalNode:
    """torchrun and its workers on this node, or its only worker."""

    def __init__(
        self,
        *,
        label: str,
        scratch: Path,
        num_workers: int,
        hang_limit_s: float,
        agent: str = "torchrun",
    ) -> None:
        self._label, self._agent_name = label, agent
        self._scratch = scratch
        self._num_workers = num_workers
        self._hang_limit_s = hang_limit_s
        self._agent: subprocess.Popen[bytes] | None = None
        self._looked_s = float("-inf")
        self._seen: dict[Path, int] = {}
        self._moved_s: dict[Path, float] = {}
        self._started_s = 0.0
        self._succeeded = False
        self.verdict: Verdict | None = None

    def start(
        self, command: Sequence[str], env: Mapping[str, str], *, stdout: int | None = None
    ) -> None:
        """Start torchrun, or the only worker, in a session of its own; it dies with this process.

        Its output goes to ``stdout``, a file descriptor, or to this process's own.
        """
        launcher = os.getpid()
        self._started_s = time.monotonic()
        # torchrun reports a failed worker with its own traceback and names whichever broken
        # connection it saw first as "root cause". The workers' reports are better, so this is
        # shown only if there are none.
        with (self._scratch / AGENT_LOG).open("wb") as agent_log:
            # This process has one thread, so code between fork and exec is safe.
            self._agent = subprocess.Popen(
                command,
                env={**env, ENV_SCRATCH: str(self._scratch)},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=agent_log,
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(launcher),
            )

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
            first = min(failures, key=lambda f: Verdict(code=f.code, reason="").strength)
            return Verdict(
                code=first.code,
                reason=f"{self._label}: {first.whose}{first.error}",
                symptom=first.code is ExitCode.HOST,
            )
        if status == 0:
            return Verdict(code=ExitCode.OK, reason=f"{self._label}: all workers finished")
        if silent := [states[path] for path in gone if not states[path].done]:
            ranks = ", ".join(str(state.rank) for state in silent)
            return self._host(
                f"rank {ranks} ended without a word (killed, crashed or out of memory)"
            )
        if status is not None:
            if self.verdict is None:
                log.info("%s", (self._scratch / AGENT_LOG).read_text(errors="replace"))
            how = f"ended with {status}" if status > 0 else f"was killed by signal {-status}"
            return self._host(f"{self._agent_name} {how} and no worker says why")
        return self._hang(states, now_s)

    def _hang(self, states: Mapping[Path, WorkerState], now_s: float) -> Verdict | None:
        for path in states:
            # Look for changes of the file's time, not its age: the wall clock may be adjusted.
            stamp = path.stat().st_mtime_ns
            if self._seen.get(path) != stamp:
                self._seen[path], self._moved_s[path] = stamp, now_s
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
            return Verdict(code=ExitCode.OK, reason=f"{self._label}: all workers finished")
        else:
            return None
        if silent_s <= limit_s:
            return None
        return self._host(f"{what}, for {limit_s:g} s ({limit_name})")

    def _host(self, reason: str) -> Verdict:
        return Verdict(code=ExitCode.HOST, reason=f"{self._label}: {reason}")

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


def kill_launch(scratch: Path, heartbeat: Callable[[], None]) -> None:
    """Kill every process with the mark of the launch that ``scratch`` belongs to."""
    if left := kill_marked(ENV_SCRATCH, str(scratch), heartbeat=heartbeat):
        log.info("launch: processes %s cannot be killed; they wait in the kernel", left)


def reap(process: subprocess.Popen[bytes]) -> None:
    """Collect a process that has been killed."""
    with contextlib.suppress(subprocess.TimeoutExpired):  # it is stuck in the kernel
        process.wait(timeout=1)
