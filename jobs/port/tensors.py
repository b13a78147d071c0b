"""Findings that depend on which values are device tensors: host syncs and dynamic shapes.

A small abstract interpreter: it executes functions statement by statement with a guess of what each
variable holds, and reports findings within training steps.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from jobs.port.calls import CallWalk
from jobs.port.index import MAX_DEPTH, Index, parameters
from jobs.port.names import Function, SourceFile, is_constant, last_name
from jobs.port.training import STEP_METHODS, TrainingSteps
from jobs.port.values import Content, Env, Value, join

_HOST_TYPES = frozenset({"int", "float", "bool", "str", "Path", "Namespace"})


class Tensors:
    """Interprets a program, and collects findings about tensors in its training steps."""

    def __init__(self, sources: Sequence[SourceFile], training: TrainingSteps) -> None:
        self.found: set[tuple[SourceFile, int, str, ast.AST]] = set()
        self.index = Index(sources)
        self.num_values = 0
        self.training = training
        self._sources = sources
        self.creates_on_device = any(
            isinstance(node, ast.Call)
            and last_name(node.func) in ("set_default_device", "set_default_tensor_type")
            and "cuda" in ast.unparse(node)
            for source in sources
            for node in source.nodes
        )
        self.globals: dict[SourceFile, Env] = {source: {} for source in sources}
        self._memo: dict[object, Value] = {}
        self._visited: set[ast.AST] = set()

    def run(self) -> None:
        """Interpret all files: top-level code first, then functions not reached from it."""
        for source in reversed(self._sources):
            CallWalk(
                self, source, self.globals[source], is_step=False, class_name="", depth=0
            ).block(source.tree.body)
        for name, (source, definition) in self.index.classes.items():
            for item in definition.body:
                if isinstance(item, Function) and item.name == "__init__":
                    self.call(source, item, {}, is_step=False, class_name=name, depth=0)
        for name, (source, definition) in self.index.classes.items():
            for item in definition.body:
                if isinstance(item, Function):
                    self._enter(source, item, name)
        for source in self._sources:
            for node in source.nodes:
                if isinstance(node, Function) and node not in self._visited:
                    self._enter(source, node, "")

    def _enter(self, source: SourceFile, function: Function, class_name: str) -> None:
        """Interpret a step method as if a framework called it; others only if not visited yet."""
        is_step_method = bool(class_name) and function.name in STEP_METHODS
        if is_step_method and (
            function.name != "forward" or self._is_used_in_training(function, class_name)
        ):
            held = Content.INPUT if function.name == "forward" else Content.UNKNOWN
            is_lightning = function.name == "training_step"
            arguments = {
                name: Content.DEVICE
                if is_lightning and name == "batch"
                else _default(held, default)
                for name, default in parameters(function)
            }
            is_step = self.training.is_training or function.name != "forward"
            self.call(source, function, arguments, is_step=is_step, class_name=class_name, depth=0)
        elif function not in self._visited:
            is_step = self.training.is_step(function) and function.name != "main"
            self.call(source, function, {}, is_step=is_step, class_name=class_name, depth=0)

    def _is_used_in_training(self, forward: Function, class_name: str) -> bool:
        """Return whether a model's ``forward`` is apparently used in training."""
        decorators = (
            item.func if isinstance(item, ast.Call) else item for item in forward.decorator_list
        )
        has_gradients = not {"no_grad", "inference_mode"} & {*map(last_name, decorators)}
        is_postprocessing = "postprocess" in class_name.lower().replace("_", "")
        return self.index.is_module(class_name) and not is_postprocessing and has_gradients

    def call(
        self,
        source: SourceFile,
        function: Function,
        arguments: Mapping[str, Value],
        *,
        is_step: bool,
        class_name: str,
        depth: int,
        around: Env | None = None,
    ) -> Value:
        """Interpret a function with these arguments; return its return value.

        Args:
            is_step: True if it is part of a training step.
            class_name: Class of a method; empty for other functions.
            depth: Number of nested calls.
            around: Variables of the enclosing function; None for the module's.
        """
        self._visited.add(function)
        key = (function, tuple(sorted(arguments.items(), key=lambda i: i[0])), is_step, class_name)
        if key in self._memo or depth > MAX_DEPTH:
            return self._memo.get(key, Content.UNKNOWN)
        self._memo[key] = Content.UNKNOWN  # for recursive calls
        env = dict(self.globals[source] if around is None else around)
        for name in [name for name in env if "." in name or "[" in name]:
            del env[name]
        for name, _ in parameters(function):
            env.pop(name, None)
        env.update(arguments)
        every = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        env.update(
            {item.arg: Content.HOST for item in every if last_name(item.annotation) in _HOST_TYPES}
        )
        walk = CallWalk(self, source, env, is_step=is_step, class_name=class_name, depth=depth + 1)
        walk.block(function.body)
        self._memo[key] = join(*walk.returned) if walk.returned else Content.HOST
        return self._memo[key]


def _default(held: Content, default: ast.expr | None) -> Content:
    """Return the assumed contents of a parameter whose argument is unknown."""
    if default is None:
        return held
    return Content.UNKNOWN if is_constant(default, None) else Content.HOST
