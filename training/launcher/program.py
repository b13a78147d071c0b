"""A node that runs a user's program: its preparation, torchrun, output and snapshots."""

from __future__ import annotations

import logging
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import training.program
from training.core.arguments import Request
from training.core.contract import NodeContract
from training.core.processes import is_gone, signal_quietly, start_process
from training.core.progress import ENV_SCRATCH, read_failures, read_states
from training.launcher.courier import Courier
from training.launcher.evidence import ProgramLiveness
from training.launcher.hangs import ProgramObserver
from training.launcher.home import acquire_home
from training.launcher.messages import Departure, Message
from training.launcher.node import AGENT_GRACE_S, Shutdown, WorkerNode, kill_launch, reap
from training.launcher.settings import remove_shared_presets
from training.launcher.verdict import Verdict
from training.program.environment import OWN_ROOTS, program_environment
from training.program.remarks import FileRemarks
from training.program.reports import (
    GO_FILE,
    OUTPUT,
    PREPARATION,
    PROGRAM_FILE,
    RESULTS,
    RESULTS_FAILURE_FILE,
    OutputReport,
    Preparation,
)
from training.program.settings import ProgramFolders, ProgramSettings, files_below
from training.program.snapshots.process import Problem, SnapshotProcess, SnapshotSettings
from trainium_catalogue.contract import ENV_NODE_ADDRESS
from trainium_catalogue.exit_codes import ExitCode

_WORKER = str(Path(training.program.__path__[0]).resolve() / "worker.py")
_EXIT_GRACE_S = 5.0
"""Time for a program that raised an error to exit, including exit handlers and log uploads."""
_LAST_LINE_DELAY_S = 0.75
"""Time until the last line of output has been processed."""
_DRAIN_S = 5.0
_RELEASE_S = 2.0
_SNAPSHOT_START_DELAY_S = 3.0
_SNAPSHOT_EXIT_GRACE_S = 1.0
_MAX_SNAPSHOT_S = 30.0
"""Part of the grace period reserved for the last snapshot of a program's files."""
_FINAL_UPLOAD_S = 5.0
"""Time for a failed job to update the run's status and upload its output."""
_EXIT = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: \d+\)")
"""torchrun's message about the first worker to fail (SubprocessContext._poll in
torch/distributed/elastic/multiprocessing/api.py)."""
_CLOSING = "closing signal"
"""Part of torchrun's message when it stops a node's remaining workers because one has failed."""
_AGENT_REPORT_S = 2.0
_TRACEBACK_S = 2.0
_ERROR_LINE = re.compile(r"\berror:", re.IGNORECASE)
_HINTS: Mapping[int, str] = {
    signal.SIGKILL: " (by the kernel if out of memory, or by another process)",
    signal.SIGABRT: " (native code aborted, as it does when a peer is lost; its message is above)",
    signal.SIGSEGV: " (a crash in native code; Python's traceback is above)",
    signal.SIGBUS: " (a crash in native code, or /dev/shm is full; Python's traceback is above)",
}

log = logging.getLogger(__name__)


