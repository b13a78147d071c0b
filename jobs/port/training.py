"""Detect training loops: loops with an optimizer step or backward pass, directly or in a callee."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from jobs.port.expressions import is_evaluation
from jobs.port.names import Function, SourceFile, last_name

Loop = ast.For | ast.AsyncFor | ast.While
_OPTIMIZER = re.compile(r"opt|scaler|engine|solver|adam|sgd", re.IGNORECASE)
_SCHEDULER = re.compile(r"sched|lr_|_lr|warmup|ema|scheduler", re.IGNORECASE)
_LOADERS = re.compile(r"loader|_dl\b")
STEP_METHODS = frozenset({"training_step", "compute_loss", "train_step", "forward"})
"""Methods that frameworks call for each batch."""


class TrainingSteps:
    """The loops and functions of a program that perform training steps."""

    def __init__(self, sources: Sequence[SourceFile]) -> None:
        self._step_functions: set[str] = set()
        self.loops: set[ast.AST] = set()
        self.is_training = False
        found = [node for source in sources for node in source.nodes if isinstance(node, Function)]
        by_name: dict[str, list[Function]] = {}
        for function in found:
            by_name.setdefault(function.name, []).append(function)
        # Steps may be called through other functions, so iterate to a fixed point.
        while True:
            before = len(self._step_functions)
            for name, functions in by_name.items():
                if name not in self._step_functions and any(
                    self._has_step_call(function.body) for function in functions
                ):
                    self._step_functions.add(name)
            if len(self._step_functions) == before:
                break
        for source in sources:
            for node in source.nodes:
                if isinstance(node, Loop) and (
                    self._has_step_call(node.body) or self._collects_data(node)
                ):
                    self.loops.add(node)
        self.is_training = bool(self.loops or self._step_functions)

    def is_step(self, function: Function) -> bool:
        """Return whether a function performs a training step outside its own loops."""
        return function.name in self._step_functions

    def _has_step_call(self, body: Sequence[ast.stmt]) -> bool:
        return any(self._is_step_call(node) for node in _own_nodes(body))

    def _collects_data(self, node: Loop) -> bool:
        """Return whether a loop collects data for inner training loops (reinforcement learning)."""
        inner = [
            item
            for part in node.body
            for item in ast.walk(part)
            if isinstance(item, Loop | ast.Call)
        ]
        if not any(isinstance(item, Loop) and self._has_step_call(item.body) for item in inner):
            return False
        iterable = "" if isinstance(node, ast.While) else ast.unparse(node.iter)
        iterable = "" if iterable.startswith("range(") else iterable
        return _LOADERS.search(iterable) is not None or any(
            isinstance(item, ast.Call) and _is_environment_step(item) for item in inner
        )

    def _is_step_call(self, node: ast.AST) -> bool:
        """Return whether a node is a call that indicates a training step."""
        if not isinstance(node, ast.Call):
            return False
        last = last_name(node.func)
        if last in ("backward", "optimizer_step", "manual_backward"):
            return True
        if "scaler" in last and node.args:
            return True  # timm's scalers are called with loss and optimizer
        if last in self._step_functions and last not in ("step", "forward", "__call__"):
            return not is_evaluation(last)
        if last != "step" or not isinstance(node.func, ast.Attribute):
            return False
        receiver = ast.unparse(node.func.value)
        return bool(_OPTIMIZER.search(receiver)) and not _SCHEDULER.search(receiver)


def _is_environment_step(node: ast.Call) -> bool:
    func = node.func
    return (
        isinstance(func, ast.Attribute)
        and func.attr == "step"
        and re.search(r"env", ast.unparse(func.value)) is not None
    )


def _own_nodes(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes of a block, without its inner loops and functions."""
    pending = list(body)
    while pending:
        node = pending.pop()
        if isinstance(node, Loop | Function | ast.Lambda | ast.ClassDef):
            continue
        yield node
        pending += ast.iter_child_nodes(node)
