"""A module's syntax tree with full names, parent nodes, and detection of messages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TEXT_CALLS = frozenset(
    {"print", "debug", "info", "warning", "warn", "error", "critical", "exception", "log", "write"}
)
_TEXT_KEYWORDS = frozenset({"help", "description", "epilog", "metavar", "choices", "desc", "title"})
_EXCEPTION = re.compile(r"(Error|Exception|Warning|Exit)$")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(eq=False)
class SourceFile:
    """The syntax tree of a file, with its import aliases."""

    path: str
    tree: ast.Module
    aliases: dict[str, str] = field(default_factory=dict)
    """Full names of imported names, by local name."""
    nodes: list[ast.AST] = field(default_factory=list)
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    """Top-level functions."""
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    annotations: set[ast.AST] = field(default_factory=set)
    """Nodes of type annotations, which have no effect at run time."""

    def __post_init__(self) -> None:
        self.nodes = list(ast.walk(self.tree))
        for node in self.nodes:
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
            if isinstance(node, ast.Import):
                for item in node.names:
                    top = item.name.partition(".")[0]
                    self.aliases[item.asname or top] = item.name if item.asname else top
            elif isinstance(node, ast.ImportFrom):
                for item in node.names:
                    self.aliases[item.asname or item.name] = f"{node.module or ''}.{item.name}"
            elif isinstance(node, ast.ClassDef):
                self.classes.setdefault(node.name, node)
            for attribute in ("annotation", "returns"):
                if (annotation := getattr(node, attribute, None)) is not None:
                    self.annotations.update(ast.walk(annotation))
        for node in self.tree.body:
            if isinstance(node, Function):
                self.functions[node.name] = node

    def name(self, node: ast.AST) -> str:
        """Return the full dotted name of an expression; empty if it is not a name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        parts.append(self.aliases.get(node.id, node.id))
        return ".".join(reversed(parts))

    def called(self, node: ast.AST | None) -> str:
        """Return the full name of a called function; empty for anything else."""
        return self.name(node.func) if isinstance(node, ast.Call) else ""

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the ancestors of a node, innermost first."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def is_text(self, node: ast.AST) -> bool:
        """Return whether a string is only for display: help, a message, a docstring."""
        for parent in self.above(node):
            if isinstance(parent, ast.keyword):
                if parent.arg in _TEXT_KEYWORDS:
                    return True
            elif isinstance(parent, ast.Call):
                last = last_name(parent.func)
                return last in _TEXT_CALLS or _EXCEPTION.search(last) is not None
            elif isinstance(parent, ast.Expr | ast.Assert | ast.Raise):
                return not isinstance(parent, ast.Assert) or parent.msg is node
            elif isinstance(parent, ast.stmt | ast.FormattedValue | ast.Compare | ast.Subscript):
                return False
            node = parent
        return False


def last_name(node: ast.AST | None) -> str:
    """Return the last part of a name: ``step`` of ``self.optimizer.step``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def keyword(call: ast.Call, *names: str) -> ast.keyword | None:
    """Return the first keyword argument with one of these names."""
    return next((item for item in call.keywords if item.arg in names), None)


def is_constant(node: ast.AST | None, *values: object) -> bool:
    """Return whether an expression is one of these constants."""
    return isinstance(node, ast.Constant) and any(
        node.value is value or (node.value == value and type(node.value) is type(value))
        for value in values
    )


def end_line(node: ast.AST) -> int:
    """Return the line number of the end of an expression, such as of a chain's last name."""
    line: int = getattr(node, "end_lineno", 0)
    return line
