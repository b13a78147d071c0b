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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import training.program
from training.core.arguments import Request
from training.core.contract import NodeContract
from training.core.processes import die_with_parent, is_gone, signal_quietly
from training.core.progress import ENV_SCRATCH, Failure, read_failures, read_states
from training.launcher.compiling import CacheWatch
from training.launcher.evidence import Evidence, collect
from training.launcher.hangs import Left
from training.launcher.node import AGENT_GRACE_S, AGENT_LOG, LocalNode, kill_launch, reap
from training.launcher.verdict import Verdict
from training.program.environment import OWN_ROOTS, program_environment
from training.program.reports import (
    GO_FILE,
    OUTPUT,
    OUTPUT_FILE,
    PREPARATION,
    PREPARATION_FILE,
    PROGRAM_FILE,
    PROGRESS_FILE,
    RESULTS,
    RESULTS_FAILURE_FILE,
    RESULTS_MOVED_FILE,
    Noted,
    Preparation,
)
from training.program.restored_reads import RestoredReads
from training.program.settings import Folders, ProgramSettings, files_below
from training.program.snapshots.process import (
    REPORT_FILE,
    Problem,
    SnapshotProcess,
    SnapshotReport,
    SnapshotSettings,
)
from training.program.unkept import Unkept, places
from trainium_catalogue.contract import ENV_CHECKPOINT_DIR
from trainium_catalogue.exit_codes import ExitCode

_WORKER = str(Path(training.program.__path__[0]).resolve() / "worker.py")
_BETWEEN_LOOKS_S = 0.25
_LAST_WORDS_S = 5.0
_NOTED_S = 0.75
"""Time after which the last line of the output has been noted."""
"""Time for a program that has raised an error to end by itself: exit handlers, log uploads."""
_DRAIN_S = 5.0
_RELEASE_S = 2.0
_SNAPSHOTS_AFTER_S = 3.0
_SNAPSHOTS_LATE_S = 1.0
_FAREWELL_S = 5.0
"""Time for a failed job to say so in the run's status, and to upload its output."""
_UNKEPT_AFTER_S = 120.0
"""Early enough to stop a long job whose checkpoints would be lost."""
_BETWEEN_UNKEPT_S = 300.0
_UNREAD_AFTER_S = 300.0
_BETWEEN_READS_S = 0.5
_EXIT = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: \d+\)")
"""torchrun's words about the first worker that failed (SubprocessContext._poll of
torch/distributed/elastic/multiprocessing/api.py)."""
_CLOSING = "closing signal"
"""torchrun's words when it ends the other workers of a node because one has failed."""
_AGENT_SPEAKS_S = 2.0
_BETWEEN_COLLECTIONS_S = 30.0
_TRACEBACK_S = 2.0
_SIGNS = (OUTPUT_FILE, PROGRESS_FILE, PREPARATION_FILE, RESULTS_MOVED_FILE)
_ERROR_LINE = re.compile(r"\berror:", re.IGNORECASE)
_HINTS: Mapping[int, str] = {
    signal.SIGKILL: " (by the kernel if it was out of memory, or by somebody else)",
    signal.SIGABRT: " (native code gave up, as it does when a peer is lost; its words are above)",
    signal.SIGSEGV: " (a crash in native code; Python's traceback is above)",
    signal.SIGBUS: " (a crash in native code, or /dev/shm is full; Python's traceback is above)",
}

log = logging.getLogger(__name__)


