"""External evidence about a node's program: output, processes and connections of its ranks.

The compiler may be silent for hours on large graphs. libneuronxla creates
`model.hlo_module.pb.lock` in the folder of the graph it compiles, and removes it afterwards; other
processes wait while the lock exists ("Another process must be compiling", in the workers' output).
A killed compiler leaves a stale lock. So once a compiler has been seen on this node, locks count
only while one is running.

A program that starts its own processes (``mp.spawn``, ``accelerate launch``) cannot form a process
group under torchrun: its processes inherit ``TORCHELASTIC_USE_AGENT_STORE``, so all of them connect
to the address that the program chose, and none listens there (``_create_c10d_store`` in
torch/distributed/rendezvous.py). From outside, the ranks then have children but no connections.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from training.core.compilers import is_compiler
from training.core.contract import DeviceKind
from training.core.processes import descendants, find_marked, is_gone, parents
from training.core.progress import ENV_SCRATCH, WorkerState, read_states
from training.launcher.messages import Evidence, Message, ProgressReport
from training.program.reports import (
    OUTPUT_FILE,
    PREPARATION_FILE,
    PROGRESS_FILE,
    RESULTS_MOVED_FILE,
    OutputReport,
)
from training.program.snapshots.process import SNAPSHOTS_FILE, SnapshotReport

_LAUNCHERS = re.compile(
    r"(?:\S*python\S* (?:-\S+ )*)?"
    r"(?:\S*/)?(torchrun|deepspeed|accelerate launch|torch\.distributed\.(?:run|launch)"
    r"|accelerate\.commands\.launch)(?: |$)"
)
"""A command that starts a launcher, by name or as a Python module or script."""
_SPAWNED = "--multiprocessing-fork"
"""Argument of a process started by multiprocessing with ``spawn`` or ``forkserver``
(``get_command_line`` of multiprocessing/spawn.py)."""
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
_MAX_COMMAND_CHARACTERS = 60
_CACHE_POLL_INTERVAL_S = 5.0
_MAX_SCAN_SHARE = 0.01
"""Maximum share of this process's time spent scanning the cache, regardless of its size."""
_LOCK = ".lock"
_POLL_INTERVAL_S = 0.25
_MESSAGE_INTERVAL_S = 1.0
"""Minimum interval between messages about progress."""
_COLLECTION_INTERVAL_S = 30.0
_OPEN = frozenset({"01", "0A"})
"""ESTABLISHED and LISTEN in /proc/net/tcp (include/net/tcp_states.h)."""


def collect(
    states: Iterable[WorkerState], *, lines: int, has_worked: bool, proc: Path = Path("/proc")
) -> Evidence:
    """Inspect this node's ranks and their child processes."""
    ranks = {state.rank: state.pid for state in states if not is_gone(state.pid)}
    connections = _open_connections(proc)
    evidence = Evidence(
        ranks=len(ranks),
        connected=sum(not connections.isdisjoint(_sockets(pid, proc)) for pid in ranks.values()),
        lines=lines,
        has_worked=has_worked,
    )
    parent_of = parents(proc)
    for rank, pid in sorted(ranks.items()):
        commands = [_argv(child, proc) for child in descendants(pid, parent_of)]
        commands = [c for c in commands if c and not any(helper in c for helper in _HELPERS)]
        if commands:
            launchers = [c for c in commands if _LAUNCHERS.match(c) or _SPAWNED in c]
            return replace(
                evidence,
                rank=rank,
                started=len(commands),
                command=_display_text(Counter(launchers or commands).most_common(1)[0][0]),
                is_launcher=bool(launchers),
            )
    return evidence


def _display_text(command: str) -> str:
    if (match := _LAUNCHERS.match(command)) is not None:
        return match[1]
    if _SPAWNED in command:
        return "by multiprocessing's spawn, as in mp.spawn"
    first, _, rest = command.partition(" ")
    return f"{first.rpartition('/')[2]} {rest}".strip()[:_MAX_COMMAND_CHARACTERS]


def _argv(pid: int, proc: Path) -> str:
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""  # it has ended or belongs to a different user
    return " ".join(word.decode(errors="replace") for word in words).strip()


def _open_connections(proc: Path) -> set[str]:
    """Read the inodes of connected or listening TCP sockets (the kernel's proc_net_tcp)."""
    inodes = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue  # a kernel without IPv6
        fields = [line.split() for line in lines]
        inodes |= {field[9] for field in fields if len(field) > 9 and field[3] in _OPEN}
    return inodes


def _sockets(pid: int, proc: Path) -> set[str]:
    inodes = set()
    with suppress(OSError):
        for link in (proc / str(pid) / "fd").iterdir():
            with suppress(OSError):
                target = str(link.readlink())
                if target.startswith("socket:["):
                    inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    return inodes


_CachedFile = tuple[str, int, int]
"""Path, size and modification time."""


