"""Watch a folder that a program writes to, and detect when it is quiescent.

The program need not cooperate: a folder is quiescent while no process has any of its files open for
writing and nothing in it has changed for a certain time.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from training.program.snapshots.manifest import EntryKind, is_log

_IDLE_OPEN_S = 60.0
"""Time without changes after which a file is idle, even if open for writing throughout training."""
_SLOW_LOG_S = 60.0
_SLOW_LOG_BYTES_PER_S = 16 * 1024
"""A file that only grows, for this long and at most at this rate, is a log by any name."""
_ONE_WRITE_BYTES = 16 * 1024 * 1024
"""Below this size, a change to a file that keeps its inode and size counts as a replacement. A
larger file may have been written only in part."""
_ONE_SAVE_S = 60.0
"""New files in a folder within this time belong to the same save."""
_PAUSE_FACTOR = 1.5
"""Ratio of the quiet time to the longest pause in earlier saves; the next may be longer."""
_DIGITS = re.compile(r"\d+")
_MIN_REPLACEMENTS = 3
"""Number of replacements after which a file counts as replaced continuously."""


class FileState(NamedTuple):
    """An entry's file-system metadata, which changes with every write."""

    kind: EntryKind
    size: int
    mtime_ns: int
    inode: int
    mode: int
    target: str


FolderState = Mapping[str, FileState]
"""Entries of a folder by relative path."""


def scan(root: Path) -> dict[str, FileState]:
    """List everything below ``root``, ignoring entries deleted during the scan."""
    found: dict[str, FileState] = {}
    waiting = [""]
    while waiting:
        below = waiting.pop()
        try:
            with os.scandir(root / below if below else root) as entries:
                for entry in entries:
                    path = f"{below}/{entry.name}" if below else entry.name
                    try:
                        now = file_state(entry)
                    except FileNotFoundError:
                        continue
                    if now is not None:
                        found[path] = now
                        if now.kind is EntryKind.FOLDER:
                            waiting.append(path)
        except (FileNotFoundError, NotADirectoryError):
            continue  # deleted or replaced by the program
    return found


def file_state(entry: os.DirEntry[str] | Path) -> FileState | None:
    """Return the state of one entry; None for anything but a file, folder or link."""
    status = entry.stat(follow_symlinks=False)
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        return FileState(EntryKind.LINK, 0, 0, status.st_ino, 0, str(Path(entry).readlink()))
    if stat.S_ISDIR(status.st_mode):
        # A folder's times change with its entries, which are compared separately.
        return FileState(EntryKind.FOLDER, 0, 0, 0, mode, "")
    if stat.S_ISREG(status.st_mode):
        return FileState(
            EntryKind.FILE, status.st_size, status.st_mtime_ns, status.st_ino, mode, ""
        )
    return None


def same_content(before: FileState, status: os.stat_result) -> bool:
    """Return whether a file has not been modified since ``before``."""
    return (status.st_size, status.st_mtime_ns, status.st_ino) == (
        before.size,
        before.mtime_ns,
        before.inode,
    )


def open_for_writing(roots: Iterable[Path], pids: Iterable[int]) -> dict[Path, bool]:
    """Find files below ``roots`` that the processes may write to; True for mapped ones.

    The processes have a descriptor open for writing (proc(5), fdinfo: flags) or a shared writable
    mapping, which outlives its descriptor. Writes through a mapping update a file's time only
    eventually (mmap(2)), so a mapped file's time is unreliable.
    """
    # The kernel reports real paths.
    prefixes = tuple(f"{os.path.realpath(root)}/" for root in roots)
    found: dict[Path, bool] = {}
    for pid in pids:
        process = Path(f"/proc/{pid}")
        try:
            for descriptor in (process / "fd").iterdir():
                try:
                    target = str(descriptor.readlink())
                    if target.startswith(prefixes) and _is_writable(process, descriptor.name):
                        found.setdefault(Path(target), False)
                except OSError:
                    continue  # it has been closed
            with (process / "maps").open(errors="surrogateescape") as maps:
                for line in maps:
                    # Address, permissions, offset, device, inode, path.
                    fields = line.rstrip("\n").split(maxsplit=5)
                    if len(fields) < 6 or not fields[5].startswith(prefixes):
                        continue
                    if fields[1][1] == "w" and fields[1][3] == "s":
                        found[Path(fields[5])] = True
        except OSError:
            continue  # it has ended
    return found


def _is_writable(process: Path, descriptor: str) -> bool:
    match = re.search(r"^flags:\s*(\d+)", (process / "fdinfo" / descriptor).read_text(), re.M)
    return match is not None and int(match[1], 8) & os.O_ACCMODE != os.O_RDONLY


class _Growth(NamedTuple):
    """A file that has only grown since its first observed change."""

    inode: int
    since: float
    size: int


