"""Interpretation of one function, statement by statement, tracking the contents of variables."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jobs.port.expressions import is_evaluation
from jobs.port.names import Function, SourceFile, last_name
from jobs.port.training import Loop
from jobs.port.values import (
    LOSS,
    ON_DEVICE,
    Content,
    Env,
    ProgramObject,
    Record,
    Value,
    element,
    flattened,
    guess,
    join,
    on_device,
)

if TYPE_CHECKING:
    from jobs.port.tensors import Tensors

ITERATION_WRAPPERS = frozenset(
    {"tqdm", "iter", "list", "tuple", "reversed", "cycle", "islice", "trange", "track", "sorted",
     "set", "progress_bar", "log_every", "prefetcher"}
)  # fmt: skip
"""Functions that iterate over their first argument."""
MAX_VALUES = 1_000_000
"""Maximum number of evaluated expressions, to bound the time for unusual programs."""
_HOST_ATTRIBUTES = frozenset(
    {"shape", "device", "dtype", "ndim", "is_cuda", "requires_grad", "grad_fn", "name", "layout",
     "is_leaf", "itemsize", "nbytes", "config"}
)  # fmt: skip


class Walk:
    """Interprets the statements of a function or module."""

    def __init__(
        self,
        whole: Tensors,
        source: SourceFile,
        env: Env,
        *,
        is_step: bool,
        class_name: str,
        depth: int,
    ) -> None:
        """Create an interpreter for one call.

        Args:
            whole: Interpreter of the whole program.
            env: Contents of the variables, which the statements change.
            is_step: True if the statements are part of a training step.
            class_name: Class of a method; empty for other functions.
            depth: Number of nested calls.
        """
        self.whole, self.source, self.env = whole, source, env
        self.is_step, self.class_name, self.depth = is_step, class_name, depth
        self.values: dict[ast.expr, Value] = {}
        """Cached values of the current statement's expressions, each evaluated once."""
        self.num_loops = 0
        self.returned: list[Value] = []
        self.local: dict[str, Function] = {}

    # Statements

    def block(self, body: Sequence[ast.stmt]) -> bool:
        """Interpret statements; return whether they leave the enclosing block."""
        for statement in body:
            self.statement(statement)
            if isinstance(statement, ast.Return | ast.Continue | ast.Break | ast.Raise):
                return True
        return False

    def statement(self, node: ast.stmt) -> None:
        self.values.clear()
        match node:
            case ast.Assign(targets=targets, value=value):
                held = self.value(value)
                for target in targets:
                    self.bind(target, held, value)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self.bind(target, self.value(value), value)
            case ast.AugAssign(target=target, value=value):
                self.bind(target, self.operation(self.value(target), self.value(value)), value)
            case ast.For() | ast.AsyncFor() | ast.While():
                self.loop(node)
            case ast.If():
                self.branch(node)
            case ast.With(items=items) | ast.AsyncWith(items=items):
                for item in items:
                    held = self.value(item.context_expr)
                    if item.optional_vars is not None:
                        self.bind(item.optional_vars, held, item.context_expr)
                self.block(node.body)
            case ast.Try() | ast.TryStar():
                self.block(node.body)
                for handler in node.handlers:
                    self.block(handler.body)
                self.block(node.orelse)
                self.block(node.finalbody)
            case ast.Match(subject=subject, cases=cases):
                self.value(subject)
                for case in cases:
                    self.block(case.body)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.local[node.name] = node
                self.env.pop(node.name, None)
            case ast.Return(value=value):
                self.returned.append(Content.HOST if value is None else self.value(value))
            case ast.Assert(test=test):
                self.condition(test)
            case ast.Expr(value=value):
                self.value(value)
            # Not ast.Raise, which is executed at most once.

    def loop(self, node: Loop) -> None:
        was_step = self.is_step
        if node in self.whole.training.loops:
            self.is_step = True
        elif isinstance(node, ast.For) and is_evaluation(ast.unparse(node.iter)):
            self.is_step = False
        self.num_loops += 1
        # Interpret twice, so that values flow into the next iteration; once if deeply nested.
        for _ in range(2 if self.num_loops <= 4 else 1):
            self.values.clear()
            if isinstance(node, ast.While):
                self.condition(node.test)
            else:
                self.bind(node.target, self.iterated(node.iter), node.iter)
            self.block(node.body)
        self.num_loops -= 1
        self.is_step = was_step
        self.block(node.orelse)

    def branch(self, node: ast.If) -> None:
        self.condition(node.test)
        before = dict(self.env)
        leaves = self.block(node.body)
        after = dict(self.env)
        self._restore(before)
        other_leaves = self.block(node.orelse)
        if leaves:
            return
        if other_leaves:
            self._restore(after)
            return
        merged = {
            name: join(after.get(name, Content.UNKNOWN), self.env.get(name, Content.UNKNOWN))
            for name in after.keys() | self.env.keys()
        }
        self._restore(merged)

    def _restore(self, env: Env) -> None:
        """Restore the variables in place, because functions share the variables of their module."""
        self.env.clear()
        self.env.update(env)

    def bind(self, target: ast.expr, held: Value, value: ast.expr) -> None:
        """Assign ``held``, the contents of the expression ``value``, to a target."""
        self.values.clear()
        match target:
            case ast.Name(id=name):
                for key in [k for k in self.env if k.startswith((f"{name}.", f"{name}["))]:
                    del self.env[key]
                is_loss = LOSS.search(name) is not None and isinstance(value, ast.Call)
                if is_loss and self.is_step:
                    is_certain = held is Content.INPUT or (
                        held is Content.UNKNOWN and name == "loss"
                    )
                    held = Content.DEVICE if is_certain else held
                self.env[name] = held
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                has_parts = isinstance(held, tuple) and len(held) == len(targets)
                for number, item in enumerate(targets):
                    part = held[number] if has_parts and isinstance(held, tuple) else element(held)
                    self.bind(item, part, value)
            case ast.Starred(value=inner):
                self.bind(inner, held, value)
            case ast.Attribute(attr=attr):
                self.env[ast.unparse(target)] = held
                if (
                    self.class_name
                    and isinstance(target.value, ast.Name)
                    and target.value.id == "self"
                ):
                    known = self.whole.index.attributes(self.class_name)
                    known[attr] = join(known.get(attr, Content.UNKNOWN), held)
            case ast.Subscript(value=base, slice=index):
                current = self.value(base)
                self.indexed(target, current)
                key = ast.unparse(base)
                if isinstance(index, ast.Constant):
                    self.env[ast.unparse(target)] = held
                if isinstance(current, Record):
                    current = Content.TENSORS if on_device(current) else flattened(current)
                if on_device(held) and current in (
                    Content.HOST,
                    Content.CPU,
                    Content.UNKNOWN,
                ):
                    self.env[key] = Content.DEVICE if current is Content.CPU else Content.TENSORS

    # Expressions

    def find(self, rule: str, node: ast.AST, line: int) -> None:
        """Report a finding if it is in a training step."""
        if self.is_step:
            self.whole.found.add((self.source, line, rule, node))

    def condition(self, node: ast.expr) -> None:
        """Evaluate a condition, whose truth value Python needs on the host."""
        if isinstance(node, ast.BoolOp):
            for item in node.values:
                self.condition(item)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self.condition(node.operand)
        elif self.value(node) in ON_DEVICE:
            self.find("branch", node, node.lineno)

    def formatted(self, node: ast.expr) -> None:
        """Evaluate an expression that is formatted as a string."""
        if isinstance(node, ast.Tuple):
            for item in node.elts:
                self.formatted(item)
        elif isinstance(node, ast.Starred):
            self.formatted(node.value)
        elif isinstance(held := self.value(node), ProgramObject):
            if (found := self.whole.index.method(held.class_name, "__str__")) is not None:
                source, function, class_name = found
                self.walk(source, function, (), {}, class_name=class_name, is_method=True)
        elif on_device(held):
            self.find("printed", node, node.lineno)

    def operation(self, *values: Value) -> Value:
        """Return the result of arithmetic on these values."""
        flat = [flattened(value) for value in values]
        for held in (Content.DEVICE, Content.MASK, Content.TENSORS):
            if held in flat:
                return Content.TENSORS if held is Content.TENSORS else Content.DEVICE
        for held in (Content.INPUT, Content.CPU):
            if held in flat:
                return held
        return Content.HOST if all(value is Content.HOST for value in flat) else Content.UNKNOWN

    def value(self, node: ast.expr | None) -> Value:
        """Evaluate an expression, and report findings in it."""
        if node is None or self.whole.num_values > MAX_VALUES:
            return Content.UNKNOWN if node else Content.HOST
        if node not in self.values:
            self.whole.num_values += 1
            held = self.value_of(node)
            self.values[node] = held
        return self.values[node]

    def value_of(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant():
                return Content.HOST
            case ast.Name():
                return self.named(node.id)
            case ast.Attribute():
                return self.attribute(node)
            case ast.Subscript():
                return self.subscript(node)
            case ast.Call():
                return self.called(node)
            case ast.BinOp(left=left, op=op, right=right):
                if isinstance(op, ast.Mod) and is_string(left):
                    self.formatted(right)
                    return Content.HOST
                values = self.value(left), self.value(right)
                if isinstance(op, ast.BitAnd | ast.BitOr | ast.BitXor) and Content.MASK in values:
                    return Content.MASK
                return self.operation(*values)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self.condition(operand)
                return Content.HOST
            case ast.UnaryOp(op=op, operand=operand):
                held = self.value(operand)
                is_mask = isinstance(op, ast.Invert) and held in ON_DEVICE
                return Content.MASK if is_mask else held
            case ast.BoolOp(values=values):
                for item in values[:-1]:
                    self.condition(item)
                return join(*[self.value(item) for item in values])
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                held = self.operation(*[self.value(item) for item in (left, *comparators)])
                if any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in ops):
                    return Content.HOST
                kept = {
                    Content.DEVICE: Content.MASK,
                    Content.INPUT: Content.INPUT,
                    Content.CPU: Content.CPU,
                }
                return kept.get(held, Content.HOST) if isinstance(held, Content) else Content.HOST
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self.condition(test)
                return join(self.value(body), self.value(orelse))
            case ast.Tuple(elts=elts) if len(elts) <= 12:
                return tuple(self.value(item) for item in elts)
            case ast.List(elts=elts) | ast.Tuple(elts=elts) | ast.Set(elts=elts):
                return self.collected([self.value(item) for item in elts])
            case ast.Dict(keys=keys, values=values):
                for key in keys:
                    self.value(key)
                every = [self.value(item) for item in values]
                names = [key.value for key in keys if isinstance(key, ast.Constant)]
                if len(names) == len(every) and all(isinstance(name, str) for name in names):
                    return Record(tuple(zip(map(str, names), every, strict=True)))
                return self.collected(every)
            case ast.ListComp(elt=elt) | ast.SetComp(elt=elt) | ast.GeneratorExp(elt=elt):
                return self.comprehension(node.generators, elt)
            case ast.DictComp(key=key, value=value):
                return self.comprehension(node.generators, value, key)
            case ast.JoinedStr(values=values):
                for item in values:
                    if isinstance(item, ast.FormattedValue):
                        self.formatted(item.value)
                return Content.HOST
            case ast.NamedExpr(target=target, value=value):
                held = self.value(value)
                self.bind(target, held, value)
                return held
            case ast.Starred(value=value) | ast.Await(value=value) | ast.YieldFrom(value=value):
                return self.value(value)
            case ast.Yield(value=value):
                self.returned.append(self.value(value))
                return Content.UNKNOWN
            case ast.Slice(lower=lower, upper=upper, step=step):
                for bound in (lower, upper, step):
                    self.value(bound)
                return Content.HOST
        return Content.UNKNOWN

    def collected(self, values: Sequence[Value]) -> Value:
        """Return the value of a collection of these values."""
        if any(on_device(value) for value in values):
            return Content.TENSORS
        if values and all(isinstance(value, ProgramObject) for value in values):
            return join(*values)
        if Content.CPU in values:
            return Content.CPU
        if values and all(value is Content.MODULE for value in values):
            return Content.MODULE
        return Content.HOST if not values or Content.HOST in values else Content.UNKNOWN

    def comprehension(
        self, generators: Sequence[ast.comprehension], elt: ast.expr, key: ast.expr | None = None
    ) -> Value:
        before = dict(self.env)
        for generator in generators:
            self.bind(generator.target, self.iterated(generator.iter), generator.iter)
            for test in generator.ifs:
                self.condition(test)
        self.value(key)
        held = self.value(elt)
        self._restore(before)
        return Content.TENSORS if on_device(held) else held

    def named(self, name: str) -> Value:
        """Return the value of a variable; guess that of an unknown one from its name."""
        if name in self.env:
            return self.env[name]
        top = self.whole.globals[self.source]
        if name in top:
            return top[name]
        return guess(name)

    def attribute(self, node: ast.Attribute) -> Value:
        key = ast.unparse(node)
        if key in self.env:
            return self.env[key]
        base, attr = self.value(node.value), node.attr
        if attr in _HOST_ATTRIBUTES:
            return Content.HOST
        if isinstance(node.value, ast.Name) and node.value.id == "self" and self.class_name:
            if attr == "__dict__":
                return self.collected([*self.whole.index.attributes(self.class_name).values()])
            known = self.whole.index.attributes(self.class_name).get(attr)
            return guess(attr) if known is None or known is Content.UNKNOWN else known
        if isinstance(base, ProgramObject):
            return self.whole.index.attributes(base.class_name).get(attr, Content.UNKNOWN)
        if base in (*ON_DEVICE, Content.TENSORS):
            return Content.DEVICE
        if base in (Content.CPU, Content.INPUT):
            return base
        if attr == "grad" or (base is Content.MODULE and attr in ("weight", "bias", "data")):
            return Content.DEVICE
        return Content.MODULE if base is Content.MODULE else Content.UNKNOWN

    def subscript(self, node: ast.Subscript) -> Value:
        key = ast.unparse(node)
        base = self.value(node.value)
        self.indexed(node, base)
        if key in self.env:
            return self.env[key]
        if isinstance(base, tuple):
            position = node.slice.value if isinstance(node.slice, ast.Constant) else None
            if isinstance(position, int) and -len(base) <= position < len(base):
                return base[position]
            return element(base)
        if isinstance(base, Record):
            index = node.slice
            known = dict(base.fields)
            name = index.value if isinstance(index, ast.Constant) else None
            return known.get(str(name), Content.UNKNOWN) if name is not None else element(base)
        if base in ON_DEVICE:
            return Content.DEVICE
        return element(base)

    def indexed(self, node: ast.Subscript, base: Value) -> None:
        """Evaluate an index: a boolean mask selects a data-dependent number of elements."""
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for part in parts:
            held = self.value(part)
            is_mask = held is Content.MASK or (
                held is Content.INPUT and isinstance(part, ast.Compare | ast.UnaryOp)
            )
            if isinstance(part, ast.Name | ast.UnaryOp) and held is not Content.HOST:
                name = last_name(part.operand if isinstance(part, ast.UnaryOp) else part)
                is_mask |= "mask" in name.lower() and base in (*ON_DEVICE, Content.INPUT)
            is_mask |= held is Content.INDICES and base in ON_DEVICE
            if is_mask and base is not Content.HOST:
                self.find("data-dependent", node, node.lineno)

    def iterated(self, node: ast.expr) -> Value:
        """Return the value of the loop variable when iterating over an expression."""
        if isinstance(node, ast.Call):
            last = last_name(node.func)
            if last == "enumerate" and node.args:
                return Content.HOST, self.iterated(node.args[0])
            if last == "zip":
                return tuple(self.iterated(item) for item in node.args)
            if last in ("range", "count", "trange"):
                self.value(node)
                return Content.HOST
            if last in ITERATION_WRAPPERS and node.args:
                return self.iterated(node.args[0])
            if last in ("items", "named_parameters", "named_buffers"):
                held = self.value(node)
                return Content.HOST, element(held)
        held = self.value(node)
        if isinstance(held, ProgramObject):
            return self.iterated_instance(held)
        return element(held)

    def iterated_instance(self, held: ProgramObject) -> Value:
        """Interpret the methods called when iterating over an object of the program."""
        given = [
            self.walk(source, function, (), {}, class_name=class_name, is_method=True)
            for name in ("__iter__", "__next__")
            if (found := self.whole.index.method(held.class_name, name)) is not None
            for source, function, class_name in [found]
        ]
        return join(*given) if given else held

    # Calls, implemented by a subclass

    def called(self, node: ast.Call) -> Value:
        """Evaluate a call, and report findings in it."""
        raise NotImplementedError

    def walk(
        self,
        source: SourceFile,
        function: Function,
        values: Sequence[Value],
        given: Mapping[str | None, Value],
        *,
        class_name: str = "",
        is_method: bool = False,
        around: Env | None = None,
    ) -> Value:
        """Interpret a call to one of the program's functions with these arguments."""
        raise NotImplementedError


def is_string(node: ast.AST) -> bool:
    """Return whether an expression is a string literal."""
    while isinstance(node, ast.BinOp):
        node = node.left
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
