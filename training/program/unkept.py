"""Finds files that a program writes outside the folder that is kept, and would lose."""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from training.core.files import write_whole

_CACHES = frozenset({"__pycache__", ".cache", ".pytest_cache", ".ipynb_checkpoints"})
_MOST_FILES = 100_000
"""Files of a folder after which a look ends: the launcher has other nodes to watch."""
_TEMPORARY = (".", "tmp", "trainium-", "torch", "pymp-", "neuron", "nrt", "pip-")
"""How names begin that libraries give to temporary files and caches, at the top of /tmp and of the
home folder."""
_PERSONAL = ("/tmp", "/var/tmp")
_SYSTEM = ("/dev", "/proc", "/sys", "/etc", "/usr", "/bin", "/lib", "/opt/aws")
_SHOWN = 3
UNKEPT_FILE = "unkept"
_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


class _Found(NamedTuple):
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


class Unkept:
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

    def words(self) -> str | None:
        """Tell what the program has written that is not kept; None if nothing."""
        found = self._found()
        return self._describe(found) if found else None

    def _is_ours(self, path: Path) -> bool:
        """Tell if a place is looked at or kept already, or holds one that is."""
        return self._code.is_relative_to(path) or any(
            path.is_relative_to(other) for other in (self._code, self._kept, *self._without)
        )

    def _found(self) -> list[_Found]:
        sizes: dict[tuple[str, bool], list[int]] = defaultdict(list)
        for which, path, size in self._files():
            if path not in self._before:
                sizes[which].append(size)
        return [_Found(*which, len(each), sum(each)) for which, each in sizes.items()]

    def _describe(self, found: list[_Found]) -> str:
        found.sort(key=lambda one: (-one.bytes, one.name))
        shown = ", ".join(one.shown for one in found[:_SHOWN])
        if len(found) > _SHOWN:
            shown += f" and {len(found) - _SHOWN} more"
        which = "which is not kept" if len(found) == 1 else "which are not kept"
        return f"wrote {shown}, {which}; {self._remedy(found)}"

    def _remedy(self, found: list[_Found]) -> str:
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
