"""Remarks on a running program's unpersisted files, and on restored files that it ignores.

Files written outside the checkpoint folder are found by scanning. Reads of restored files are
observed with inotify(7), which reports opens and changes in order, so a program that reads a
checkpoint and replaces it immediately is not mistaken for one that starts over.
"""

from __future__ import annotations

import ctypes
import logging
import os
import stat
import struct
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from training.core.contract import NodeContract
from training.core.files import write_whole
from training.program.reports import UNPERSISTED_FILE
from training.program.settings import ProgramFolders, ProgramSettings
from training.program.snapshots.manifest import EntryKind, Root
from training.program.snapshots.process import SnapshotReport
from training.program.snapshots.restore import read_record
from trainium_catalogue.contract import ENV_CHECKPOINT_DIR
from trainium_catalogue.wording import counted

_CACHES = frozenset({"__pycache__", ".cache", ".pytest_cache", ".ipynb_checkpoints"})
_MAX_FILES = 100_000
"""Maximum number of files per scan of a folder, since the launcher must also watch other nodes."""
_TEMPORARY_PREFIXES = (".", "tmp", "trainium-", "torch", "pymp-", "neuron", "nrt", "pip-")
"""Name prefixes of libraries' temporary files and caches, at the top of /tmp and of the home
folder."""
_TEMPORARY_FOLDERS = ("/tmp", "/var/tmp")
_SYSTEM = ("/dev", "/proc", "/sys", "/etc", "/usr", "/bin", "/lib", "/opt/aws")
_SHOWN = 3
_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
_UNPERSISTED_AFTER_S = 120.0
"""Early enough for the user to stop a long job that would lose its checkpoints."""
_UNPERSISTED_INTERVAL_S = 300.0
_UNREAD_AFTER_S = 300.0
_READS_INTERVAL_S = 0.5
_MAX_WATCHED = 2_000
# linux/inotify.h
_ACCESS, _MODIFY, _CLOSE_NOWRITE, _OVERFLOW = 0x1, 0x2, 0x10, 0x4000
_READ = _ACCESS | _CLOSE_NOWRITE
"""A memory-mapped file causes no access event, but is opened and closed."""
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_EVENT = struct.Struct("iIII")

log = logging.getLogger(__name__)


class FileRemarks:
    """Watches a program's files from its start, and logs remarks for its user."""

    def __init__(
        self,
        node: NodeContract,
        settings: ProgramSettings,
        folders: ProgramFolders,
        *,
        home: str,
        shares_machine: bool,
    ) -> None:
        """``home`` is the user's home folder, if any."""
        self._node, self._scratch = node, folders.scratch
        self._checkpoint_dir = settings.checkpoint_dir
        self._unpersisted_at_s, self._unread_at_s = _UNPERSISTED_AFTER_S, _UNREAD_AFTER_S
        """Seconds since the program's start."""
        lustre = [Path(node.lustre)] if node.lustre else []
        self._unpersisted = UnpersistedFiles(
            folders.code,
            folders.checkpoints,
            chosen=settings.checkpoint_dir,
            outside=places(settings.argv, settings.env, home=home, shares_machine=shares_machine),
            excluded=[folders.code.parent, folders.scratch, *lustre],
        )
        self._restored: RestoredReads | None = None
        self._restored_checked_s = 0.0
        with suppress(OSError):  # inotify is unavailable or its limits are reached
            restored = RestoredReads(folders, folders.scratch)
            self._restored = restored if restored.num_files else None
        self._began_s = time.monotonic()

    def check(self, now_s: float) -> None:
        """Log remarks that are due."""
        elapsed_s = now_s - self._began_s
        if elapsed_s > self._unpersisted_at_s:
            self._unpersisted_at_s += _UNPERSISTED_INTERVAL_S
            self.report_unpersisted()
        if elapsed_s > self._unread_at_s:
            self._unread_at_s = float("inf")
            self._report_unread()
        if now_s - self._restored_checked_s >= _READS_INTERVAL_S:
            self._restored_checked_s = now_s
            self._check_restored()

    def check_at_end(self) -> None:
        """Log the final remarks on a program that has ended."""
        self.report_unpersisted()
        self._check_restored()
        self._report_unread()

    def report_unpersisted(self) -> None:
        """Warn about files that will be lost with the node."""
        with suppress(OSError):  # a remark must not fail the job, even on a full disk
            if (words := self._unpersisted.describe_new(self._scratch)) is not None:
                log.info("launch: program: %s", words)

    def report_nothing_persisted(self) -> None:
        """Warn at the end of a job without any snapshot; called on the main node."""
        if self._node.is_main and not SnapshotReport.read(self._scratch).snapshots:
            folder = self._checkpoint_dir or ENV_CHECKPOINT_DIR
            log.info("launch: program: nothing was saved: no file was written to %s", folder)

    def _check_restored(self) -> None:
        """Log once that the program reads a restored file."""
        if self._restored is None:
            return
        try:
            path = self._restored.first()
        except OSError:
            self._restored = None
            return
        if path is not None:
            log.info("launch: program: reads a restored file: %s", path)
            self._restored.close()
            self._restored = None

    def _report_unread(self) -> None:
        """Warn about a program that ignores its restored files and starts over."""
        if self._restored is not None:
            log.info(
                "launch: program: read none of the restored files (%s), so it has started over; "
                "make it load its newest checkpoint when it starts, or pass its resume argument "
                "with --resume-arguments",
                counted(self._restored.num_files, "file"),
            )


