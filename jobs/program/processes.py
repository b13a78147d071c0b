"""Processes that a program starts, or does not share its work among: remarks before it is sent.

The launcher has started one process per NeuronCore, so a program that starts its own waits for
peers that never come, and one that never asks for its rank does the same work in each.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping

_SPAWNERS = frozenset({"notebook_launcher", "debug_launcher"})
_COMMANDS = re.compile(
    r"\b(torchrun|accelerate\W+launch|deepspeed|torch\.distributed\.(run|launch))\b"
)
_PROCESS_CALLS = frozenset({"run", "call", "check_call", "check_output", "Popen", "system"})
_ASSIGNED = frozenset({"MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE"})
_SHARES = re.compile(
    rb"rank|world_?size|process_?group|process_index|accelerat|trainer|lightning|fabric|deepspeed"
    rb"|torch_xla|neuronx|torch\.distributed|composer|ignite",
    re.IGNORECASE,
)
"""Words of code that knows of other processes, or leaves that to a library."""


def started_processes(contents: Mapping[str, bytes], file: str) -> Iterator[str]:
    """Remark what does not go together with the launcher's own processes.

    ``contents`` are the program's Python files, ``file`` the one that runs.
    """
    for path in sorted(contents):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(contents[path])
        except (SyntaxError, ValueError):
            continue  # refused already, or not Python of this version
        for node in ast.walk(tree):
            if (what := _started(node)) is not None:
                yield (
                    f"{path}, line {node.lineno}: {what}; torchrun has already started "  # type: ignore[attr-defined]
                    "the processes of each node and set RANK, WORLD_SIZE, MASTER_ADDR and "
                    "MASTER_PORT, so call the training function directly, or give "
                    "--processes-per-node 1"
                )
    if not any(map(_SHARES.search, contents.values())):
        yield (
            f"{file}: nothing reads a rank or joins a process group, so one process per NeuronCore "
            "would do the same work and write the same files; --processes-per-node 1 runs one on "
            "each node"
        )


def _started(node: ast.AST) -> str | None:
    match node:
        case ast.Call(func=ast.Attribute(attr="spawn")) | ast.Call(func=ast.Name(id="spawn")):
            return "spawn() starts processes of its own"
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _SPAWNERS:
            return f"{name}() starts processes of its own"
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _PROCESS_CALLS:
            words = [
                x.value
                for argument in node.args
                for x in ast.walk(argument)
                if isinstance(x, ast.Constant) and isinstance(x.value, str)
            ]
            if found := _COMMANDS.search(" ".join(words)):
                return f"starts {found[0]} in the program"
        case ast.Assign(targets=targets):
            for target in targets:
                match target:
                    case ast.Subscript(
                        value=ast.Attribute(attr="environ") | ast.Name(id="environ"),
                        slice=ast.Constant(value=str(name)),
                    ) if name in _ASSIGNED:
                        return f"assigns {name}"
    return None
