"""What a node's program shows from outside: signs of life, or processes and connections of ranks.

A compiler of large graphs may say nothing for hours. libneuronxla makes `model.hlo_module.pb.lock`
beside the graph that it compiles, and removes it afterwards; a process that finds one waits
("Another process must be compiling", as the workers of a node print it). A compiler that is killed
leaves its lock there, so a lock counts only with a compiler, as far as one was ever seen.

A program that starts its own processes (``mp.spawn``, ``accelerate launch``) makes no process group
under torchrun: its processes inherit ``TORCHELASTIC_USE_AGENT_STORE``, so all of them connect to
the address that the program chose, and none listens there (``_create_c10d_store`` in
torch/distributed/rendezvous.py). From outside, the ranks then have children and no connection.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from training.core.processes import is_gone, marked, parents
from training.core.progress import ENV_SCRATCH, WorkerState, read_states
from training.launcher.messages import Evidence, Message, Movement
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
"""A command that starts a launcher: by its name, or as what Python runs."""
_SPAWNED = "--multiprocessing-fork"
"""Argument of a process that multiprocessing has started with ``spawn`` or ``forkserver``
(``get_command_line`` of multiprocessing/spawn.py)."""
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
_LONGEST_COMMAND = 60
_BETWEEN_CACHE_LOOKS_S = 5.0
_SHARE = 0.01
"""Most of this process's time that looking at the cache may take, however many graphs there are."""
_LOCK = ".lock"
_COMPILER = b"neuronx-cc"
"""The command that libneuronxla starts ("Call compiler with cmd: neuronx-cc compile ...", in the
log of aws-neuron-sdk issue 872)."""
_BETWEEN_LOOKS_S = 0.25
_BETWEEN_MOVES_S = 1.0
"""Least time between two messages that the program goes on."""
_BETWEEN_COLLECTIONS_S = 30.0
_OPEN = frozenset({"01", "0A"})
"""ESTABLISHED and LISTEN in /proc/net/tcp (include/net/tcp_states.h)."""


def collect(
    states: Iterable[WorkerState], *, lines: int, has_worked: bool, proc: Path = Path("/proc")
) -> Evidence:
    """Look at the ranks of this node and at what they have started."""
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
        commands = [_argv(child, proc) for child in _descendants(pid, parent_of)]
        commands = [c for c in commands if c and not any(helper in c for helper in _HELPERS)]
        if commands:
            launchers = [c for c in commands if _LAUNCHERS.match(c) or _SPAWNED in c]
            return replace(
                evidence,
                rank=rank,
                started=len(commands),
                command=_shown(Counter(launchers or commands).most_common(1)[0][0]),
                is_launcher=bool(launchers),
            )
    return evidence


def _shown(command: str) -> str:
    if (match := _LAUNCHERS.match(command)) is not None:
        return match[1]
    if _SPAWNED in command:
        return "by multiprocessing's spawn, as of mp.spawn"
    first, _, rest = command.partition(" ")
    return f"{first.rpartition('/')[2]} {rest}".strip()[:_LONGEST_COMMAND]


def _descendants(pid: int, parent_of: Mapping[int, int]) -> list[int]:
    found = [pid]
    for each in found:  # grows while it is read
        found += [child for child, parent in parent_of.items() if parent == each]
    return found[1:]


def _argv(pid: int, proc: Path) -> str:
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""  # it has ended, or belongs to another user
    return " ".join(word.decode(errors="replace") for word in words).strip()


def _open_connections(proc: Path) -> set[str]:
    """Read the inodes of TCP sockets that are connected or listen (proc_net_tcp of the kernel)."""
    found = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue  # a kernel without IPv6
        fields = [line.split() for line in lines]
        found |= {field[9] for field in fields if len(field) > 9 and field[3] in _OPEN}
    return found


def _sockets(pid: int, proc: Path) -> set[str]:
    found = set()
    with suppress(OSError):
        for link in (proc / str(pid) / "fd").iterdir():
            with suppress(OSError):
                target = str(link.readlink())
                if target.startswith("socket:["):
                    found.add(target.removeprefix("socket:[").removesuffix("]"))
    return found


_CachedFile = tuple[str, int, int]
"""Path, size and time of change."""