class _NewFiles(NamedTuple):
    """A new file, or a top-level folder with new files."""

    name: str
    is_folder: bool
    files: int
    bytes: int

    @property
    def shown(self) -> str:
        count = f"{counted(self.files, 'file')}, " if self.is_folder else ""
        return f"{self.name}{'/' if self.is_folder else ''} ({count}{_size(self.bytes)})"


class Place(NamedTuple):
    """A folder or file outside the program's own folder that the program may write to."""

    path: Path
    is_whole: bool
    """True if the program received this path; False if top-level entries are listed separately."""


def places(
    argv: Iterable[str], env: Mapping[str, str], *, home: str, shares_machine: bool
) -> list[Place]:
    """List the places to scan outside the program's folder.

    These are paths in its arguments and environment variables and, unless other nodes on the same
    machine also write there, the temporary folders and the home folder.
    """
    words = [text for word in (*argv, *env.values()) for text in (word, word.partition("=")[2])]
    named = {Path(os.path.normpath(word)) for word in words if word.startswith("/")}
    found = [
        Place(path, is_whole=True)
        for path in sorted(named)
        if len(path.parts) > 1 and not f"{path}/".startswith(tuple(f"{x}/" for x in _SYSTEM))
    ]
    if not shares_machine:
        others = dict.fromkeys(
            Path(text) for text in (*_TEMPORARY_FOLDERS, home) if text.startswith("/")
        )
        found += [Place(path, is_whole=False) for path in others if len(path.parts) > 1]
    return found


class UnpersistedFiles:
    """Files outside the checkpoint folder that have been created since the first scan.

    The first scan is before the program's start.
    """

    def __init__(
        self,
        code: Path,
        kept: Path,
        *,
        chosen: str,
        outside: Iterable[Place] = (),
        excluded: Iterable[Path] = (),
    ) -> None:
        """Scan ``code`` and ``outside``, but nothing below ``excluded``.

        ``kept`` is the checkpoint folder, ``chosen`` its name below ``code``.
        """
        self._code, self._kept, self._chosen = code, kept, chosen
        self._excluded = {*excluded}
        self._outside = [x for x in outside if not (x.is_whole and self._is_ours(x.path))]
        self._truncated: set[Path] = set()
        self._is_first_scan = True
        self._before = {path for _, path, _ in self._files()}
        self._is_first_scan = False
        self._reported: set[str] = set()

    def describe_new(self, scratch: Path) -> str | None:
        """Describe the program's unpersisted files if there are new ones since the last report.

        Also writes the description to a file in ``scratch`` for the run's status.
        """
        new_files = self._new_files()
        names = {item.name for item in new_files}
        if names <= self._reported:
            return None
        self._reported |= names
        words = self._describe(new_files)
        write_whole(scratch / UNPERSISTED_FILE, words.encode())
        return words

    def _is_ours(self, path: Path) -> bool:
        """Return whether a place, or a folder in it, is already scanned or persisted."""
        return self._code.is_relative_to(path) or any(
            path.is_relative_to(other) for other in (self._code, self._kept, *self._excluded)
        )

    def _new_files(self) -> list[_NewFiles]:
        sizes: dict[tuple[str, bool], list[int]] = defaultdict(list)
        for which, path, size in self._files():
            if path not in self._before:
                sizes[which].append(size)
        return [_NewFiles(*which, len(each), sum(each)) for which, each in sizes.items()]

    def _describe(self, new_files: list[_NewFiles]) -> str:
        new_files.sort(key=lambda item: (-item.bytes, item.name))
        shown = ", ".join(item.shown for item in new_files[:_SHOWN])
        if len(new_files) > _SHOWN:
            shown += f" and {len(new_files) - _SHOWN} more"
        which = "which is not kept" if len(new_files) == 1 else "which are not kept"
        return f"wrote {shown}, {which}; {self._remedy(new_files)}"

    def _remedy(self, new_files: list[_NewFiles]) -> str:
        folder = next(
            (x.name for x in new_files if x.is_folder and not x.name.startswith("/")), None
        )
        if self._chosen:
            return f"only files below {self._chosen} and in TRAINIUM_OUTPUT_DIR are"
        if folder is None or next(_walk(self._kept), None) is not None:
            return "only files in TRAINIUM_CHECKPOINT_DIR and TRAINIUM_OUTPUT_DIR are"
        return f"--checkpoint-dir {folder} keeps {'it' if len(new_files) == 1 else f'{folder}/'}"

    def _files(self) -> Iterator[tuple[tuple[str, bool], str, int]]:
        """Yield each file's reported name, whether that is a folder, its path and its size."""
        skipped = {self._kept}
        for path, size in self._sizes(self._code, skipped):
            top, slash, _ = os.path.relpath(path, self._code).partition("/")
            yield (top, bool(slash)), path, size
        skipped = {self._kept, self._code, *self._excluded}
        for place in self._outside:
            if place.is_whole and (own_size := _file_size(place.path)) is not None:
                yield (str(place.path), False), str(place.path), own_size
                continue
            excluded = {x.path for x in self._outside if x.path != place.path} | skipped
            for path, size in self._sizes(place.path, excluded):
                top, slash, _ = os.path.relpath(path, place.path).partition("/")
                if place.is_whole:
                    yield (str(place.path), True), path, size
                elif not top.startswith(_TEMPORARY_PREFIXES):
                    yield (f"{place.path}/{top}", bool(slash)), path, size

    def _sizes(self, folder: Path, excluded: set[Path]) -> Iterator[tuple[str, int]]:
        """Yield files and their sizes; none if the first scan was truncated.

        Otherwise later scans would mistake the files it missed for new ones.
        """
        if folder in self._truncated:
            return
        entries = list(islice(_walk(folder, excluded), _MAX_FILES))
        if self._is_first_scan and len(entries) == _MAX_FILES:
            self._truncated.add(folder)
            return
        for entry in entries:
            try:
                yield entry.path, entry.stat(follow_symlinks=False).st_size
            except OSError:
                continue  # it has been deleted


