"""Warnings about imported modules that exist only on this machine.

Imports are found by parsing. Only top-level imports in the program's own files count, because
imports in a ``try`` or for type checkers are optional.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from jobs.program.entry import SOURCES, Entry
from jobs.program.grammar import imported_trees, parse_source

_IN_IMAGE = frozenset({"training", "trainium_catalogue"})
_CLONE = Path(__file__).resolve().parents[2]
"""This repository, whose modules users' programs do not import."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """An import, by its top-level name."""

    file: str
    line: int
    name: str


def missing_imports(entry: Entry, contents: Mapping[str, bytes], required: str) -> Iterator[str]:
    """Warn about imports that work only on this machine, given the text of the requirements."""
    root = entry.root
    names = {_normalize(match[0]) for line in required.splitlines() if (match := _NAME.match(line))}
    sets_path = any(b"sys.path" in data for data in contents.values())
    seen: set[str] = set()
    for item in _imports(entry.file, contents, root):
        if item.name in seen or item.name in sys.stdlib_module_names or item.name in _IN_IMAGE:
            continue
        seen.add(item.name)
        if _normalize(item.name) in names or _is_in(contents, root, item.name):
            continue
        where = f"{item.file}, line {item.line}: {item.name}"
        if root and _is_in(contents, "", item.name):
            module = entry.file.removesuffix(".py").replace("/", ".")
            yield (
                f"{where} is in the bundle, but Python looks for modules next to the script, in "
                f"{root}/; submit -m {module} --workdir {entry.folder} to search the whole bundle"
            )
        elif (place := _src_folder(contents, item.name)) is not None and not sets_path:
            yield (
                f"{where} is in {place}/ of the bundle, but Python looks for modules next to the "
                f"script; begin {entry.file} with `import sys; sys.path.insert(0, {place!r})`"
            )
        elif (source := _local_folder(entry.folder, item.name)) is not None:
            yield (
                f"{where} is in {source}, which is not packed; specify a folder that contains both "
                "with --workdir, or list its package in --requirements"
            )


def _imports(file: str, contents: Mapping[str, bytes], root: str) -> Iterator[Import]:
    """Yield the imports of a file and of the bundled files that it imports."""

    def parse(path: str, data: bytes) -> ast.Module | None:
        try:
            return parse_source(path, data)
        except (SyntaxError, ValueError):
            return None  # newer grammar, or already refused

    for path, tree in imported_trees(file, contents, root, parse):
        for statement in tree.body:
            names: list[str] = []
            if isinstance(statement, ast.Import):
                names = [alias.name for alias in statement.names]
            elif isinstance(statement, ast.ImportFrom) and not statement.level:
                names = [statement.module or ""]
            for name in names:
                yield Import(file=path, line=statement.lineno, name=name.partition(".")[0])


def _is_in(contents: Mapping[str, bytes], root: str, name: str) -> bool:
    base = f"{root}/{name}" if root else name
    return f"{base}.py" in contents or any(path.startswith(f"{base}/") for path in contents)


def _src_folder(contents: Mapping[str, bytes], name: str) -> str | None:
    """Find the src-layout folder that contains a module."""
    ends = (f"{SOURCES}/{name}.py", f"{SOURCES}/{name}/__init__.py")
    places = (
        f"{path.removesuffix(end)}{SOURCES}"
        for path in contents
        for end in ends
        if path == end or path.endswith(f"/{end}")
    )
    return min(places, default=None)


def _local_folder(folder: Path, name: str) -> Path | None:
    """Find the local folder outside the program that contains a module, if not installed."""
    real = folder.resolve()
    for place in (real.parent, real.parent.parent, Path.cwd()):
        here = place.resolve()
        if _CLONE in (here, *here.parents) or real in (here, *here.parents):
            continue
        # Without __init__.py, it may be a Git clone, or the output of a package such as wandb.
        if (here / f"{name}.py").is_file() or (here / name / "__init__.py").is_file():
            return here
    try:
        # On PYTHONPATH, or an editable install.
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    source = Path(spec.origin).resolve()
    is_installed = bool({"site-packages", "dist-packages"} & {*source.parts})
    elsewhere = (_CLONE, Path(sys.base_prefix).resolve(), real)
    if is_installed or any(source.is_relative_to(base) for base in elsewhere):
        return None
    return source.parent


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
