"""Neuron's compile cache: which files another node can use, and locks that nobody holds.

Neuron keeps a graph in a folder ``MODULE_<hash>+<flags>``, with ``model.done`` once it is compiled.
A lock that is given back keeps the next attempt waiting for a process that is no more, and a graph
that could not be compiled is never tried again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

_MODULE = "MODULE_"
_DONE = "model.done"
_COMPILED = "model.neff"
_LOCK = ".lock"


def usable(paths: Iterable[str]) -> set[str]:
    """Leave out locks, and everything of graphs that are not compiled."""
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
    """Remove locks of compilations that an earlier attempt began: nobody else will.

    Workers would wait for as long as one is there, and print that another process compiles.
    """
    for lock in cache.rglob(f"*{_LOCK}"):
        lock.unlink()


def _module_of(path: str) -> str:
    """The graph's folder that a path belongs to; empty for other files."""
    found = PurePosixPath(path)
    for folder in (found, *found.parents):
        if folder.name.startswith(_MODULE):
            return folder.as_posix()
    return ""


def _is_compiled(files: set[str]) -> bool:
    return _DONE in files or (
        _COMPILED in files and not any(name.endswith(_LOCK) for name in files)
    )
