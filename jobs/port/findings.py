"""Analyze a program: its file, and the modules it imports from its own folder."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from jobs.errors import Refusal
from jobs.port.expressions import expression_findings
from jobs.port.names import SourceFile
from jobs.port.rules import RULES, Hazard
from jobs.port.tensors import Tensors
from jobs.port.training import TrainingSteps
from jobs.program.entry import Entry
from jobs.program.grammar import imported_trees, parse_source, too_nested

MAX_BYTES = 2_000_000
"""Size limit of a source file; handwritten code is far smaller."""

_MAX_SHOWN = 50
"""Maximum length of a quoted expression."""


class SourceFolder(Mapping[str, bytes]):
    """Lazily read files of a folder, by relative path."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str) and not path.startswith(("..", "/")) and self._is_file(path)

    def __getitem__(self, path: str) -> bytes:
        file = self._folder / path
        try:
            if file.stat().st_size > MAX_BYTES:
                raise _too_large(str(file))
            return file.read_bytes()
        except OSError as error:
            reason = error.strerror or error
            raise Refusal("file", f"{file} cannot be read: {reason}; fix its permissions") from None

    def __iter__(self) -> Iterator[str]:
        raise NotImplementedError  # whole folders are never read

    def __len__(self) -> int:
        raise NotImplementedError

    def _is_file(self, path: str) -> bool:
        try:
            return (self._folder / path).is_file()
        except OSError:
            return False


def find(entry: Entry, contents: Mapping[str, bytes]) -> tuple[Hazard, ...]:
    """Find code to change in a program; ``contents`` are its files by path."""
    trees = imported_trees(entry.file, contents, entry.root, _parse)
    return findings([SourceFile(path, tree) for path, tree in trees])


def findings(sources: Sequence[SourceFile]) -> tuple[Hazard, ...]:
    """Apply all rules to the files of a program; report one finding per line and kind."""
    found: dict[tuple[str, int, str], Hazard] = {}

    def add(source: SourceFile, node: ast.AST, line: int, rule: str) -> None:
        key = (source.path, line, RULES[rule].kind)
        item = Hazard(file=source.path, line=line, rule=rule, text=_excerpt(node))
        if key not in found or item < found[key]:
            found[key] = item

    try:
        for source in sources:
            for node, line, rule in expression_findings(source):
                add(source, node, line, rule)
        tensors = Tensors(sources, TrainingSteps(sources))
        tensors.run()
        for source, line, rule, node in tensors.found:
            add(source, node, line, rule)
    except RecursionError:
        raise too_nested(", ".join(source.path for source in sources)) from None
    return tuple(sorted(found.values()))


def source_of(path: str, data: bytes) -> SourceFile:
    """Parse one file."""
    return SourceFile(path, _parse(path, data))


def _parse(path: str, data: bytes) -> ast.Module:
    if len(data) > MAX_BYTES:
        raise _too_large(path)
    try:
        return parse_source(path, data)
    except SyntaxError as error:
        at = f", line {error.lineno}" if error.lineno else ""
        raise Refusal("syntax-error", f"{path}{at}: {error.msg}; fix it and try again") from None


def _too_large(path: str) -> Refusal:
    return Refusal(
        "file-too-large",
        f"{path} is larger than {MAX_BYTES // 1_000_000} MB, the limit for source files; keep "
        "data in separate files",
    )


def _excerpt(node: ast.AST) -> str:
    """Return an expression on one line, shortened."""
    if isinstance(node, ast.keyword):
        text = f"{node.arg}={ast.unparse(node.value)}"
    elif isinstance(node, ast.arg):
        text = node.arg
    else:
        text = ast.unparse(node)
    text = " ".join(text.split())
    if len(text) <= _MAX_SHOWN:
        return text
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return f"...{text[3 - _MAX_SHOWN :]}"  # the method is what matters
    return f"{text[: _MAX_SHOWN - 3]}..."
