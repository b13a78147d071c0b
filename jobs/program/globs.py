"""Patterns of `--include` and `--exclude`, and of what a bundle leaves out by itself."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase


def matches(path: str, pattern: str) -> bool:
    """Tell whether a pattern names a file, or one of the folders that it is in.

    As in a .gitignore: a pattern without a slash may match any part of the path, one with a slash
    matches from the program's folder on.
    """
    plain = pattern.removeprefix("./").strip("/")
    parts = path.split("/")
    if "/" not in plain:
        return any(fnmatchcase(part, plain) for part in parts)
    wholes = ("/".join(parts[: end + 1]) for end in range(len(parts)))
    return any(fnmatchcase(whole, plain) for whole in wholes)


def match_any(path: str, patterns: Iterable[str]) -> str | None:
    """Return the first pattern that names the file; None if none does."""
    return next((pattern for pattern in patterns if matches(path, pattern)), None)
