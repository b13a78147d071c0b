"""A node of a user's program: its preparation, torchrun, its output, and who keeps its files."""

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
from training.launcher.evidence import LifeSigns
from training.launcher.hangs import ProgramObserver
from training.launcher.home import take_home
from training.launcher.messages import Departure, Message
from training.launcher.node import (
    AGENT_GRACE_S,
    Shutdown,
    WorkerNode,
    kill_launch,
    reap,
)
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
_LAST_WORDS_S = 5.0
"""Time for a program that has raised an error to end by itself: exit handlers, log uploads."""
_NOTED_S = 0.75
"""Time after which the last line of the output has been noted."""
_DRAIN_S = 5.0
_RELEASE_S = 2.0
_SNAPSHOTS_AFTER_S = 3.0
_SNAPSHOTS_LATE_S = 1.0
_SNAPSHOT_AT_MOST_S = 30.0
"""Part of the grace that is left for the last snapshot of a program's files."""
_FAREWELL_S = 5.0
"""Time for a failed job to say so in the run's status, and to upload its output."""
_EXIT = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: \d+\)")
"""torchrun's words about the first worker that failed (SubprocessContext._poll of
torch/distributed/elastic/multiprocessing/api.py)."""
_CLOSING = "closing signal"
"""torchrun's words when it ends the other workers of a node because one has failed."""
_AGENT_SPEAKS_S = 2.0
_TRACEBACK_S = 2.0
_ERROR_LINE = re.compile(r"\berror:", re.IGNORECASE)
_HINTS: Mapping[int, str] = {
    signal.SIGKILL: " (by the kernel if it was out of memory, or by somebody else)",
    signal.SIGABRT: " (native code gave up, as it does when a peer is lost; its words are above)",
    signal.SIGSEGV: " (a crash in native code; Python's traceback is above)",
    signal.SIGBUS: " (a crash in native code, or /dev/shm is full; Python's traceback is above)",
}

log = logging.getLogger(__name__)