class CompileCacheWatch:
    """Polls a folder of compiled graphs for changes."""

    def __init__(self, folder: Path, scratch: Path, *, has_locks: bool = True) -> None:
        """``scratch`` marks the processes of the launch, including its compilers.

        ``has_locks`` is False if the folder contains no locks even during a compilation.
        """
        self._folder, self._scratch, self._has_locks = folder, scratch, has_locks
        self._has_seen_compiler = False
        self._entries: frozenset[_CachedFile] = frozenset()
        self._next_s = float("-inf")
        self.compiling = False
        """True while a compiler is running that may hold a lock of the folder, if it has locks."""

    def moved(self, now_s: float) -> bool:
        """Return whether anything has changed since the last poll."""
        if now_s < self._next_s:
            return False
        scan_started_s = time.monotonic()
        entries = frozenset(_entries(self._folder))
        if self._has_locks:
            locked = any(path.endswith(_LOCK) for path, _, _ in entries)
            self.compiling = locked and (self._compiles() or not self._has_seen_compiler)
        else:
            self.compiling = self._compiles()
        scan_s = time.monotonic() - scan_started_s
        self._next_s = now_s + max(_CACHE_POLL_INTERVAL_S, scan_s / _MAX_SCAN_SHARE)
        changed, self._entries = entries != self._entries, entries
        return changed

    def _compiles(self) -> bool:
        """Return whether a compiler of this launch is running.

        Short-lived compilers, and those of libraries other than libneuronxla, may go unseen.
        """
        compiles = any(is_compiler(pid) for pid in find_marked(ENV_SCRATCH, str(self._scratch)))
        self._has_seen_compiler |= compiles
        return compiles


def _entries(folder: Path) -> Iterator[_CachedFile]:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            try:
                status = path.lstat()
            except FileNotFoundError:  # a lock just removed, or a temporary file
                continue
            yield str(path), status.st_size, status.st_mtime_ns


class ProgramLiveness:
    """Detects progress of this node's program; inspects its processes if there is none."""

    def __init__(
        self, scratch: Path, cache: Path, device: DeviceKind, *, hang_limit_s: float
    ) -> None:
        """``cache`` is the folder of compiled graphs."""
        self._scratch, self._hang_limit_s = scratch, hang_limit_s
        has_locks = device is not DeviceKind.TORCH_NEURON
        self._cache = CompileCacheWatch(cache, scratch, has_locks=has_locks)
        self._program_started_s: float | None = None
        self._stamps: tuple[object, ...] = ()
        self._polled_s = self._progress_s = self._reported_s = self._collected_s = float("-inf")
        self._reported_compiling = False
        self._evidence: Evidence | None = None
        self.takes_last_snapshot = False
        """True during the last snapshot; the snapshot process itself abandons it if it stalls."""

    def program_started(self, now_s: float) -> None:
        """Record the start of the program."""
        self._program_started_s = now_s

    def messages(self, now_s: float, doing: str) -> Iterator[Message]:
        """Yield messages for the main node; ``doing`` is a field of ``ProgressReport``."""
        has_progressed = self._has_progressed(now_s)
        if has_progressed:
            self._progress_s = now_s
        is_due = has_progressed and now_s - self._reported_s >= _MESSAGE_INTERVAL_S
        if is_due or self._cache.compiling != self._reported_compiling:
            self._reported_s, self._reported_compiling = now_s, self._cache.compiling
            movement = ProgressReport(doing=doing, compiling=self._reported_compiling)
            yield {"type": "moved", **asdict(movement)}
        if (evidence := self._new_evidence(now_s)) is not None:
            yield {"type": "seen", **asdict(evidence)}

    def _has_progressed(self, now_s: float) -> bool:
        """Return whether there has been any progress since the last call."""
        if now_s - self._polled_s < _POLL_INTERVAL_S:
            return False
        self._polled_s = now_s
        names = (OUTPUT_FILE, PROGRESS_FILE, PREPARATION_FILE, RESULTS_MOVED_FILE)
        stamps = (
            *(_stamp(self._scratch / name) for name in names),
            *(_stamp(path) for path in sorted(self._scratch.glob("progress-*.json"))),
            SnapshotReport.read(self._scratch).last_change_at,
            _stamp(self._scratch / SNAPSHOTS_FILE) if self.takes_last_snapshot else None,
        )
        changed, self._stamps = stamps != self._stamps, stamps
        return self._cache.moved(now_s) or changed

    def is_silent(self, now_s: float) -> bool:
        """Return whether this node has made no progress for half the hang limit."""
        if self._program_started_s is None:
            return False
        return now_s - max(self._progress_s, self._program_started_s) >= self._hang_limit_s / 2

    def _new_evidence(self, now_s: float) -> Evidence | None:
        """Return this node's evidence, if it has changed, after silence for half the hang limit.

        So it reaches the main node before the verdict, and is never collected while the program
        makes progress.
        """
        interval_s = min(self._hang_limit_s / 8, _COLLECTION_INTERVAL_S)
        if not self.is_silent(now_s) or now_s - self._collected_s < interval_s:
            return None
        self._collected_s = now_s
        output = OutputReport.read(self._scratch)
        folder_has_changed = bool(SnapshotReport.read(self._scratch).last_change_at)
        evidence = collect(
            read_states(self._scratch).values(),
            lines=output.lines,
            has_worked=output.step is not None or output.loss is not None or folder_has_changed,
        )
        changed, self._evidence = evidence != self._evidence, evidence
        return evidence if changed else None


def _stamp(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None
