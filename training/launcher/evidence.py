"""What a node of a silent program shows from outside: processes of its ranks, and connections.

A program that starts its own processes (``mp.spawn``, ``accelerate launch``) makes no process group
under torchrun: its processes inherit ``TORCHELASTIC_USE_AGENT_STORE``, so all of them connect to
the address that the program chose, and none listens there (``_create_c10d_store`` in
torch/distributed/rendezvous.py). From outside, the ranks then have children and no connection.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from training.core.processes import is_gone, parents
from training.core.progress import WorkerState

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
_OPEN = frozenset({"01", "0A"})
"""ESTABLISHED and LISTEN in /proc/net/tcp (include/net/tcp_states.h)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The processes of one node's ranks, as the kernel shows them."""

    ranks: int
    connected: int
    """Ranks with an open TCP connection or port, as every member of a process group has."""
    lines: int
    """Lines of output so far."""
    has_worked: bool
    """True if the output has shown a step or a loss, or something was kept."""
    rank: int = -1
    """A rank with processes of its own; -1: there is none."""
    started: int = 0
    """How many it has."""
    command: str = ""
    """The most frequent of their commands."""
    is_launcher: bool = False
    """True if they were started for training: a launcher, or multiprocessing's ``spawn``."""

    def to_message(self) -> dict[str, Any]:
        """Fields for the peer link."""
        return asdict(self)

    @staticmethod
    def from_message(message: Mapping[str, Any]) -> Evidence:
        """Parse ``to_message``'s fields; ``ValueError`` if they are malformed."""
        try:
            return Evidence(
                ranks=int(message["ranks"]),
                connected=int(message["connected"]),
                lines=int(message["lines"]),
                has_worked=bool(message["has_worked"]),
                rank=int(message["rank"]),
                started=int(message["started"]),
                command=str(message["command"]),
                is_launcher=bool(message["is_launcher"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a node's evidence: {error!r}") from None

    def shown(self, node: int) -> str:
        """Describe it as part of a sentence."""
        lines = f"{self.lines} line{'s' if self.lines != 1 else ''}" if self.lines else "nothing"
        parts = [f"node {node} has printed {lines}"]
        if self.started:
            noun = "process" if self.started == 1 else "processes"
            parts.append(
                f"rank {self.rank} has started {self.started} {noun} of its own ({self.command})"
            )
        if self.ranks and not self.connected:
            parts.append("no rank there is connected to another, so no process group was formed")
        return ", ".join(parts)


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