class ProgramNode(LocalNode):
    """The processes of one node of a program's job."""

    def __init__(
        self,
        node: NodeContract,
        settings: ProgramSettings,
        folders: Folders,
        *,
        argv: Sequence[str],
        env: Mapping[str, str],
        hang_limit_s: float,
        shares_machine: bool = True,
    ) -> None:
        super().__init__(
            label=f"node {node.node_index}",
            scratch=folders.scratch,
            num_workers=node.processes_per_node,
            hang_limit_s=hang_limit_s,
        )
        self._node, self._settings, self._folders = node, settings, folders
        self._argv, self._own_env = tuple(argv), env
        self._shares_machine = shares_machine
        self._preparation: subprocess.Popen[bytes] | None = None
        self._snapshots: SnapshotProcess | None = None
        self._output: subprocess.Popen[bytes] | None = None
        self._results: subprocess.Popen[bytes] | None = None
        self._is_prepared = False
        self._went_s: float | None = None
        self._signs: tuple[object, ...] = ()
        self._cache = CacheWatch(folders.cache, folders.scratch)
        self._looked_for_signs_s = float("-inf")
        self._first_failure_s: float | None = None
        self._gone_s: float | None = None
        self._closing = self._killed_workers = False
        self.left: Left | None = None
        self._moved_at_s = self._collected_s = float("-inf")
        self._evidence: Evidence | None = None
        self._unkept: Unkept | None = None
        self._unkept_at_s = _UNKEPT_AFTER_S
        """Seconds since the program's start after which to look for files that are not kept."""
        self._unread_at_s = _UNREAD_AFTER_S
        self._restored: RestoredReads | None = None
        self._looked_at_restored_s = 0.0

    @classmethod
    def of(
        cls,
        request: Request,
        node: NodeContract,
        env: Mapping[str, str],
        scratch: Path,
        *,
        shares_machine: bool,
    ) -> ProgramNode:
        """Make the node that a request asks for."""
        settings = ProgramSettings.from_request(request)
        return cls(
            node,
            settings,
            Folders.of(scratch, settings, node),
            argv=request.argv,
            env=env,
            hang_limit_s=request.launch.hang_limit_s,
            shares_machine=shares_machine,
        )

    @property
    def shown(self) -> str:
        """The program and its arguments, as one would type them."""
        return f"{self._settings.name} {shlex.join(self._settings.argv)}".rstrip()

    @property
    def worker(self) -> list[str]:
        """The end of torchrun's command line: a file, which leaves no trace on Python's path."""
        return [_WORKER]

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Make the program's environment of that of other workloads' workers."""
        return program_environment(env, self._settings, self._folders, self._node.device)

    @property
    def prepared(self) -> bool:
        """True once the program's files, dependencies, data and checkpoints are here."""
        return self._is_prepared

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
        self._preparation = self._start(PREPARATION, *self._argv)

    def start(
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
            super().start(command, env, stdout=write_end)
        finally:
            os.close(read_end)
            os.close(write_end)

    def go(self) -> None:
        """Let the workers run the program: every node is prepared."""
        folders, settings = self._folders, self._settings
        home = folders.code.parent
        lustre = [Path(self._node.lustre)] if self._node.lustre else []
        self._unkept = Unkept(
            folders.code,
            folders.checkpoints,
            chosen=settings.checkpoint_dir,
            outside=places(
                settings.argv,
                settings.env,
                home=self._own_env.get("HOME", ""),
                shares_machine=self._shares_machine,
            ),
            without=[home, folders.scratch, *lustre],
        )
        with suppress(OSError):  # a kernel without inotify, or without room for it
            restored = RestoredReads(folders, self._scratch)
            self._restored = restored if restored.num_files else None
        self._went_s = time.monotonic()
        (self._scratch / GO_FILE).touch()

    def _keep(self, now_s: float, *, at_once: bool = False) -> SnapshotProcess | None:
        """Return what takes snapshots, started late: the program's imports need every core."""
        if self._snapshots is not None or self._went_s is None:
            return self._snapshots
        if at_once or now_s - self._went_s > _SNAPSHOTS_AFTER_S:
            keeping = SnapshotSettings.of(self._node, self._settings, self._folders)
            self._snapshots = SnapshotProcess(keeping, self._own_env)
        return self._snapshots

    def _start(
        self, module: str, *words: str, stdin: int = subprocess.DEVNULL, marked: bool = True
    ) -> subprocess.Popen[bytes]:
        launcher = os.getpid()
        mark = {ENV_SCRATCH: str(self._scratch)} if marked else {}
        # This process has one thread, so code between fork and exec is safe.
        return subprocess.Popen(
            [sys.executable, "-m", module, *words],
            env={**self._own_env, **mark},
            stdin=stdin,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(launcher),
        )

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
        report = Preparation.read(self._scratch)
        if not status and report is not None and report.done:
            self._is_prepared = True
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
            first = min(failures, key=lambda f: (Verdict(code=f.code, reason="").strength, f.weak))
            if first.weak and now_s - self._first_failure_s < _NOTED_S:
                return None
            return Verdict(
                code=first.code,
                reason=f"{self._label}: {first.whose}{first.error}{self._last_error(first)}",
                symptom=first.code is ExitCode.HOST,
                weak=first.weak,
            )
        if (kept := self._keep(now_s)) is not None and (problem := kept.look().problem):
            return self._told_by_snapshots(problem)
        if self._went_s is not None and now_s - self._went_s > self._unkept_at_s:
            self._unkept_at_s += _BETWEEN_UNKEPT_S
            self._tell_unkept()
        if self._went_s is not None and now_s - self._went_s > self._unread_at_s:
            self._unread_at_s = float("inf")
            self._tell_unread()
        self._look_at_restored(now_s)
        if status == 0:
            return self._ended(now_s)
        words = (self._scratch / AGENT_LOG).read_text(errors="replace")
        if (match := _EXIT.search(words)) is not None:
            return self._crashed(int(match[1]), int(match[2]))
        if status is not None:
            if self.verdict is None:
                log.info("%s", words)
            how = f"ended with {status}" if status > 0 else f"was killed by signal {-status}"
            return self._host(f"torchrun {how} and no worker says why")
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

    def _last_error(self, failure: Failure) -> str:
        """Quote the line with which a program explains its own exit, as click's parsers do."""
        line = Noted.read(self._scratch).last_line if failure.weak else ""
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
            if not self._closing:
                self._closing = True
                self._tell_unkept()
                self._look_at_restored(float("inf"))
                self._tell_unread()
                kept.final()
            if not kept.done:
                return None
            if (failed := self._told_by_snapshots(kept.failure)) is not None:
                return failed
            if self._results is None:
                self._tell_nothing_kept()
        self._start_results()
        if self._results is not None and (status := self._results.poll()) != 0:
            return None if status is None else self._host(self._why_no_results())
        return Verdict(code=ExitCode.OK, reason=f"{self._label}: all workers finished")

    def _tell_unkept(self) -> None:
        """Warn of files that will be gone with the node."""
        if self._unkept is None:
            return
        with suppress(OSError):  # a remark ends no job, on a full disk for example
            if (words := self._unkept.news(self._scratch)) is not None:
                log.info("launch: program: %s", words)

    def _tell_nothing_kept(self) -> None:
        """Warn at the end of a job that has no snapshot; only the main node knows."""
        if self._node.is_main and not SnapshotReport.read(self._scratch).snapshots:
            folder = self._settings.checkpoint_dir or ENV_CHECKPOINT_DIR
            log.info("launch: program: nothing was kept: no file was written to %s", folder)

    def _look_at_restored(self, now_s: float) -> None:
        """Say once that the program uses what it got back."""
        if self._restored is None or now_s - self._looked_at_restored_s < _BETWEEN_READS_S:
            return
        self._looked_at_restored_s = now_s
        try:
            path = self._restored.first()
        except OSError:
            self._restored = None
            return
        if path is not None:
            log.info("launch: program: reads what was restored: %s", path)
            self._restored.close()
            self._restored = None

    def _tell_unread(self) -> None:
        """Warn of a program that has got files back and begins again."""
        if self._restored is not None:
            log.info(
                "launch: program: has read none of the %d files that were restored, so it has "
                "started over; let it load its newest checkpoint when it starts, or name the "
                "argument that makes it with --resume-arguments",
                self._restored.num_files,
            )

    def _why_no_results(self) -> str:
        try:
            return (self._scratch / RESULTS_FAILURE_FILE).read_text()
        except FileNotFoundError:
            return "the process that uploads the program's output ended without a word"

    def _note_end(self, now_s: float) -> None:
        if self.left is None:
            after_s = now_s - (self._went_s or now_s)
            self.left = Left(after_s=after_s, lines=Noted.read(self._scratch).lines)

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

    # --- signs of life ---------------------------------------------------------------------------

    def moved(self, now_s: float) -> bool:
        """Tell if anything that counts as progress has happened since the last call."""
        if now_s - self._looked_for_signs_s < _BETWEEN_LOOKS_S:
            return False
        self._looked_for_signs_s = now_s
        signs = (
            *(_stamp(self._scratch / name) for name in _SIGNS),
            *(_stamp(path) for path in sorted(self._scratch.glob("progress-*.json"))),
            self._snapshots.look().last_change_at if self._snapshots is not None else None,
            # A last snapshot that does not go on is given up by the process that takes it.
            _stamp(self._scratch / REPORT_FILE) if self._closing else None,
        )
        changed, self._signs = signs != self._signs, signs
        moved = self._cache.moved(now_s) or changed
        if moved:
            self._moved_at_s = now_s
        return moved

    def _is_silent(self, now_s: float) -> bool:
        """Tell if nothing has moved on this node for half the hang limit."""
        if self._went_s is None:
            return False
        return now_s - max(self._moved_at_s, self._went_s) >= self._hang_limit_s / 2

    def news_of_silence(self, now_s: float) -> Evidence | None:
        """Return what this node shows if it has changed, once half the hang limit is over.

        In time for the main node's verdict, and never while the program is at work.
        """
        between_s = min(self._hang_limit_s / 8, _BETWEEN_COLLECTIONS_S)
        if not self._is_silent(now_s) or now_s - self._collected_s < between_s:
            return None
        self._collected_s = now_s
        noted = Noted.read(self._scratch)
        has_kept = self._snapshots is not None and bool(self._snapshots.look().last_change_at)
        evidence = collect(
            read_states(self._scratch).values(),
            lines=noted.lines,
            has_worked=noted.step is not None or noted.loss is not None or has_kept,
        )
        changed, self._evidence = evidence != self._evidence, evidence
        return evidence if changed else None

    @property
    def compiling(self) -> bool:
        """True while a compilation goes on here."""
        return self._cache.compiling

    @property
    def doing(self) -> str:
        """What the node does while the others wait for it; empty while the program runs."""
        if self._is_prepared or self._preparation is None:
            return ""
        report = Preparation.read(self._scratch)
        return report.step if report is not None else "starting the preparation"

    # --- the end ---------------------------------------------------------------------------------

    def close(
        self,
        decision: Verdict,
        deadline_s: float,
        turn: Callable[[], None],
        *,
        is_alone: Callable[[], bool],
    ) -> None:
        """Save what there is after a job that was stopped or has failed, until ``deadline_s``.

        A stopped program has a last snapshot, unless ``is_alone`` tells that a node was lost, whose
        files nobody can wait for. What a failed one has left may be torn, so its last complete
        snapshot counts; its output is kept for people, unless another attempt follows.
        """
        self._tell_unkept()
        saves = decision.graceful and not is_alone()
        if self._keep(time.monotonic(), at_once=saves) is None:
            return
        if not saves:
            self._tell_where(turn)
            self.kill_workers()
            deadline_s = time.monotonic() + _FAREWELL_S
        if saves or decision.code is ExitCode.WORKLOAD:
            self._start_results()
        assert self._snapshots is not None
        if saves or self._node.is_main:
            self._snapshots.final(
                take=saves,
                clean=not self._killed_workers,
                within_s=max(0.0, deadline_s - time.monotonic()),
            )
        else:
            self._snapshots.kill()
        while self._is_closing and time.monotonic() < deadline_s + _SNAPSHOTS_LATE_S:
            turn()
            if saves and is_alone():
                saves, deadline_s = False, time.monotonic()
        if saves:
            self._tell_nothing_kept()

    def _tell_where(self, turn: Callable[[], None]) -> None:
        """Let one rank of a silent node print its traceback: a hung program has no better words."""
        alive = [s for s in read_states(self._scratch).values() if not is_gone(s.pid)]
        if not self._is_silent(time.monotonic()) or not alive:
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
            self._results = self._start(RESULTS, *self._argv)

    def kill_workers(self) -> None:
        """Kill the ranks that are left, but not who keeps their files."""
        for state in read_states(self._scratch).values():
            if not is_gone(state.pid):
                self._killed_workers = True
                signal_quietly(state.pid, signal.SIGKILL)

    def _release_name(self, heartbeat: Callable[[], None]) -> None:
        """Let the next job of this name start at once; otherwise it waits for a dead heartbeat."""
        if self._preparation is None or not self._node.is_main:
            return
        self.kill_workers()
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


def _stamp(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None
