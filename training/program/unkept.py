"""Finds what a program writes beside the folder that is kept, and would lose without a word."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_CACHES = frozenset({"__pycache__", ".cache", ".pytest_cache", ".ipynb_checkpoints"})
_MOST_FILES = 100_000
"""Files after which a look ends: whoever looks has other nodes to watch."""
_SHOWN = 3
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


class Unkept:
    """The working copy of a program, as it was before the program ran."""

    def __init__(self, code: Path, kept: Path, *, chosen: str) -> None:
        """Look at ``code``; ``kept`` is the kept folder, ``chosen`` its name below ``code``."""
        self._code, self._kept, self._chosen = code, kept, chosen
        self._before = {path for path, _ in self._files()}

    def words(self) -> str | None:
        """Tell what the program has written to nowhere that is kept; None if nothing."""
        sizes: dict[tuple[str, bool], list[int]] = defaultdict(list)
        for path, size in self._files():
            if path not in self._before:
                top, slash, _ = path.partition("/")
                sizes[top, bool(slash)].append(size)
        if not sizes:
            return None
        found = [_Found(*which, len(each), sum(each)) for which, each in sizes.items()]
        found.sort(key=lambda one: (-one.bytes, one.name))
        shown = ", ".join(one.shown for one in found[:_SHOWN])
        if len(found) > _SHOWN:
            shown += f" and {len(found) - _SHOWN} more"
        which = "which is not kept" if len(found) == 1 else "which are not kept"
        return f"wrote {shown}, {which}; {self._remedy(found)}"

    def _remedy(self, found: list[_Found]) -> str:
        folder = next((one.name for one in found if one.is_folder), None)
        if self._chosen:
            return f"what is written below {self._chosen} or to TRAINIUM_OUTPUT_DIR is"
        if folder is None or next(_walk(self._kept, None), None) is not None:
            return "what is written to TRAINIUM_CHECKPOINT_DIR or TRAINIUM_OUTPUT_DIR is"
        return f"--checkpoint-dir {folder} keeps {'it' if len(found) == 1 else f'{folder}/'}"

    def _files(self) -> Iterator[tuple[str, int]]:
        for number, entry in enumerate(_walk(self._code, self._kept)):
            if number == _MOST_FILES:
                return
            try:
                size = entry.stat(follow_symlinks=False).st_size
            except OSError:
                continue  # deleted meanwhile
            yield os.path.relpath(entry.path, self._code), size


def _walk(folder: Path, without: Path | None) -> Iterator[os.DirEntry[str]]:
    """Yield the files below a folder, without caches and links."""
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name not in _CACHES and Path(entry.path) != without:
                            waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        yield entry
        except OSError:
            continue  # deleted meanwhile


def _size(number: int) -> str:
    return next((f"{number / unit:.0f} {name}" for unit, name in _UNITS if number >= unit),
                f"{number} bytes")  # fmt: skip
