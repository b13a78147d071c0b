"""Remarks on the files of a program that runs: those it would lose, and restored ones it ignores.

What it writes outside the folder that is kept is found by looking. Whether it reads what a restore
has given back the kernel tells with inotify(7), in order, who opens and changes a file; so a
program that reads a checkpoint and replaces it at once is not taken for one that starts over.
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
from training.program.reports import UNKEPT_FILE
from training.program.settings import ProgramFolders, ProgramSettings
from training.program.snapshots.manifest import EntryKind, Root
from training.program.snapshots.process import SnapshotReport
from training.program.snapshots.restore import read_record
from trainium_catalogue.contract import ENV_CHECKPOINT_DIR

_CACHES = frozenset({"__pycache__", ".cache", ".pytest_cache", ".ipynb_checkpoints"})
_MOST_FILES = 100_000
"""Files of a folder after which a look ends: the launcher has other nodes to watch."""
_TEMPORARY = (".", "tmp", "trainium-", "torch", "pymp-", "neuron", "nrt", "pip-")
"""How names begin that libraries give to temporary files and caches, at the top of /tmp and of the
home folder."""
_PERSONAL = ("/tmp", "/var/tmp")
_SYSTEM = ("/dev", "/proc", "/sys", "/etc", "/usr", "/bin", "/lib", "/opt/aws")
_SHOWN = 3
_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
_UNKEPT_AFTER_S = 120.0
"""Early enough to stop a long job whose checkpoints would be lost."""
_BETWEEN_UNKEPT_S = 300.0
_UNREAD_AFTER_S = 300.0
_BETWEEN_READS_S = 0.5
_MOST_WATCHED = 2_000
# linux/inotify.h
_ACCESS, _MODIFY, _CLOSE_NOWRITE, _OVERFLOW = 0x1, 0x2, 0x10, 0x4000
_READ = _ACCESS | _CLOSE_NOWRITE
"""A file that is mapped is not accessed by a read, but it is opened and closed."""
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_EVENT = struct.Struct("iIII")

log = logging.getLogger(__name__)


class FileRemarks:
    """Looks at the files of a program from its start on, and logs what its user should know."""

    def __init__(
        self,
        node: NodeContract,
        settings: ProgramSettings,
        folders: ProgramFolders,
        *,
        home: str,
        shares_machine: bool,
    ) -> None:
        """``home`` is the user's home folder, if there is one."""
        self._node, self._scratch = node, folders.scratch
        self._kept_name = settings.checkpoint_dir
        self._unkept_at_s, self._unread_at_s = _UNKEPT_AFTER_S, _UNREAD_AFTER_S
        """Seconds since the program's start."""
        lustre = [Path(node.lustre)] if node.lustre else []
        self._unkept = UnkeptFiles(
            folders.code,
            folders.checkpoints,
            chosen=settings.checkpoint_dir,
            outside=places(settings.argv, settings.env, home=home, shares_machine=shares_machine),
            without=[folders.code.parent, folders.scratch, *lustre],
        )
        self._restored: RestoredReads | None = None
        self._looked_at_restored_s = 0.0
        with suppress(OSError):  # a kernel without inotify, or without room for it
            restored = RestoredReads(folders, folders.scratch)
            self._restored = restored if restored.num_files else None
        self._began_s = time.monotonic()

    def look(self, now_s: float) -> None:
        """Log what is due."""
        passed_s = now_s - self._began_s
        if passed_s > self._unkept_at_s:
            self._unkept_at_s += _BETWEEN_UNKEPT_S
            self.tell_unkept()
        if passed_s > self._unread_at_s:
            self._unread_at_s = float("inf")
            self._tell_unread()
        if now_s - self._looked_at_restored_s >= _BETWEEN_READS_S:
            self._looked_at_restored_s = now_s
            self._look_at_restored()

    def look_at_end(self) -> None:
        """Log what there is to say of a program that has ended."""
        self.tell_unkept()
        self._look_at_restored()
        self._tell_unread()

    def tell_unkept(self) -> None:
        """Warn of files that will be gone with the node."""
        with suppress(OSError):  # a remark ends no job, on a full disk for example
            if (words := self._unkept.news(self._scratch)) is not None:
                log.info("launch: program: %s", words)

    def tell_nothing_kept(self) -> None:
        """Warn at the end of a job that has no snapshot; only the main node knows."""
        if self._node.is_main and not SnapshotReport.read(self._scratch).snapshots:
            folder = self._kept_name or ENV_CHECKPOINT_DIR
            log.info("launch: program: nothing was kept: no file was written to %s", folder)

    def _look_at_restored(self) -> None:
        """Say once that the program uses what it got back."""
        if self._restored is None:
            return
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
        """Warn of a program that has got files back and starts over."""
        if self._restored is not None:
            log.info(
                "launch: program: has read none of the %d files that were restored, so it has "
                "started over; let it load its newest checkpoint when it starts, or name the "
                "argument that makes it with --resume-arguments",
                self._restored.num_files,
            )