class FolderWatch:
    """The history of one folder, from repeated scans."""

    def __init__(self, root: Path, *, quiet_s: float, longest_quiet_s: float = 0.0) -> None:
        self.root = root
        self._quiet_s, self._longest_quiet_s = quiet_s, longest_quiet_s
        self._pause_s = 0.0
        """Longest pause between two new files of the same save."""
        self._new_at: dict[str, float] = {}
        """Time of the latest new file in each folder."""
        self._first_new_at: dict[str, float] = {}
        """Time of the first new file, by folder path with each number replaced by 0."""
        self.state: FolderState = {}
        self.since = 0.0
        """Start of the current state, ignoring logs."""
        self.until = 0.0
        """Time until which the current state was last observed."""
        self.changed_at: float | None = None
        """Time of the last change, including logs; None before the first."""
        self.last_changed = ""
        """One of the paths in the last change, ignoring logs."""
        self._touched: dict[str, float] = {}
        self._growing: dict[str, _Growth] = {}
        self._replaced: dict[str, int] = {}
        self._quiet_at = 0.0
        self._has_scanned = False

    def scan(self, clock: SteadyClock) -> None:
        """Scan the folder once; raise ``OSError`` if it cannot be read."""
        began = clock.now()
        state = scan(self.root)
        ended = clock.now()
        if not self._has_scanned:
            self._has_scanned, self.state, self.since = True, state, ended
            self.until = self._quiet_at = ended
            return
        changed = {path for path, _ in state.items() ^ self.state.items()}
        if changed:
            self.changed_at = ended
        essential = [path for path in changed if not self._note(path, state.get(path), ended)]
        if essential:
            self._note_pause(essential, state, ended)
            self.since = self.until = ended
            self.last_changed = max(essential, key=lambda path: (path in state, path))
        else:
            # A state that this scan found unchanged was valid at least until its start.
            self.until = max(self.until, began)
        self.state = state
        if self.is_quiet:
            self._quiet_at = ended
            self._replaced.clear()

    @property
    def is_quiet(self) -> bool:
        """True if nothing except logs has changed for long enough."""
        return self.until - self.since >= self.quiet_s

    @property
    def quiet_s(self) -> float:
        """Required time without changes, longer than the pauses in earlier saves.

        During the first save, whose pauses are unknown, the longest time applies.
        """
        is_learning = any(self.until - at < _ONE_SAVE_S for at in self._first_new_at.values())
        wanted = self._longest_quiet_s if is_learning else _PAUSE_FACTOR * self._pause_s
        return max(self._quiet_s, min(self._longest_quiet_s, wanted))

    def forget_pauses(self) -> None:
        """Reset the quiet time to its minimum, since the folder is never quiescent for longer."""
        self._pause_s, self._new_at = 0.0, {}
        self._longest_quiet_s = 0.0

    @property
    def replaces_one_file(self) -> bool:
        """True if the program keeps replacing a single file, and nothing else changes.

        It may never pause, but the folder is consistent whenever no file is open. With two such
        files it is not, because one may be older than the other.
        """
        recent = [path for path, at in self._touched.items() if at > self._quiet_at]
        recent = [path for path in recent if path in self.state and not self.is_log(path)]
        return len(recent) == 1 and self._replaced.get(recent[0], 0) >= _MIN_REPLACEMENTS

    def is_log(self, path: str) -> bool:
        """Return whether a file is a log, by its name or its growth."""
        return is_log(path) or self._grows_slowly(path)

    def is_idle(self, path: str, now: float) -> bool:
        """Return whether a file has been unchanged for so long that it may stay open."""
        seen = self.state.get(path)
        # The program may have started before the first scan.
        written = seen.mtime_ns / 1e9 if seen is not None else now
        return now - max(written, self._touched.get(path, 0.0)) >= _IDLE_OPEN_S

    @property
    def bytes(self) -> int:
        """Total size of all files."""
        return sum(seen.size for seen in self.state.values())

    def _note_pause(self, changed: Iterable[str], state: FolderState, now: float) -> None:
        """Learn how long a program pauses between two files of a save.

        New files in a subfolder in quick succession belong to one save. Only pauses without any
        other changes count.
        """
        for path in changed:
            folder = path.rpartition("/")[0]
            is_new = path in state and path not in self.state and state[path].kind is EntryKind.FILE
            if not is_new:
                continue
            self._first_new_at.setdefault(_DIGITS.sub("0", folder), now)
            if not folder:
                continue
            if now - self._new_at.get(folder, float("-inf")) <= _ONE_SAVE_S:
                self._pause_s = max(self._pause_s, now - self.since)
            self._new_at[folder] = now
        self._new_at = {name: at for name, at in self._new_at.items() if now - at <= _ONE_SAVE_S}

    def _note(self, path: str, now: FileState | None, at: float) -> bool:
        """Record a path's change; return True if it changed like a log."""
        before = self.state.get(path)
        if before is None or now is None or before.kind is not now.kind:
            if now is None:
                self._touched.pop(path, None)
            else:
                self._touched[path] = at
            self._growing.pop(path, None)
            return is_log(path)
        self._touched[path] = at
        grew = now.inode == before.inode and now.size > before.size
        if grew:
            self._growing.setdefault(path, _Growth(now.inode, at, before.size))
        else:
            self._growing.pop(path, None)
            if (now.inode, now.size) != (before.inode, before.size) or now.size < _ONE_WRITE_BYTES:
                self._replaced[path] = self._replaced.get(path, 0) + 1
        return is_log(path) or (grew and self._grows_slowly(path, at))

    def _grows_slowly(self, path: str, now: float | None = None) -> bool:
        growth = self._growing.get(path)
        if growth is None:
            return False
        seen = self.state.get(path)
        elapsed = (self.until if now is None else now) - growth.since
        grown = seen.size - growth.size if seen is not None else 0
        return elapsed >= _SLOW_LOG_S and grown <= elapsed * _SLOW_LOG_BYTES_PER_S


class SteadyClock:
    """Wall-clock time that does not jump when the system clock is adjusted."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        """Return the seconds since the epoch."""
        return self._offset + time.monotonic()
