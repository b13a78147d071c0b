"""Neuron's compile cache: select usable files, and remove stale locks.

Neuron stores a graph in a folder ``MODULE_<hash>+<flags>``, with ``model.done`` once it is
compiled. A restored lock would make the next attempt wait for a process that no longer exists, and
a graph that failed to compile would never be retried.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

_MODULE = "MODULE_"
_DONE = "model.done"
_COMPILED = "model.neff"
_LOCK = ".lock"


def usable(paths: Iterable[str]) -> set[str]:
    """Return the paths, except locks and graphs that are not compiled."""
    modules = {path: _module_of(path) for path in paths}
    names: dict[str, set[str]] = {}
    for path, module in modules.items():
        if module:
            names.setdefault(module, set()).add(path.removeprefix(module).lstrip("/"))
    compiled = {module for module, files in names.items() if _is_compiled(files)}
    return {
        path
        for path, module in modules.items()
        if not path.endswith(_LOCK) and (not module or module in compiled)
    }


def unlock(cache: Path) -> None:
    """Remove stale locks of an earlier attempt's compilations.

    Otherwise workers would wait forever, printing that another process is compiling.
    """
    for lock in cache.rglob(f"*{_LOCK}"):
        lock.unlink()


def _module_of(path: str) -> str:
    """Return the folder of the graph that a path belongs to; empty for other files."""
    entry = PurePosixPath(path)
    for folder in (entry, *entry.parents):
        if folder.name.startswith(_MODULE):
            return folder.as_posix()
    return ""


def _is_compiled(files: set[str]) -> bool:
    return _DONE in files or (
        _COMPILED in files and not any(name.endswith(_LOCK) for name in files)
    )
