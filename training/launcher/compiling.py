"""What a node's compile cache tells: whether anything changes, and if a compilation goes on.

A compiler of large graphs may say nothing for hours. libneuronxla makes `model.hlo_module.pb.lock`
beside the graph that it compiles, and removes it afterwards; a process that finds one waits
("Another process must be compiling", as the workers of a node print it). A compiler that is killed
leaves its lock there, so a lock counts only with a compiler, as far as one was ever seen.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from training.core.processes import marked
from training.core.progress import ENV_SCRATCH

_BETWEEN_LOOKS_S = 5.0
_SHARE = 0.01
"""Most of this process's time that looking may take, however many graphs there are."""
_LOCK = ".lock"
_COMPILER = b"neuronx-cc"
"""The command that libneuronxla starts ("Call compiler with cmd: neuronx-cc compile ...", in the
log of aws-neuron-sdk issue 872)."""

Entry = tuple[str, int, int]


class CacheWatch:
    """Looks at a folder of compiled graphs now and then."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        """``scratch`` marks the processes of the launch, among which a compiler is."""
        self._folder, self._scratch = folder, scratch
        self._has_seen_compiler = False
        self._seen: frozenset[Entry] = frozenset()
        self._next_s = float("-inf")
        self.compiling = False
        """True while there is a lock, and who may have made it is there too."""

    def moved(self, now_s: float) -> bool:
        """Tell if anything has changed since the last look."""
        if now_s < self._next_s:
            return False
        began_s = time.monotonic()
        seen = frozenset(_entries(self._folder))
        locked = any(path.endswith(_LOCK) for path, _, _ in seen)
        self.compiling = locked and self._may_compile()
        took_s = time.monotonic() - began_s
        self._next_s = now_s + max(_BETWEEN_LOOKS_S, took_s / _SHARE)
        changed, self._seen = seen != self._seen, seen
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


def _entries(folder: Path) -> Iterator[Entry]:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            try:
                status = path.lstat()
            except FileNotFoundError:  # a lock just gone, or a temporary file
                continue
            yield str(path), status.st_size, status.st_mtime_ns
