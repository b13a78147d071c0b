"""Patterns of `--include` and `--exclude`, and of files that are always excluded."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase


def matches(path: str, pattern: str) -> bool:
    """Return whether a pattern matches a file or one of its parent folders.

    As in a .gitignore: a pattern without a slash may match any part of the path, and one with a
    slash is relative to the program's folder.
    """
    plain = pattern.removeprefix("./").strip("/")
    parts = path.split("/")
    if "/" not in plain:
        return any(fnmatchcase(part, plain) for part in parts)
    prefixes = ("/".join(parts[: end + 1]) for end in range(len(parts)))
    return any(fnmatchcase(prefix, plain) for prefix in prefixes)


def match_any(path: str, patterns: Iterable[str]) -> str | None:
    """Return the first pattern that matches the file; None if none does."""
    return next((pattern for pattern in patterns if matches(path, pattern)), None)
