"""Sees whether a program reads the files that a restore has given back.

The kernel tells with inotify(7), in order, who opens and changes a file; so a program that reads a
checkpoint and replaces it at once is not taken for one that has begun again.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

from training.program.settings import Folders
from training.program.snapshots.manifest import Kind, Root
from training.program.snapshots.restore import read_record

_MOST_FILES = 2_000
# linux/inotify.h
_ACCESS, _MODIFY, _CLOSE_NOWRITE, _OVERFLOW = 0x1, 0x2, 0x10, 0x4000
_READ = _ACCESS | _CLOSE_NOWRITE
"""A file that is mapped is not accessed by a read, but it is opened and closed."""
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_EVENT = struct.Struct("iIII")


class RestoredReads:
    """The program's checkpoint files as they were restored on this node, from now on watched."""

    def __init__(self, folders: Folders, scratch: Path) -> None:
        """Watch the largest files; ``OSError`` if the kernel cannot."""
        files = [
            (seen.size, path)
            for (root, path), seen in read_record(scratch).seen.items()
            if root is Root.CHECKPOINTS and seen.kind is Kind.FILE and seen.size
        ]
        self.num_files = len(files)
        self._unread: dict[int, str] = {}
        """Paths of files that were neither read nor changed, by watch."""
        self._queue = -1
        if not files:
            return
        libc = ctypes.CDLL(None, use_errno=True)
        self._queue = _checked(libc.inotify_init1(_FLAGS))
        for _, path in sorted(files, reverse=True)[:_MOST_FILES]:
            name = os.fsencode(folders.checkpoints / path)
            watch = _checked(libc.inotify_add_watch(self._queue, name, _MODIFY | _READ))
            self._unread[watch] = path

    def first(self) -> str | None:
        """Return the first file that was read as it was restored, if one was.

        ``OSError`` if the kernel has lost track.
        """
        while self._unread:
            try:
                data = os.read(self._queue, 65536)
            except BlockingIOError:
                return None
            place = 0
            while place < len(data):
                watch, what, _, length = _EVENT.unpack_from(data, place)
                place += _EVENT.size + length
                if what & _OVERFLOW:
                    raise OSError("events of the checkpoint folder were lost")
                if what & _READ and watch in self._unread:
                    return self._unread[watch]
                if what & _MODIFY:
                    self._unread.pop(watch, None)
        return None

    def close(self) -> None:
        """Watch no longer."""
        if self._queue >= 0:
            os.close(self._queue)
            self._queue = -1
        self._unread.clear()


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
