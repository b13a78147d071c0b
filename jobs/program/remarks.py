"""Warnings about local paths in a program's arguments, which nodes do not have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trainium_catalogue import contract

_ON_NODES_TOO = ("dev", "proc", "sys", "usr", "etc", "bin", "lib", contract.LUSTRE_MOUNT.strip("/"))
"""Folders that nodes have too, so paths in them are not local."""


def local_paths(argv: Sequence[str], variables: Mapping[str, str], folder: Path) -> Iterator[str]:
    """Warn about absolute local paths; ``folder`` is the program's."""
    seen: set[str] = set()
    for shown, words in (*map(_of_argument, argv), *map(_of_variable, variables.items())):
        for word in words:
            path = None if word in seen else _existing(word)
            if path is not None:
                seen.add(word)
                yield f"{shown}: {_advice(path, folder.resolve())}"


def _of_argument(word: str) -> tuple[str, list[str]]:
    """Return an argument for display, and its possible paths, including after an equals sign."""
    return f"argument {word}", [word, word.partition("=")[2]]


def _of_variable(item: tuple[str, str]) -> tuple[str, list[str]]:
    return f"--env {item[0]}={item[1]}", item[1].split(":")


def _existing(word: str) -> Path | None:
    """Return the path in a word if it exists on this machine but not on nodes."""
    if not word.startswith(("/", "~/")) or len(word) > 4096:
        return None
    path = Path(word).expanduser()
    if len(path.parts) < 2 or path.parts[1] in _ON_NODES_TOO or path == Path("/tmp"):
        return None
    try:
        return path if path.exists() else None
    except OSError:
        return None


def _advice(path: Path, folder: Path) -> str:
    real = path.resolve()
    if real != folder and real.is_relative_to(folder):
        inside = real.relative_to(folder).as_posix()
        return f"a local path, and on nodes the program is elsewhere; use {inside}"
    return (
        "a local path, which the nodes do not have; put data into the bucket (--input, --dataset) "
        "or files into the program's folder, and pass their path on the nodes"
    )
