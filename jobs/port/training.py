"""Which loops train: those with an optimizer's step or a backward pass in them, or a function's."""

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
    """The loops and functions of a program that make training steps."""

    def __init__(self, sources: Sequence[SourceFile]) -> None:
        self._step_functions: set[str] = set()
        self.loops: set[ast.AST] = set()
        self.is_training = False
        found = [node for source in sources for node in source.nodes if isinstance(node, Function)]
        by_name: dict[str, list[Function]] = {}
        for function in found:
            by_name.setdefault(function.name, []).append(function)
        # A step of its own may be called through others, so look until nothing is added.
        while True:
            before = len(self._step_functions)
            for name, functions in by_name.items():
                if name not in self._step_functions and any(
                    self._has_act(function.body) for function in functions
                ):
                    self._step_functions.add(name)
            if len(self._step_functions) == before:
                break
        for source in sources:
            for node in source.nodes:
                if isinstance(node, Loop) and (self._has_act(node.body) or self._collects(node)):
                    self.loops.add(node)
        self.is_training = bool(self.loops or self._step_functions)

    def is_step(self, function: Function) -> bool:
        """Tell whether a function makes one training step, outside any loop of its own."""
        return function.name in self._step_functions

    def _has_act(self, body: Sequence[ast.stmt]) -> bool:
        return any(self._is_act(node) for node in _directly(body))

    def _collects(self, node: Loop) -> bool:
        """Recognise reinforcement learning: rounds that collect what loops within train on."""
        inside = [
            item
            for part in node.body
            for item in ast.walk(part)
            if isinstance(item, Loop | ast.Call)
        ]
        if not any(isinstance(item, Loop) and self._has_act(item.body) for item in inside):
            return False
        over = "" if isinstance(node, ast.While) else ast.unparse(node.iter)
        over = "" if over.startswith("range(") else over
        return _LOADERS.search(over) is not None or any(
            isinstance(item, ast.Call) and _is_environment_step(item) for item in inside
        )

    def _is_act(self, node: ast.AST) -> bool:
        """Tell whether a call is a part of a training step."""
        if not isinstance(node, ast.Call):
            return False
        last = last_name(node.func)
        if last in ("backward", "optimizer_step", "manual_backward"):
            return True
        if "scaler" in last and node.args:
            return True  # timm's scalers are called with the loss and the optimizer
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


def _directly(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield what a block does itself: not what its loops and functions do."""
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, Loop | Function | ast.Lambda | ast.ClassDef):
            continue
        yield node
        waiting += ast.iter_child_nodes(node)
