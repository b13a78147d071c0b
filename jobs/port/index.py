"""Index of a program's functions and classes, by their names in its files."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from jobs.port.names import Function, SourceFile, last_name
from jobs.port.values import Env

MAX_DEPTH = 8
"""Maximum depth of base classes and nested calls."""


class Index:
    """Index of a program's functions, classes and methods."""

    def __init__(self, sources: Sequence[SourceFile]) -> None:
        paths = [source.path.removesuffix("/__init__.py").removesuffix(".py") for source in sources]
        self.stems = {path.rpartition("/")[2] for path in paths}
        """Last parts of the module names."""
        self.functions: dict[str, tuple[SourceFile, Function]] = {}
        self.classes: dict[str, tuple[SourceFile, ast.ClassDef]] = {}
        self.methods: dict[str, list[str]] = {}
        self._attributes: dict[str, Env] = {}
        for source in sources:
            for name, function in source.functions.items():
                self.functions.setdefault(name, (source, function))
            for name, definition in source.classes.items():
                self.classes.setdefault(name, (source, definition))
        for name, (_, definition) in self.classes.items():
            for item in definition.body:
                if isinstance(item, Function):
                    self.methods.setdefault(item.name, []).append(name)

    def is_module(self, name: str, depth: int = 0) -> bool:
        """Return whether a class is a model or part of one."""
        if name not in self.classes or depth > MAX_DEPTH:
            return False
        source, definition = self.classes[name]
        return any(
            last_name(base).endswith(("Module", "PreTrainedModel", "Model"))
            or self.is_module(last_name(base), depth + 1)
            for base in definition.bases
        ) and not any("LightningDataModule" in source.name(base) for base in definition.bases)

    def function(self, source: SourceFile, node: ast.expr) -> tuple[SourceFile, Function] | None:
        """Return the program's function that an expression refers to."""
        if isinstance(node, ast.Name) and node.id in source.functions:
            return source, source.functions[node.id]
        name = self._imported(source, node)
        return None if name is None else self.functions.get(name)

    def class_named(self, source: SourceFile, node: ast.expr) -> str | None:
        """Return the program's class that an expression refers to."""
        if isinstance(node, ast.Name) and node.id in source.classes:
            return node.id
        name = self._imported(source, node)
        return name if name in self.classes else None

    def _imported(self, source: SourceFile, node: ast.expr) -> str | None:
        """Return the last part of a name imported from a module of the program."""
        first = node
        while isinstance(first, ast.Attribute):
            first = first.value
        if not isinstance(first, ast.Name) or first.id not in source.aliases:
            return None
        module, _, last = source.name(node).rpartition(".")
        return last if module.rpartition(".")[2] in self.stems else None

    def method(
        self, class_name: str, name: str, depth: int = 0
    ) -> tuple[SourceFile, Function, str] | None:
        """Find a method of a class of the program, or of its base classes."""
        if class_name not in self.classes or depth > MAX_DEPTH:
            return None
        source, definition = self.classes[class_name]
        for item in definition.body:
            if isinstance(item, Function) and item.name == name:
                return source, item, class_name
        for base in definition.bases:
            if (found := self.method(last_name(base), name, depth + 1)) is not None:
                return found
        return None

    def only_method(self, name: str) -> tuple[SourceFile, Function, str] | None:
        """Find a method whose name is unique among the program's classes."""
        owners = self.methods.get(name, [])
        return self.method(owners[0], name) if len(owners) == 1 else None

    def attributes(self, class_name: str) -> Env:
        """Return the known attributes of a class's instances."""
        return self._attributes.setdefault(class_name, {})


def parameters(function: Function, *, is_method: bool = True) -> list[tuple[str, ast.expr | None]]:
    """Return the names of a function's parameters with their defaults, without ``self``."""
    positional = function.args.posonlyargs + function.args.args
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(function.args.defaults))
    defaults += function.args.defaults
    pairs = [(item.arg, default) for item, default in zip(positional, defaults, strict=True)]
    if is_method and pairs and pairs[0][0] in ("self", "cls", "ctx"):
        pairs = pairs[1:]
    keyword_only = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return pairs + [(item.arg, default) for item, default in keyword_only]