class ProgramNode(WorkerNode):
    """The processes of one node of a job that runs a user's program."""

    def __init__(
        self,
        request: Request,
        node: NodeContract,
        env: Mapping[str, str],
        scratch: Path,
        *,
        heartbeat: Callable[[], None],
    ) -> None:
        """Set up the program's home folder."""
        super().__init__(request, node, env, scratch)
        # An explicit address means that several nodes share this machine.
        self._shares_machine = ENV_NODE_ADDRESS in env
        acquire_home(scratch, node, shares_machine=self._shares_machine, heartbeat=heartbeat)
        self._settings = settings = ProgramSettings.from_request(request)
        self._folders = ProgramFolders.of(scratch, settings, node)
        self._preparation: subprocess.Popen[bytes] | None = None
        self._snapshots: SnapshotProcess | None = None
        self._courier = Courier(scratch, is_main=node.is_main)
        self._output: subprocess.Popen[bytes] | None = None
        self._results: subprocess.Popen[bytes] | None = None
        self._life = ProgramLiveness(
            scratch, self._folders.cache, node.device, hang_limit_s=self._hang_limit_s
        )
        self._remarks: FileRemarks | None = None
        self._unsent: list[Message] = []
        self._is_prepared = self._has_requested_final = False
        self._killed_workers = self._has_left = False
        self._program_started_s: float | None = None
        self._first_failure_s: float | None = None
        self._all_exited_s: float | None = None
        log.info("launch: program: %s", f"{settings.name} {shlex.join(settings.argv)}".rstrip())

    def observer(self, now_s: float) -> ProgramObserver:
        """Create the observer of the program on all nodes."""
        return ProgramObserver(self._node, hang_limit_s=self._hang_limit_s, now_s=now_s)

    def news(self, now_s: float) -> Iterable[Message]:
        """Return new messages for the main node's observer, each once."""
        pending, self._unsent = self._unsent, []
        return (*pending, *self._life.messages(now_s, self._doing))

    def mail(self) -> Iterable[Message]:
        """Return messages for the snapshot processes of other nodes."""
        return self._courier.outgoing()

    def receive(self, node: int, message: Message) -> Message | None:
        """Handle a message from another node's snapshot process; return the reply."""
        return self._courier.receive(node, message)

    @property
    def _doing(self) -> str:
        """Current activity while other nodes wait for it; empty while the program runs."""
        if self._is_prepared or self._preparation is None:
            return ""
        report = Preparation.find(self._scratch)
        return report.step if report is not None else "starting the preparation"

    def _worker(self) -> list[str]:
        return [_WORKER]  # a file: ``-m`` would add to Python's path

    def _adapt(self, env: dict[str, str]) -> dict[str, str]:
        env = program_environment(env, self._settings, self._folders, self._node.device)
        # Again, because the program's own variables take precedence.
        for remark in remove_shared_presets(env, self._node):
            log.info("launch: %s", remark)
        return env

    def prepare(self) -> None:
        """Start fetching everything the program needs."""
        words = (
            str(self._folders.code),
            str(self._folders.site) if self._settings.wheels else "",
            os.pathsep.join(OWN_ROOTS),
            "script" if self._settings.script else "module",
            self._settings.script or self._settings.module,
            *self._settings.argv,
        )
        (self._scratch / PROGRAM_FILE).write_bytes(b"\0".join(os.fsencode(word) for word in words))
        self._preparation = self._start(PREPARATION, *self._request.argv)

    def _start_agent(
        self, command: Sequence[str], env: Mapping[str, str], *, stdout: int | None = None
    ) -> None:
        """Start torchrun, whose workers wait for ``go``, and their output process."""
        read_end, write_end = os.pipe()
        try:
            self._output = self._start(
                OUTPUT,
                str(self._scratch),
                *filter(None, [self._settings.progress_pattern]),
                stdin=read_end,
                # Unmarked, because it outlives the marked processes, to forward their output.
                marked=False,
            )
            super()._start_agent(command, env, stdout=write_end)
        finally:
            os.close(read_end)
            os.close(write_end)

    def go(self) -> None:
        """Let the workers run the program, once every node is prepared."""
        self._remarks = FileRemarks(
            self._node,
            self._settings,
            self._folders,
            home=self._env.get("HOME", ""),
            shares_machine=self._shares_machine,
        )
        self._program_started_s = time.monotonic()
        self._life.program_started(self._program_started_s)
        (self._scratch / GO_FILE).touch()

    def _snapshot_process(
        self, now_s: float, *, immediately: bool = False
    ) -> SnapshotProcess | None:
        """Return the snapshot process; None until it has been started.

        It starts a few seconds after the program, whose imports are over by then, or immediately.
        """
        if self._snapshots is not None or self._program_started_s is None:
            return self._snapshots
        if immediately or now_s - self._program_started_s > _SNAPSHOT_START_DELAY_S:
            snapshot_settings = SnapshotSettings.of(self._node, self._settings, self._folders)
            self._snapshots = SnapshotProcess(snapshot_settings, self._env)
        return self._snapshots

    def _start(
        self, module: str, *words: str, stdin: int = subprocess.DEVNULL, marked: bool = True
    ) -> subprocess.Popen[bytes]:
        mark = {ENV_SCRATCH: str(self._scratch)} if marked else {}
        command = [sys.executable, "-m", module, *words]
        return start_process(command, {**self._env, **mark}, stdin=stdin)

    # --- verdicts --------------------------------------------------------------------------------

    def poll(self, now_s: float) -> Verdict | None:
        """Judge the node's current state; return None while it is healthy."""
        if self.verdict is None:
            self.verdict = self._judge_preparation()
        return super().poll(now_s)

    def _judge_preparation(self) -> Verdict | None:
        """Judge the preparation process; on the main node it also holds the run's lock."""
        if self._preparation is None:
            return None
        status = self._preparation.poll()
        if status is None and self._is_prepared:
            return None
        report = Preparation.find(self._scratch)
        if not status and not self._is_prepared and report is not None and report.done:
            self._is_prepared = True
            self._unsent.append({"type": "prepared"})
        if not status and (status is None or self._is_prepared):
            return None
        if report is not None and report.code is not None:
            return Verdict(code=ExitCode(report.code), reason=f"{self._label}: {report.reason}")
        step = report.step if report is not None else "starting"
        return self._host_verdict(
            f"the preparation exited without reporting an error; its last step: {step}"
        )

    def _snapshot_verdict(self, problem: Problem | None) -> Verdict | None:
        if problem is None:
            return None
        return Verdict(code=ExitCode(problem.code), reason=f"{self._label}: {problem.reason}")

    def _judge(self, status: int | None, now_s: float) -> Verdict | None:
        if (lost := self._judge_output_process()) is not None:
            return lost
        states = read_states(self._scratch)
        alive = [state for state in states.values() if not is_gone(state.pid)]
        failures = read_failures(self._scratch)
        if failures:
            self._first_failure_s = self._first_failure_s or now_s
            failed = {failure.rank for failure in failures}
            is_exiting = any(state.rank in failed for state in alive)
            if is_exiting and now_s - self._first_failure_s < _EXIT_GRACE_S:
                return None
            verdict = self._failure_verdict(failures)
            if verdict.weak and now_s - self._first_failure_s < _LAST_LINE_DELAY_S:
                return None
            return replace(verdict, reason=f"{verdict.reason}{self._last_error(verdict)}")
        if (snapshots := self._snapshot_process(now_s)) is not None and (
            problem := snapshots.poll().problem
        ):
            return self._snapshot_verdict(problem)
        if self._remarks is not None:
            self._remarks.check(now_s)
        if status == 0:
            return self._judge_end(now_s)
        agent_log = self._agent_log()
        if (match := _EXIT.search(agent_log)) is not None:
            return self._exit_verdict(int(match[1]), int(match[2]))
        if status is not None:
            return self._agent_verdict(status)
        if len(states) < self._num_workers or alive:
            self._all_exited_s = None
            return None
        # All workers have exited, but torchrun has not: unless one failed, it waits for the agents
        # of the other nodes.
        self._all_exited_s = self._all_exited_s or now_s
        if all(state.done for state in states.values()) or (
            now_s - self._all_exited_s > _AGENT_REPORT_S and _CLOSING not in agent_log
        ):
            self._report_departure(now_s)
        return self._judge_end(now_s) if now_s - self._all_exited_s > AGENT_GRACE_S else None

    def _last_error(self, verdict: Verdict) -> str:
        """Quote the line in which a program explained its exit, as click's parsers do."""
        line = OutputReport.read(self._scratch).last_line if verdict.weak else ""
        return f", after: {line}" if _ERROR_LINE.search(line) else ""

    def _judge_output_process(self) -> Verdict | None:
        """Judge the output process; without it, writes to stdout fail with a broken pipe."""
        status = self._output.poll() if self._output is not None else None
        if not status:
            return None  # it exits with 0 once the last writer has closed the pipe
        how = f"exited with {status}" if status >= 0 else f"was killed by signal {-status}"
        return self._host_verdict(f"the process that forwards the program's output {how}")

    def _judge_end(self, now_s: float) -> Verdict | None:
        """Judge a node whose ranks all exited with 0, once its last snapshot is complete."""
        self._report_departure(now_s)
        if (snapshots := self._snapshot_process(now_s, immediately=True)) is not None:
            assert self._remarks is not None
            if not self._has_requested_final:
                self._has_requested_final = self._life.takes_last_snapshot = True
                self._remarks.check_at_end()
                snapshots.final()
            if not snapshots.done:
                return None
            if (failed := self._snapshot_verdict(snapshots.failure)) is not None:
                return failed
            if self._results is None:
                self._remarks.report_nothing_persisted()
        self._start_results()
        if self._results is not None and (status := self._results.poll()) != 0:
            return None if status is None else self._host_verdict(self._results_failure())
        return self._success_verdict()

    def _results_failure(self) -> str:
        try:
            return (self._scratch / RESULTS_FAILURE_FILE).read_text()
        except FileNotFoundError:
            return "the process that uploads the program's output exited without reporting an error"

    def _report_departure(self, now_s: float) -> None:
        if self._has_left:
            return
        self._has_left = True
        lines = OutputReport.read(self._scratch).lines
        departure = Departure(after_s=now_s - (self._program_started_s or now_s), lines=lines)
        self._unsent.append({"type": "left", **asdict(departure)})

    def _exit_verdict(self, status: int, local_rank: int) -> Verdict:
        """Judge a rank by its exit status alone.

        A non-zero status is the program's own choice and would recur, unless a node was lost: then
        it only means that a connection broke. A signal is retried: torch and the Neuron runtime
        abort (SIGABRT) on losing a peer, SIGSEGV or SIGBUS are as often due to a broken device or
        driver as to a bug in native code, and the kernel kills processes if this node is out of
        memory. Attempts are bounded, so retrying a bug costs only a few of them, whereas not
        retrying would lose a run through another node's fault.
        """
        rank = f"rank {self._node.node_rank * self._num_workers + local_rank}"
        if status > 0:
            return Verdict(
                code=ExitCode.WORKLOAD,
                reason=f"{self._label}: {rank} ended with exit code {status}, without an exception",
                weak=True,
            )
        number = -status
        hint = _HINTS.get(number, "")
        return Verdict(
            code=ExitCode.HOST,
            reason=f"{self._label}: {rank} was killed by {_signal_name(number)}{hint}",
            # An abort may be due to a lost peer and is no evidence against this node.
            symptom=number == signal.SIGABRT,
        )

    # --- the end ---------------------------------------------------------------------------------

    def end(self, decision: Verdict, shutdown: Shutdown) -> None:
        """Let the workers finish, save their files, then kill remaining processes."""
        # On a cluster, the loss of one pod stops the job's other pods. A snapshot of all nodes is
        # then impossible, and the next attempt waits until this one ends.
        if decision.graceful and not shutdown.is_alone() and self.running:
            self._wait_for_program(shutdown)
        if decision.code is not ExitCode.OK:
            self._save(decision, shutdown)
        self.kill(shutdown.heartbeat)

    def _wait_for_program(self, shutdown: Shutdown) -> None:
        def ends_s() -> float:
            # Reserve time for the last snapshot, which follows within the same grace period.
            ends_s = shutdown.period.ends_s()  # first, since it may shorten the period
            return ends_s - min(_MAX_SNAPSHOT_S, shutdown.period.length_s / 3)

        or_alone = replace(shutdown, is_urgent=lambda: shutdown.is_urgent() or shutdown.is_alone())
        began_s = time.monotonic()
        self._wait_for_workers(or_alone, ends_s)
        if self.running:
            log.info(
                "launch: node %d: the program is still running %.0f s after SIGTERM, so it is "
                "killed; its last snapshot contains what it has written so far",
                *(self._node.node_index, time.monotonic() - began_s),
            )
            self._kill_workers()

    def _save(self, decision: Verdict, shutdown: Shutdown) -> None:
        """Save the files of a stopped or failed job.

        A stopped program gets a last snapshot, unless a node, and with it its files, is lost. A
        failed one may leave incomplete files, so its last complete snapshot remains the newest; its
        output is uploaded for inspection unless another attempt follows.
        """
        saves = decision.graceful and not shutdown.is_alone()
        if self._remarks is not None:
            self._remarks.report_unpersisted()
        if (snapshots := self._snapshot_process(time.monotonic(), immediately=saves)) is None:
            return
        if not saves:
            self._print_traceback(shutdown.turn)
            self._kill_workers()
        deadline_s = shutdown.period.ends_s() if saves else time.monotonic() + _FINAL_UPLOAD_S
        if saves or decision.code is ExitCode.WORKLOAD:
            self._start_results()
        if saves or self._node.is_main:
            snapshots.final(
                take=saves,
                clean=not self._killed_workers,
                within_s=max(0.0, deadline_s - time.monotonic()),
            )
        else:
            snapshots.kill()
        while self._is_closing and time.monotonic() < deadline_s + _SNAPSHOT_EXIT_GRACE_S:
            shutdown.turn()
            if saves:
                deadline_s = shutdown.period.ends_s()
            if saves and shutdown.is_alone():
                saves, deadline_s = False, time.monotonic()
        if saves and self._remarks is not None:
            self._remarks.report_nothing_persisted()

    def _print_traceback(self, turn: Callable[[], None]) -> None:
        """Make one rank of a silent node print its traceback, which best explains a hang."""
        alive = [s for s in read_states(self._scratch).values() if not is_gone(s.pid)]
        if not self._life.is_silent(time.monotonic()) or not alive:
            return
        first = min(alive, key=lambda state: state.rank)
        log.info(
            "launch: program: stack of rank %d (faulthandler's traceback on SIGABRT):",
            first.rank,
        )
        with suppress(OSError, ValueError):
            # A limit of 1 prevents both a core file and a core handler (core(5)).
            resource.prlimit(first.pid, resource.RLIMIT_CORE, (1, 1))
            self._killed_workers = True
            signal_quietly(first.pid, signal.SIGABRT)
        deadline = time.monotonic() + _TRACEBACK_S
        while not is_gone(first.pid) and time.monotonic() < deadline:
            turn()

    @property
    def _is_closing(self) -> bool:
        if self._snapshots is not None and not self._snapshots.done:
            return True
        return self._results is not None and self._results.poll() is None

    def _start_results(self) -> None:
        if self._results is None and next(files_below(self._folders.output), None):
            self._results = self._start(RESULTS, *self._request.argv)

    def _kill_workers(self) -> None:
        """Kill the remaining ranks, but not the snapshot process."""
        for state in read_states(self._scratch).values():
            if not is_gone(state.pid):
                self._killed_workers = True
                signal_quietly(state.pid, signal.SIGKILL)

    def _release_run_lock(self, heartbeat: Callable[[], None]) -> None:
        """Release the run's lock, so that its next job need not wait for the lock to expire."""
        if self._preparation is None or not self._node.is_main:
            return
        self._kill_workers()
        if self._preparation.poll() is None:
            self._preparation.terminate()
        deadline = time.monotonic() + _RELEASE_S
        while self._preparation.poll() is None and time.monotonic() < deadline:
            heartbeat()
            time.sleep(0.01)

    def kill(self, heartbeat: Callable[[], None]) -> None:
        """Kill everything this launch has started, and forward the remaining output."""
        if self._snapshots is not None:
            # Before the workers, so that it never captures files that they leave incomplete.
            self._snapshots.kill()
        self._release_run_lock(heartbeat)
        super().kill(heartbeat)
        if self._agent is None:
            kill_launch(self._scratch, heartbeat)
        for process in (self._preparation, self._results):
            if process is not None:
                reap(process)
        if self._output is not None:
            # The output process exits once the last writer has closed the pipe.
            deadline = time.monotonic() + _DRAIN_S
            while self._output.poll() is None and time.monotonic() < deadline:
                heartbeat()
                time.sleep(0.01)
            self._output.kill()
            reap(self._output)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