class ProgramNode(WorkerNode):
    """The processes of one node of a program's job."""

    def __init__(
        self,
        request: Request,
        node: NodeContract,
        env: Mapping[str, str],
        scratch: Path,
        *,
        heartbeat: Callable[[], None],
    ) -> None:
        """Take a folder for the program to live in."""
        super().__init__(request, node, env, scratch)
        # Several nodes run on this machine if one was given an address.
        self._shares_machine = ENV_NODE_ADDRESS in env
        take_home(scratch, node, shares_machine=self._shares_machine, heartbeat=heartbeat)
        self._settings = settings = ProgramSettings.from_request(request)
        self._folders = ProgramFolders.of(scratch, settings, node)
        self._preparation: subprocess.Popen[bytes] | None = None
        self._snapshots: SnapshotProcess | None = None
        self._output: subprocess.Popen[bytes] | None = None
        self._results: subprocess.Popen[bytes] | None = None
        self._life = LifeSigns(scratch, self._folders.cache, hang_limit_s=self._hang_limit_s)
        self._remarks: FileRemarks | None = None
        self._unsent: list[Message] = []
        self._is_prepared = self._closing = self._killed_workers = self._has_left = False
        self._went_s: float | None = None
        self._first_failure_s: float | None = None
        self._gone_s: float | None = None
        log.info("launch: program: %s", f"{settings.name} {shlex.join(settings.argv)}".rstrip())

    def observer(self, now_s: float) -> ProgramObserver:
        """Make what observes the program on all nodes."""
        return ProgramObserver(self._node, hang_limit_s=self._hang_limit_s, now_s=now_s)

    def news(self, now_s: float) -> Iterable[Message]:
        """Return what the main node's observer must know, each thing once."""
        told, self._unsent = self._unsent, []
        return (*told, *self._life.messages(now_s, self._doing))

    @property
    def _doing(self) -> str:
        """What the node does while the others wait for it; empty while the program runs."""
        if self._is_prepared or self._preparation is None:
            return ""
        report = Preparation.find(self._scratch)
        return report.step if report is not None else "starting the preparation"

    def _worker(self) -> list[str]:
        return [_WORKER]  # a file, which leaves no trace on Python's path

    def _environment(self) -> dict[str, str]:
        env = super()._environment()
        return program_environment(env, self._settings, self._folders, self._node.device)

    def prepare(self) -> None:
        """Begin to bring everything here."""
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
        """Start torchrun, whose workers wait for ``go``, and the process for their output."""
        read_end, write_end = os.pipe()
        try:
            self._output = self._start(
                OUTPUT,
                str(self._scratch),
                *filter(None, [self._settings.progress_pattern]),
                stdin=read_end,
                # Without the mark of this launch's processes: it ends when they have, and it has
                # passed on what they wrote.
                marked=False,
            )
            super()._start_agent(command, env, stdout=write_end)
        finally:
            os.close(read_end)
            os.close(write_end)

    def go(self) -> None:
        """Let the workers run the program: every node is prepared."""
        self._remarks = FileRemarks(
            self._node,
            self._settings,
            self._folders,
            home=self._env.get("HOME", ""),
            shares_machine=self._shares_machine,
        )
        self._went_s = time.monotonic()
        self._life.went(self._went_s)
        (self._scratch / GO_FILE).touch()

    def _keep(self, now_s: float, *, at_once: bool = False) -> SnapshotProcess | None:
        """Return what takes snapshots, started late: the program's imports need every core."""
        if self._snapshots is not None or self._went_s is None:
            return self._snapshots
        if at_once or now_s - self._went_s > _SNAPSHOTS_AFTER_S:
            keeping = SnapshotSettings.of(self._node, self._settings, self._folders)
            self._snapshots = SnapshotProcess(keeping, self._env)
        return self._snapshots

    def _start(
        self, module: str, *words: str, stdin: int = subprocess.DEVNULL, marked: bool = True
    ) -> subprocess.Popen[bytes]:
        mark = {ENV_SCRATCH: str(self._scratch)} if marked else {}
        command = [sys.executable, "-m", module, *words]
        return start_process(command, {**self._env, **mark}, stdin=stdin)

    # --- judging ---------------------------------------------------------------------------------

    def look(self, now_s: float) -> Verdict | None:
        """Judge the node's current state; None while all is well."""
        if self.verdict is None:
            self.verdict = self._look_at_preparation()
        return super().look(now_s)

    def _look_at_preparation(self) -> Verdict | None:
        """Judge the process that prepares the node, and on the main node then holds the name."""
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
        return self._host(f"the preparation ended without a word at: {step}")

    def _told_by_snapshots(self, problem: Problem | None) -> Verdict | None:
        if problem is None:
            return None
        return Verdict(code=ExitCode(problem.code), reason=f"{self._label}: {problem.reason}")

    def _judge(self, status: int | None, now_s: float) -> Verdict | None:
        if (lost := self._without_output()) is not None:
            return lost
        states = read_states(self._scratch)
        alive = [state for state in states.values() if not is_gone(state.pid)]
        failures = read_failures(self._scratch)
        if failures:
            self._first_failure_s = self._first_failure_s or now_s
            failed = {failure.rank for failure in failures}
            ending = any(state.rank in failed for state in alive)
            if ending and now_s - self._first_failure_s < _LAST_WORDS_S:
                return None
            verdict = self._failed(failures)
            if verdict.weak and now_s - self._first_failure_s < _NOTED_S:
                return None
            return replace(verdict, reason=f"{verdict.reason}{self._last_error(verdict)}")
        if (kept := self._keep(now_s)) is not None and (problem := kept.look().problem):
            return self._told_by_snapshots(problem)
        if self._remarks is not None:
            self._remarks.look(now_s)
        if status == 0:
            return self._ended(now_s)
        words = self._agent_log()
        if (match := _EXIT.search(words)) is not None:
            return self._crashed(int(match[1]), int(match[2]))
        if status is not None:
            return self._agent_failed(status)
        if len(states) < self._num_workers or alive:
            self._gone_s = None
            return None
        # All have ended, and torchrun has not yet said how: it waits for the agents of the other
        # nodes, unless there was a failure.
        self._gone_s = self._gone_s or now_s
        if all(state.done for state in states.values()) or (
            now_s - self._gone_s > _AGENT_SPEAKS_S and _CLOSING not in words
        ):
            self._note_end(now_s)
        return self._ended(now_s) if now_s - self._gone_s > AGENT_GRACE_S else None

    def _last_error(self, verdict: Verdict) -> str:
        """Quote the line with which a program explains its own exit, as click's parsers do."""
        line = OutputReport.read(self._scratch).last_line if verdict.weak else ""
        return f", after: {line}" if _ERROR_LINE.search(line) else ""

    def _without_output(self) -> Verdict | None:
        """Judge the process for the output, without which whoever prints has a broken pipe."""
        ended = self._output.poll() if self._output is not None else None
        if not ended:
            return None  # with 0 it ends when nobody can write any more
        how = f"ended with {ended}" if ended >= 0 else f"was killed by signal {-ended}"
        return self._host(f"the launcher's process for the program's output {how}")

    def _ended(self, now_s: float) -> Verdict | None:
        """Judge a node whose ranks have all ended with 0: its last snapshot comes first."""
        self._note_end(now_s)
        if (kept := self._keep(now_s, at_once=True)) is not None:
            assert self._remarks is not None
            if not self._closing:
                self._closing = self._life.takes_last_snapshot = True
                self._remarks.look_at_end()
                kept.final()
            if not kept.done:
                return None
            if (failed := self._told_by_snapshots(kept.failure)) is not None:
                return failed
            if self._results is None:
                self._remarks.tell_nothing_kept()
        self._start_results()
        if self._results is not None and (status := self._results.poll()) != 0:
            return None if status is None else self._host(self._why_no_results())
        return self._finished()

    def _why_no_results(self) -> str:
        try:
            return (self._scratch / RESULTS_FAILURE_FILE).read_text()
        except FileNotFoundError:
            return "the process that uploads the program's output ended without a word"

    def _note_end(self, now_s: float) -> None:
        if self._has_left:
            return
        self._has_left = True
        lines = OutputReport.read(self._scratch).lines
        left = Departure(after_s=now_s - (self._went_s or now_s), lines=lines)
        self._unsent.append({"type": "left", **asdict(left)})

    def _crashed(self, status: int, local_rank: int) -> Verdict:
        """Judge a rank of which only the exit status is known.

        A status of its own is the program's word, and would be the same again, unless a node was
        lost: then it says only that a connection broke. A signal is not: a
        lost peer makes torch and the Neuron runtime abort (SIGABRT), a broken device or driver
        ends in SIGSEGV or SIGBUS as often as a mistake in native code, and the kernel kills what
        needs too much memory on this node. The number of attempts is bounded, so that a mistake
        costs a few of them; giving up a run because of its neighbour would cost the run.
        """
        rank = f"rank {self._node.node_rank * self._num_workers + local_rank}"
        if status > 0:
            return Verdict(
                code=ExitCode.WORKLOAD,
                reason=f"{self._label}: {rank} ended with exit code {status}, without an exception",
                weak=True,
            )
        number = -status
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        return Verdict(
            code=ExitCode.HOST,
            reason=f"{self._label}: {rank} was killed by {name}{_HINTS.get(number, '')}",
            # What aborts because of a lost peer is no evidence against this node.
            symptom=number == signal.SIGABRT,
        )

    # --- the end ---------------------------------------------------------------------------------

    def end(self, decision: Verdict, shutdown: Shutdown) -> None:
        """Let the workers finish, save what there is, then kill what is left."""
        ends_s = time.monotonic() + shutdown.grace_s
        # On a cluster the pods of a lost one's job are told to stop. No snapshot of all nodes can
        # come of that, and the next attempt waits for this one's end.
        if decision.graceful and not shutdown.is_alone() and self.running:
            self._wait_for_program(shutdown)
        if decision.code is not ExitCode.OK:
            self._save(decision, ends_s, shutdown)
        self.kill(shutdown.heartbeat)

    def _wait_for_program(self, shutdown: Shutdown) -> None:
        # The last snapshot comes after the workers, and in the same time.
        grace_s = shutdown.grace_s - min(_SNAPSHOT_AT_MOST_S, shutdown.grace_s / 3)
        in_vain = replace(shutdown, is_urgent=lambda: shutdown.is_urgent() or shutdown.is_alone())
        self._wait_for_workers(in_vain, grace_s)
        if self.running:
            log.info(
                "launch: node %d: the program still runs %g s after SIGTERM and is killed; "
                "its last snapshot has what it had written",
                *(self._node.node_index, grace_s),
            )
            self._kill_workers()

    def _save(self, decision: Verdict, deadline_s: float, shutdown: Shutdown) -> None:
        """Save what there is after a job that was stopped or has failed, until ``deadline_s``.

        A stopped program has a last snapshot, unless a node was lost, for whose files there is
        nothing to wait. What a failed one has left may be torn, so its last complete snapshot
        counts; its output is kept for people, unless another attempt follows.
        """
        saves = decision.graceful and not shutdown.is_alone()
        if self._remarks is not None:
            self._remarks.tell_unkept()
        if (snapshots := self._keep(time.monotonic(), at_once=saves)) is None:
            return
        if not saves:
            self._tell_where(shutdown.turn)
            self._kill_workers()
            deadline_s = time.monotonic() + _FAREWELL_S
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
        while self._is_closing and time.monotonic() < deadline_s + _SNAPSHOTS_LATE_S:
            shutdown.turn()
            if saves and shutdown.is_alone():
                saves, deadline_s = False, time.monotonic()
        if saves and self._remarks is not None:
            self._remarks.tell_nothing_kept()

    def _tell_where(self, turn: Callable[[], None]) -> None:
        """Let one rank of a silent node print its traceback: a hung program has no better words."""
        alive = [s for s in read_states(self._scratch).values() if not is_gone(s.pid)]
        if not self._life.is_silent(time.monotonic()) or not alive:
            return
        first = min(alive, key=lambda state: state.rank)
        log.info(
            "launch: program: where rank %d was (faulthandler's traceback on SIGABRT):",
            first.rank,
        )
        with suppress(OSError, ValueError):
            # With 1 the kernel neither writes a core file nor starts a program for it (core(5)).
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
        """Kill the ranks that are left, but not who keeps their files."""
        for state in read_states(self._scratch).values():
            if not is_gone(state.pid):
                self._killed_workers = True
                signal_quietly(state.pid, signal.SIGKILL)

    def _release_name(self, heartbeat: Callable[[], None]) -> None:
        """Let the next job of this name start at once; otherwise it waits for a dead heartbeat."""
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
        """Kill everything this launch has started, and pass on the output that is left."""
        if self._snapshots is not None:
            # First: it must not take what killed workers leave for whole.
            self._snapshots.kill()
        self._release_name(heartbeat)
        super().kill(heartbeat)
        if self._agent is None:
            kill_launch(self._scratch, heartbeat)
        for process in (self._preparation, self._results):
            if process is not None:
                reap(process)
        if self._output is not None:
            # It ends when nobody can write any more.
            deadline = time.monotonic() + _DRAIN_S
            while self._output.poll() is None and time.monotonic() < deadline:
                heartbeat()
                time.sleep(0.01)
            self._output.kill()
            reap(self._output)