class CompileCacheWatch:
    """Looks at a folder of compiled graphs now and then."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        """``scratch`` marks the processes of the launch, among which a compiler is."""
        self._folder, self._scratch = folder, scratch
        self._has_seen_compiler = False
        self._entries: frozenset[_CachedFile] = frozenset()
        self._next_s = float("-inf")
        self.compiling = False
        """True while there is a lock, and who may have made it is there too."""

    def moved(self, now_s: float) -> bool:
        """Tell if anything has changed since the last look."""
        if now_s < self._next_s:
            return False
        began_s = time.monotonic()
        found = frozenset(_entries(self._folder))
        locked = any(path.endswith(_LOCK) for path, _, _ in found)
        self.compiling = locked and self._may_compile()
        took_s = time.monotonic() - began_s
        self._next_s = now_s + max(_BETWEEN_CACHE_LOOKS_S, took_s / _SHARE)
        changed, self._entries = found != self._entries, found
        return changed

    def _may_compile(self) -> bool:
        """Look for a compiler. A short run of one may never be seen, and how others than
        libneuronxla compile is not known: without a compiler so far, the lock decides."""
        if any(_is_compiler(pid) for pid in marked(ENV_SCRATCH, str(self._scratch))):
            self._has_seen_compiler = True
            return True
        return not self._has_seen_compiler


def _is_compiler(pid: int) -> bool:
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False  # it has ended
    # A script's name comes after its interpreter's, and perhaps an option.
    return any(argument.rpartition(b"/")[2] == _COMPILER for argument in arguments[:3])


def _entries(folder: Path) -> Iterator[_CachedFile]:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            try:
                status = path.lstat()
            except FileNotFoundError:  # a lock just gone, or a temporary file
                continue
            yield str(path), status.st_size, status.st_mtime_ns


class LifeSigns:
    """Looks for signs of life of the program here, and at its processes once there are none."""

    def __init__(self, scratch: Path, cache: Path, *, hang_limit_s: float) -> None:
        """``cache`` is the folder of compiled graphs."""
        self._scratch, self._hang_limit_s = scratch, hang_limit_s
        self._cache = CompileCacheWatch(cache, scratch)
        self._went_s: float | None = None
        self._stamps: tuple[object, ...] = ()
        self._looked_s = self._moved_s = self._told_s = self._collected_s = float("-inf")
        self._told_compiling = False
        self._evidence: Evidence | None = None
        self.takes_last_snapshot = False
        """A last snapshot that does not go on is given up by the process that takes it."""

    def went(self, now_s: float) -> None:
        """Note that the program begins."""
        self._went_s = now_s

    def messages(self, now_s: float, doing: str) -> Iterator[Message]:
        """Yield what the main node must know; ``doing`` is for ``Movement``."""
        has_moved = self._has_moved(now_s)
        if has_moved:
            self._moved_s = now_s
        is_due = has_moved and now_s - self._told_s >= _BETWEEN_MOVES_S
        if is_due or self._cache.compiling != self._told_compiling:
            self._told_s, self._told_compiling = now_s, self._cache.compiling
            movement = Movement(doing=doing, compiling=self._told_compiling)
            yield {"type": "moved", **asdict(movement)}
        if (evidence := self._new_evidence(now_s)) is not None:
            yield {"type": "seen", **asdict(evidence)}

    def _has_moved(self, now_s: float) -> bool:
        """Tell if anything that counts as progress has happened since the last look."""
        if now_s - self._looked_s < _BETWEEN_LOOKS_S:
            return False
        self._looked_s = now_s
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
        """Tell if nothing has moved on this node for half the hang limit."""
        if self._went_s is None:
            return False
        return now_s - max(self._moved_s, self._went_s) >= self._hang_limit_s / 2

    def _new_evidence(self, now_s: float) -> Evidence | None:
        """Return what this node shows if it has changed, once half the hang limit is over.

        In time for the main node's verdict, and never while the program is at work.
        """
        between_s = min(self._hang_limit_s / 8, _BETWEEN_COLLECTIONS_S)
        if not self.is_silent(now_s) or now_s - self._collected_s < between_s:
            return None
        self._collected_s = now_s
        output = OutputReport.read(self._scratch)
        has_kept = bool(SnapshotReport.read(self._scratch).last_change_at)
        evidence = collect(
            read_states(self._scratch).values(),
            lines=output.lines,
            has_worked=output.step is not None or output.loss is not None or has_kept,
        )
        changed, self._evidence = evidence != self._evidence, evidence
        return evidence if changed else None


def _stamp(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None
