"""Check a program for syntax errors before anything is sent.

The nodes' Python version applies, which may differ from the local one. A newer local Python parses
with the nodes' grammar, as far as ``ast.parse`` supports it. An older one may reject valid code, so
an error that may be due to newer syntax is only a warning.
"""

from __future__ import annotations

import ast
import posixpath
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping

from jobs.errors import Refusal
from trainium_catalogue.releases import NEURON_RELEASES

Version = tuple[int, int]
_NEWEST: Version = (3, 99)
_IN_IMAGE = re.compile(r"-py(\d)(\d+)-")
"""The Python version in an image name."""
_NEWER_GRAMMAR: tuple[tuple[Version, re.Pattern[str]], ...] = (
    # PEP 701 (f-strings), PEP 695 (type parameters and aliases)
    (
        (3, 12),
        re.compile(r"\b[rR]?[fF][rR]?['\"]|^\s*type\s+\w|^\s*(?:async\s+)?(?:def|class)\s+\w+\["),
    ),
    # PEP 758 (except without parentheses), PEP 750 (template strings)
    ((3, 14), re.compile(r"^\s*except\*?\s+\w[\w.]*\s*,|\b[rR]?[tT][rR]?['\"]")),
)


def python_of(release: str) -> Version | None:
    """Return the Python version of a release's published image; None if unknown."""
    known = NEURON_RELEASES.get(release)
    match = _IN_IMAGE.search((known and known.base_image) or "")
    return None if match is None else (int(match[1]), int(match[2]))


def check_grammar(
    file: str,
    contents: Mapping[str, bytes],
    *,
    root: str,
    python: Version | None,
    note: Callable[[str], None],
) -> None:
    """Refuse a program with a syntax error in its file or in bundled modules that it imports.

    ``contents`` are the files of the bundle, ``root`` is the folder in it where Python first looks
    for modules, and ``python`` is the nodes' version, if known.
    """
    for path, tree in imported_trees(
        file, contents, root, lambda path, data: _parse(path, data, python, note)
    ):
        if path == file and not tree.body:
            raise Refusal(
                "empty-file", f"{path} has no statements, so it would do nothing; specify a program"
            )


def parse_source(path: str, data: bytes, grammar: Version | None = None) -> ast.Module:
    """Parse a user's source; refuse all but syntax errors, which are propagated."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as invalid escapes in strings
            return ast.parse(data, filename=path, feature_version=grammar)
    except (RecursionError, MemoryError):
        raise too_nested(path) from None
    except ValueError as error:
        raise Refusal(
            "not-python", f"{path} is not a Python file: {error}; specify a Python program"
        ) from None


def too_nested(path: str) -> Refusal:
    """Build the refusal for code nested too deeply for Python's parser or a walk over its tree."""
    return Refusal(
        "too-nested",
        f"{path}: code is nested too deeply; assign parts of a long expression to variables, and "
        "move parts of a long chain into functions",
    )


def _parse(
    path: str, data: bytes, python: Version | None, note: Callable[[str], None]
) -> ast.Module | None:
    here = sys.version_info[:2]
    grammar = min(here, python or here)
    try:
        return parse_source(path, data, grammar)
    except SyntaxError as error:
        line = (error.text or "").strip()
        if _may_be_newer(error, here, python or _NEWEST):
            note(
                f"{path}, line {error.lineno}: {error.msg} in Python {here[0]}.{here[1]} on this "
                "machine; the nodes' Python is newer or unknown, and may accept it"
            )
            return None
        at = f", line {error.lineno}" if error.lineno else ""
        shown = f" ({line[:60]})" if line else ""
        raise Refusal(
            "syntax-error",
            f"{path}{at}: {error.msg}{shown} in Python {grammar[0]}.{grammar[1]}; fix it and try "
            "again",
        ) from None


def _may_be_newer(error: SyntaxError, here: Version, nodes: Version) -> bool:
    """Return whether an error may be due to syntax that only the nodes' Python supports."""
    line = error.text or ""
    return any(here < since <= nodes and pattern.search(line) for since, pattern in _NEWER_GRAMMAR)


def imported_trees(
    file: str,
    contents: Mapping[str, bytes],
    root: str,
    parse: Callable[[str, bytes], ast.Module | None],
) -> Iterator[tuple[str, ast.Module]]:
    """Yield the syntax trees of a file and of the bundled files that it certainly imports.

    ``parse`` returns None for a file to skip.
    """
    waiting, seen = [file], set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        if (tree := parse(path, contents[path])) is not None:
            yield path, tree
            waiting += _imported_files(tree, path, root, contents)


def _imported_files(
    tree: ast.Module, path: str, root: str, contents: Mapping[str, bytes]
) -> Iterator[str]:
    """Yield the bundled files that are certainly imported, by top-level statements."""
    for statement in tree.body:
        names: list[str] = []
        below = root
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            names = [statement.module]
        elif isinstance(statement, ast.ImportFrom) and statement.level:
            # One dot is the file's package, and each further dot the parent package.
            below = posixpath.normpath(posixpath.join(path, *[".."] * statement.level))
            prefix = f"{statement.module}." if statement.module else ""
            names = [f"{prefix}{alias.name}" for alias in statement.names]
            names += [statement.module] if statement.module else []
        for name in names:
            base = posixpath.normpath(posixpath.join(below, name.replace(".", "/")))
            candidates = (f"{base}.py", f"{base}/__init__.py")
            yield from (path for path in candidates if path in contents)