class _NewFiles(NamedTuple):
    """A new file, or a folder at the top with new files."""

    name: str
    is_folder: bool
    files: int
    bytes: int

    @property
    def shown(self) -> str:
        count = "" if not self.is_folder else f"{self.files} file{'s'[: self.files != 1]}, "
        return f"{self.name}{'/' if self.is_folder else ''} ({count}{_size(self.bytes)})"


class Place(NamedTuple):
    """A folder outside the program's own, or a file, that the program may write to."""

    path: Path
    is_whole: bool
    """True if the program was told this path; False if what is at its top counts one by one."""


def places(
    argv: Iterable[str], env: Mapping[str, str], *, home: str, shares_machine: bool
) -> list[Place]:
    """List where to look outside the program's folder.

    Paths that its arguments or its own variables name, and, if the machine is the node's alone,
    the folders for temporary files and the home folder, where others would write too.
    """
    words = [text for word in (*argv, *env.values()) for text in (word, word.partition("=")[2])]
    named = {Path(os.path.normpath(word)) for word in words if word.startswith("/")}
    found = [
        Place(path, is_whole=True)
        for path in sorted(named)
        if len(path.parts) > 1 and not f"{path}/".startswith(tuple(f"{x}/" for x in _SYSTEM))
    ]
    if not shares_machine:
        others = dict.fromkeys(Path(text) for text in (*_PERSONAL, home) if text.startswith("/"))
        found += [Place(path, is_whole=False) for path in others if len(path.parts) > 1]
    return found