def _file_size(path: Path) -> int | None:
    """Return the size of a regular file; None for anything else.

    An argument that looks like a path may be too long or inaccessible.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _walk(folder: Path, excluded: Collection[Path] = ()) -> Iterator[os.DirEntry[str]]:
    """Yield the files below a folder, except caches and links."""
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name not in _CACHES and Path(entry.path) not in excluded:
                            waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        yield entry
        except OSError:
            continue  # it has been deleted


def _size(number: int) -> str:
    return next((f"{number / unit:.0f} {name}" for unit, name in _UNITS if number >= unit),
                f"{number} bytes")  # fmt: skip


class RestoredReads:
    """Watches the restored checkpoint files on this node for the program's first read."""

    def __init__(self, folders: ProgramFolders, scratch: Path) -> None:
        """Watch the largest files; raise ``OSError`` if inotify is unavailable."""
        files = [
            (state.size, path)
            for (root, path), state in read_record(scratch).seen.items()
            if root is Root.CHECKPOINTS and state.kind is EntryKind.FILE and state.size
        ]
        self.num_files = len(files)
        self._unread: dict[int, str] = {}
        """Paths of files neither read nor changed so far, by watch descriptor."""
        self._queue = -1
        if not files:
            return
        libc = ctypes.CDLL(None, use_errno=True)
        self._queue = _check_result(libc.inotify_init1(_FLAGS))
        for _, path in sorted(files, reverse=True)[:_MAX_WATCHED]:
            name = os.fsencode(folders.checkpoints / path)
            watch = _check_result(libc.inotify_add_watch(self._queue, name, _MODIFY | _READ))
            self._unread[watch] = path

    def first(self) -> str | None:
        """Return the path of the first file that was read before it was changed, if any.

        Raises ``OSError`` if the kernel has dropped events.
        """
        while self._unread:
            try:
                data = os.read(self._queue, 65536)
            except BlockingIOError:
                return None
            offset = 0
            while offset < len(data):
                watch, mask, _, length = _EVENT.unpack_from(data, offset)
                offset += _EVENT.size + length
                if mask & _OVERFLOW:
                    raise OSError("events of the checkpoint folder were lost")
                if mask & _READ and watch in self._unread:
                    return self._unread[watch]
                if mask & _MODIFY:
                    self._unread.pop(watch, None)
        return None

    def close(self) -> None:
        """Stop watching."""
        if self._queue >= 0:
            os.close(self._queue)
            self._queue = -1
        self._unread.clear()


def _check_result(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
