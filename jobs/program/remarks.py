"""Warnings about local paths in a program's arguments, which nodes do not have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trainium_catalogue import contract

_NODE_FOLDERS = ("dev", "proc", "sys", "usr", "etc", "bin", "lib", contract.LUSTRE_MOUNT.strip("/"))
"""Folders that also exist on nodes, so paths in them are not local."""


def local_paths(argv: Sequence[str], variables: Mapping[str, str], folder: Path) -> Iterator[str]:
    """Warn about absolute local paths; ``folder`` is the program's."""
    seen: set[str] = set()
    for shown, words in (*map(_argument_paths, argv), *map(_variable_paths, variables.items())):
        for word in words:
            path = None if word in seen else _local_path(word)
            if path is not None:
                seen.add(word)
                yield f"{shown}: {_advice(path, folder.resolve())}"


def _argument_paths(word: str) -> tuple[str, list[str]]:
    """Return an argument for display, and its possible paths, including after an equals sign."""
    return f"argument {word}", [word, word.partition("=")[2]]


def _variable_paths(item: tuple[str, str]) -> tuple[str, list[str]]:
    return f"--env {item[0]}={item[1]}", item[1].split(":")


def _local_path(word: str) -> Path | None:
    """Return the path in a word if it exists on this machine but not on nodes."""
    if not word.startswith(("/", "~/")) or len(word) > 4096:
        return None
    path = Path(word).expanduser()
    if len(path.parts) < 2 or path.parts[1] in _NODE_FOLDERS or path == Path("/tmp"):
        return None
    try:
        return path if path.exists() else None
    except OSError:
        return None


def _advice(path: Path, folder: Path) -> str:
    real = path.resolve()
    if real != folder and real.is_relative_to(folder):
        inside = real.relative_to(folder).as_posix()
        return f"a local path, but the program's folder is elsewhere on nodes; use {inside}"
    return (
        "a local path, which the nodes do not have; put data into the bucket (--input, --dataset) "
        "or files into the program's folder, and pass their path on the nodes"
    )