class UnkeptFiles:
    """The files outside the kept folder, as they were before the program ran."""

    def __init__(
        self,
        code: Path,
        kept: Path,
        *,
        chosen: str,
        outside: Iterable[Place] = (),
        without: Iterable[Path] = (),
    ) -> None:
        """Look at ``code`` and at ``outside``, but at nothing below ``without``.

        ``kept`` is the kept folder, ``chosen`` its name below ``code``.
        """
        self._code, self._kept, self._chosen = code, kept, chosen
        self._without = {*without}
        self._outside = [x for x in outside if not (x.is_whole and self._is_ours(x.path))]
        self._crowded: set[Path] = set()
        self._is_first_look = True
        self._before = {path for _, path, _ in self._files()}
        self._is_first_look = False
        self._told: set[str] = set()

    def news(self, scratch: Path) -> str | None:
        """Tell what the program has written that is not kept, if some of it was not told before.

        The newest words are left in a file of ``scratch`` for the run's status.
        """
        found = self._found()
        names = {one.name for one in found}
        if names <= self._told:
            return None
        self._told |= names
        words = self._describe(found)
        write_whole(scratch / UNKEPT_FILE, words.encode())
        return words

    def _is_ours(self, path: Path) -> bool:
        """Tell if a place is looked at or kept already, or holds one that is."""
        return self._code.is_relative_to(path) or any(
            path.is_relative_to(other) for other in (self._code, self._kept, *self._without)
        )

    def _found(self) -> list[_NewFiles]:
        sizes: dict[tuple[str, bool], list[int]] = defaultdict(list)
        for which, path, size in self._files():
            if path not in self._before:
                sizes[which].append(size)
        return [_NewFiles(*which, len(each), sum(each)) for which, each in sizes.items()]

    def _describe(self, found: list[_NewFiles]) -> str:
        found.sort(key=lambda one: (-one.bytes, one.name))
        shown = ", ".join(one.shown for one in found[:_SHOWN])
        if len(found) > _SHOWN:
            shown += f" and {len(found) - _SHOWN} more"
        which = "which is not kept" if len(found) == 1 else "which are not kept"
        return f"wrote {shown}, {which}; {self._remedy(found)}"

    def _remedy(self, found: list[_NewFiles]) -> str:
        folder = next((x.name for x in found if x.is_folder and not x.name.startswith("/")), None)
        if self._chosen:
            return f"what is written below {self._chosen} or to TRAINIUM_OUTPUT_DIR is"
        if folder is None or next(_walk(self._kept), None) is not None:
            return "what is written to TRAINIUM_CHECKPOINT_DIR or TRAINIUM_OUTPUT_DIR is"
        return f"--checkpoint-dir {folder} keeps {'it' if len(found) == 1 else f'{folder}/'}"

    def _files(self) -> Iterator[tuple[tuple[str, bool], str, int]]:
        """Yield each file's name to tell and whether that is a folder, its path and its size."""
        skipped = {self._kept}
        for path, size in self._sizes(self._code, skipped):
            top, slash, _ = os.path.relpath(path, self._code).partition("/")
            yield (top, bool(slash)), path, size
        skipped = {self._kept, self._code, *self._without}
        for place in self._outside:
            if place.is_whole and (own_size := _file_size(place.path)) is not None:
                yield (str(place.path), False), str(place.path), own_size
                continue
            told = {x.path for x in self._outside if x.path != place.path} | skipped
            for path, size in self._sizes(place.path, told):
                top, slash, _ = os.path.relpath(path, place.path).partition("/")
                if place.is_whole:
                    yield (str(place.path), True), path, size
                elif not top.startswith(_TEMPORARY):
                    yield (f"{place.path}/{top}", bool(slash)), path, size

    def _sizes(self, folder: Path, without: set[Path]) -> Iterator[tuple[str, int]]:
        """Yield files and their sizes; none where the first look ended before the last file.

        Later looks would take those that it did not see for new ones.
        """
        if folder in self._crowded:
            return
        entries = list(islice(_walk(folder, without), _MOST_FILES))
        if self._is_first_look and len(entries) == _MOST_FILES:
            self._crowded.add(folder)
            return
        for entry in entries:
            try:
                yield entry.path, entry.stat(follow_symlinks=False).st_size
            except OSError:
                continue  # deleted meanwhile


def _file_size(path: Path) -> int | None:
    """Return the size of a regular file; None for anything else.

    What looks like a path in an argument may be too long for one, or not ours to look at.
    """
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _walk(folder: Path, without: Collection[Path] = ()) -> Iterator[os.DirEntry[str]]:
    """Yield the files below a folder, without caches and links."""
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name not in _CACHES and Path(entry.path) not in without:
                            waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        yield entry
        except OSError:
            continue  # deleted meanwhile


def _size(number: int) -> str:
    return next((f"{number / unit:.0f} {name}" for unit, name in _UNITS if number >= unit),
                f"{number} bytes")  # fmt: skip


class RestoredReads:
    """The program's checkpoint files as they were restored on this node, from now on watched."""

    def __init__(self, folders: ProgramFolders, scratch: Path) -> None:
        """Watch the largest files; ``OSError`` if the kernel cannot."""
        files = [
            (state.size, path)
            for (root, path), state in read_record(scratch).seen.items()
            if root is Root.CHECKPOINTS and state.kind is EntryKind.FILE and state.size
        ]
        self.num_files = len(files)
        self._unread: dict[int, str] = {}
        """Paths of files that were neither read nor changed, by watch."""
        self._queue = -1
        if not files:
            return
        libc = ctypes.CDLL(None, use_errno=True)
        self._queue = _checked(libc.inotify_init1(_FLAGS))
        for _, path in sorted(files, reverse=True)[:_MOST_WATCHED]:
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
