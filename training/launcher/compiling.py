"""What a node's compile cache tells: whether anything changes, and if a compilation goes on.

A compiler of large graphs may say nothing for hours. libneuronxla makes `model.hlo_module.pb.lock`
beside the graph that it compiles, and removes it afterwards; a process that finds one waits
("Another process must be compiling", as the workers of a node print it).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

_BETWEEN_LOOKS_S = 5.0
_SHARE = 0.01
"""Most of this process's time that looking may take, however many graphs there are."""
_LOCK = ".lock"

Entry = tuple[str, int, int]


class CacheWatch:
    """Looks at a folder of compiled graphs now and then."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: frozenset[Entry] = frozenset()
        self._next_s = float("-inf")
        self.compiling = False
        """True while there is a lock."""

    def moved(self, now_s: float) -> bool:
        """Tell if anything has changed since the last look."""
        if now_s < self._next_s:
            return False
        began_s = time.monotonic()
        seen = frozenset(_entries(self._folder))
        took_s = time.monotonic() - began_s
        self._next_s = now_s + max(_BETWEEN_LOOKS_S, took_s / _SHARE)
        changed, self._seen = seen != self._seen, seen
        self.compiling = any(path.endswith(_LOCK) for path, _, _ in seen)
        return changed


def _entries(folder: Path) -> Iterator[Entry]:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            try:
                status = path.lstat()
            except FileNotFoundError:  # a lock just gone, or a temporary file
                continue
            yield str(path), status.st_size, status.st_mtime_ns
