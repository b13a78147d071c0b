"""Findings that need to know what is a tensor on the device: host syncs and dynamic shapes.

A small abstract interpreter: it walks through functions in the order of their statements, with a
guess of what each variable holds, and looks for findings where a training step is made.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from jobs.port.expressions import is_evaluation
from jobs.port.names import Function, Source, end_line, is_constant, keyword, last_name
from jobs.port.training import STEP_METHODS, Loop, Training


class Held(Enum):
    """What a variable may hold."""

    UNKNOWN = auto()
    HOST = auto()
    """Numbers, strings, arrays: nothing of a device."""
    CPU = auto()
    """A tensor, or a batch of them, that has not been moved."""
    DEVICE = auto()
    MASK = auto()
    """A tensor of booleans on the device."""
    INPUT = auto()
    """What may be a tensor or an option: an argument of a model, or what an unknown call gives."""
    INDICES = auto()
    """Positions on the host, as many as the data has."""
    TENSORS = auto()
    """A list or dictionary of tensors on the device."""
    MODULE = auto()
    LOADER = auto()
    DEVICE_LOADER = auto()
    """A loader whose batches are moved by a library."""


@dataclass(frozen=True)
class Instance:
    """An object of a class of the program."""

    of: str


@dataclass(frozen=True)
class Record:
    """A dictionary with known keys."""

    fields: tuple[tuple[str, "Value"], ...]

    @property
    def values(self) -> tuple[Value, ...]:
        """What it holds, in the order of its keys."""
        return tuple(value for _, value in self.fields)


Value = Held | Instance | Record | tuple["Value", ...]
Env = dict[str, Value]

_ON_DEVICE = (Held.DEVICE, Held.MASK)
_MAX_DEPTH = 8
_HOST_ATTRIBUTES = frozenset(
    {"shape", "device", "dtype", "ndim", "is_cuda", "requires_grad", "grad_fn", "name", "layout",
     "is_leaf", "itemsize", "nbytes", "config"}
)  # fmt: skip
_HOST_METHODS = frozenset(
    {"size", "dim", "numel", "nelement", "stride", "element_size", "get_device", "is_contiguous",
     "ndimension", "is_floating_point", "data_ptr", "keys", "storage_offset", "type"}
)  # fmt: skip
_DYNAMIC = frozenset({"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive"})
_CERTAINLY_TENSORS = frozenset({"nonzero", "masked_select", "unique_consecutive"})
_BOOLEAN = frozenset(
    {"isnan", "isinf", "isfinite", "eq", "ne", "lt", "gt", "le", "ge", "bool", "logical_and",
     "logical_or", "logical_not", "logical_xor", "any", "all", "equal", "allclose", "isclose",
     "isin", "isneginf", "isposinf", "greater", "less", "not_equal"}
)  # fmt: skip
_CREATED = frozenset(
    {"tensor", "zeros", "ones", "rand", "randn", "randint", "randperm", "full", "arange", "empty",
     "eye", "linspace", "as_tensor", "from_numpy", "normal", "Tensor", "FloatTensor", "LongTensor",
     "multinomial", "tril", "triu"}
)  # fmt: skip
_HOST_TYPES = frozenset({"int", "float", "bool", "str", "Path", "Namespace"})
_LOGS = frozenset({"debug", "info", "warning", "warn", "error", "critical", "exception"})
_HOST_NAMES = re.compile(
    r"numpy|item|scalar|batch_decode|to_?list|2np|_score$|^compute_metric|^str|tensor2im|to_cpu|tolist|np$"
)
_LOSS = re.compile(r"(^|_)(loss|losses|logits|criterion|cross_entropy)(_|\d*$)", re.IGNORECASE)
_MOVES = re.compile(r"device|cuda|gpu|move|prepare_batch|prefetch", re.IGNORECASE)
_MODULES = re.compile(
    r"(^|_)(model|net|network|module|encoder|decoder|generator|discriminator|critic|actor|policy"
    r"|criterion|loss_fn|loss_func|loss_function|agent|unet|vae|gan|backbone|classifier|head|ddp"
    r"|net[GD]|teacher|student|q_network|target_network)s?(_?[A-Z0-9]?\w?)?$"
)
_BUILDERS = re.compile(
    r"(get|build|make|create|load|find|init|setup|save|wrap|select|define|update|set|count|log)_"
)
"""Functions about a model, which are none themselves."""
_LOADERS = re.compile(r"load|_dl$|^dl$|data_?iter|batches|dataset", re.IGNORECASE)
_LIBRARIES_ON_HOST = re.compile(
    r"(numpy|np|sklearn|scipy|pandas|random|time|os|sys|json|wandb|math|itertools|datetime|PIL|cv2"
    r"|matplotlib|plt|copy|re|pathlib|shutil|logging|tqdm|evaluate|torchvision\.utils|gym|gymnasium"
    r")(\.|$)"
)
_PASSED_ON = frozenset({"tqdm", "iter", "list", "tuple", "reversed", "cycle", "islice", "trange",
                        "track", "sorted", "set", "progress_bar", "log_every", "prefetcher"})  # fmt: skip


def join(*values: Value) -> Value:
    """Return what a variable may hold that one branch gives this, another that."""
    known = [value for value in values if value is not Held.UNKNOWN]
    if not known:
        return Held.UNKNOWN
    first = known[0]
    if all(value == first for value in known):
        return first
    tuples = [value for value in known if isinstance(value, tuple)]
    if len(tuples) == len(known) and len({len(value) for value in tuples}) == 1:
        return tuple(join(*items) for items in zip(*tuples, strict=True))
    flat = [flattened(value) for value in known]
    for held in (
        Held.DEVICE, Held.MASK, Held.TENSORS, Held.INPUT, Held.MODULE, Held.CPU, Held.DEVICE_LOADER,
        Held.LOADER,
    ):  # fmt: skip
        if held in flat:
            return held
    return next((value for value in flat if isinstance(value, Instance)), Held.HOST)


def flattened(value: Value) -> Held | Instance:
    """Return one guess for a value of several parts."""
    while isinstance(value, tuple | Record):
        parts = value if isinstance(value, tuple) else value.values
        is_tensors = isinstance(value, Record) and on_device(value)
        value = Held.TENSORS if is_tensors else join(*parts) if parts else Held.HOST
    return value


def element(value: Value) -> Value:
    """Return what iterating, or an index, gives."""
    if isinstance(value, tuple | Record):
        parts = value if isinstance(value, tuple) else value.values
        return join(*parts) if parts else Held.HOST
    steps = {
        Held.TENSORS: Held.DEVICE,
        Held.LOADER: Held.CPU,
        Held.DEVICE_LOADER: Held.DEVICE,
        Held.INPUT: Held.INPUT,
    }
    return value if isinstance(value, Instance) else steps.get(value, value)


def on_device(value: Value) -> bool:
    """Tell whether a value is a tensor of the device, or holds one."""
    if isinstance(value, tuple | Record):
        return any(map(on_device, value if isinstance(value, tuple) else value.values))
    return value in (*_ON_DEVICE, Held.TENSORS)


class Tensors:
    """Walks through a program, and collects what its training steps do with tensors."""

    def __init__(self, sources: Sequence[Source], training: Training) -> None:
        self.found: set[tuple[Source, int, str, ast.AST]] = set()
        self._training = training
        self._sources = sources
        self.creates_on_device = any(
            isinstance(node, ast.Call)
            and last_name(node.func) in ("set_default_device", "set_default_tensor_type")
            and "cuda" in ast.unparse(node)
            for source in sources
            for node in source.nodes
        )
        self._stems = {source.path.rpartition("/")[2].removesuffix(".py") for source in sources}
        self._functions: dict[str, tuple[Source, Function]] = {}
        self._classes: dict[str, tuple[Source, ast.ClassDef]] = {}
        self._methods: dict[str, list[str]] = {}
        for source in sources:
            for name, function in source.functions.items():
                self._functions.setdefault(name, (source, function))
            for name, of in source.classes.items():
                self._classes.setdefault(name, (source, of))
        for name, (_, of) in self._classes.items():
            for item in of.body:
                if isinstance(item, Function):
                    self._methods.setdefault(item.name, []).append(name)
        self._globals: dict[Source, Env] = {source: {} for source in sources}
        self._attributes: dict[str, Env] = {name: {} for name in self._classes}
        self._memo: dict[object, Value] = {}
        self._visited: set[ast.AST] = set()
        self._local: dict[str, tuple[Source, Function, Env, str]] = {}

    def run(self) -> None:
        """Walk through all files: what they do when imported or run, then what is left."""
        for source in reversed(self._sources):
            _Walk(self, source, self._globals[source], is_step=False, of="", depth=0).block(
                source.tree.body
            )
        for name, (source, of) in self._classes.items():
            for item in of.body:
                if isinstance(item, Function) and item.name == "__init__":
                    self.call(source, item, {}, is_step=False, of=name, depth=0)
        for name, (source, of) in self._classes.items():
            for item in of.body:
                if isinstance(item, Function):
                    self._unvisited(source, item, name)
        for source in self._sources:
            for node in source.nodes:
                if isinstance(node, Function) and node not in self._visited:
                    self._unvisited(source, node, "")

    def _unvisited(self, source: Source, function: Function, of: str) -> None:
        is_method_of_steps = bool(of) and function.name in STEP_METHODS
        if is_method_of_steps and (function.name != "forward" or self.is_module(of)):
            held = Held.INPUT if function.name == "forward" else Held.UNKNOWN
            is_lightning = function.name == "training_step"
            arguments = {
                name: Held.DEVICE if is_lightning and name == "batch" else _default(held, default)
                for name, default in _parameters(function)
            }
            is_step = self._training.is_training or function.name != "forward"
            self.call(source, function, arguments, is_step=is_step, of=of, depth=0)
        elif function not in self._visited:
            is_step = self._training.is_step(function) and function.name != "main"
            self.call(source, function, {}, is_step=is_step, of=of, depth=0)

    def is_module(self, name: str, depth: int = 0) -> bool:
        """Tell whether a class is a model or a part of one."""
        if name not in self._classes or depth > _MAX_DEPTH:
            return False
        source, of = self._classes[name]
        return any(
            last_name(base).endswith(("Module", "PreTrainedModel", "Model"))
            or self.is_module(last_name(base), depth + 1)
            for base in of.bases
        ) and not any("LightningDataModule" in source.name(base) for base in of.bases)

    def function(self, source: Source, name: str) -> tuple[Source, Function] | None:
        """Find a function of the program by the name that it has in a file."""
        if name in source.functions:
            return source, source.functions[name]
        full = source.aliases.get(name, "")
        module, _, last = full.rpartition(".")
        if module and module.rpartition(".")[2] in self._stems:
            return self._functions.get(last)
        return None

    def class_named(self, source: Source, name: str) -> str | None:
        """Find a class of the program by the name that it has in a file."""
        last = source.aliases.get(name, name).rpartition(".")[2]
        return last if last in self._classes else None

    def method(self, of: str, name: str, depth: int = 0) -> tuple[Source, Function, str] | None:
        """Find a method of a class of the program, or of one that it is made from."""
        if of not in self._classes or depth > _MAX_DEPTH:
            return None
        source, node = self._classes[of]
        for item in node.body:
            if isinstance(item, Function) and item.name == name:
                return source, item, of
        for base in node.bases:
            if (found := self.method(last_name(base), name, depth + 1)) is not None:
                return found
        return None

    def only_method(self, name: str) -> tuple[Source, Function, str] | None:
        """Find the method of a name that one class of the program alone has."""
        owners = self._methods.get(name, [])
        return self.method(owners[0], name) if len(owners) == 1 else None

    def attributes(self, of: str) -> Env:
        """Return what is known of the attributes of a class's objects."""
        return self._attributes.setdefault(of, {})

    def call(
        self,
        source: Source,
        function: Function,
        arguments: Mapping[str, Value],
        *,
        is_step: bool,
        of: str,
        depth: int,
        around: Env | None = None,
    ) -> Value:
        """Walk through a function with these arguments; return what it gives back."""
        self._visited.add(function)
        key = (function, tuple(sorted(arguments.items(), key=lambda i: i[0])), is_step, of)
        if key in self._memo or depth > _MAX_DEPTH:
            return self._memo.get(key, Held.UNKNOWN)
        self._memo[key] = Held.UNKNOWN  # while it calls itself
        env = dict(self._globals[source] if around is None else around)
        for name in [name for name in env if "." in name or "[" in name]:
            del env[name]
        for name, _ in _parameters(function):
            env.pop(name, None)
        env.update(arguments)
        every = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        env.update(
            {item.arg: Held.HOST for item in every if last_name(item.annotation) in _HOST_TYPES}
        )
        walk = _Walk(self, source, env, is_step=is_step, of=of, depth=depth + 1)
        walk.block(function.body)
        self._memo[key] = join(*walk.returned) if walk.returned else Held.HOST
        return self._memo[key]


class _Walk:
    """One function, or the top of a file, statement by statement."""

    def __init__(
        self, whole: Tensors, source: Source, env: Env, *, is_step: bool, of: str, depth: int
    ) -> None:
        self.whole, self.source, self.env = whole, source, env
        self.is_step, self.of, self.depth = is_step, of, depth
        self.returned: list[Value] = []
        self.local: dict[str, Function] = {}

    # Statements

    def block(self, body: Sequence[ast.stmt]) -> bool:
        """Walk through statements; return whether they leave the block around them."""
        for statement in body:
            self.statement(statement)
            if isinstance(statement, ast.Return | ast.Continue | ast.Break | ast.Raise):
                return True
        return False

    def statement(self, node: ast.stmt) -> None:
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
                self.returned.append(Held.HOST if value is None else self.value(value))
            case ast.Assert(test=test):
                self.condition(test)
            case ast.Expr(value=value):
                self.value(value)
            case ast.Raise(exc=exc) if exc is not None:
                pass  # formatted once, when it ends

    def loop(self, node: Loop) -> None:
        outside = self.is_step
        if node in self.whole._training.loops:
            self.is_step = True
        elif isinstance(node, ast.For) and is_evaluation(ast.unparse(node.iter)):
            self.is_step = False
        for _ in range(2):  # what the end of a round leaves, the next one begins with
            if isinstance(node, ast.While):
                self.condition(node.test)
            else:
                self.bind(node.target, self.iterated(node.iter), node.iter)
            self.block(node.body)
        self.is_step = outside
        self.block(node.orelse)

    def branch(self, node: ast.If) -> None:
        self.condition(node.test)
        before = dict(self.env)
        leaves = self.block(node.body)
        after, self.env_after = dict(self.env), None
        self._restore(before)
        other_leaves = self.block(node.orelse)
        if leaves:
            return
        if other_leaves:
            self._restore(after)
            return
        merged = {
            name: join(after.get(name, Held.UNKNOWN), self.env.get(name, Held.UNKNOWN))
            for name in after.keys() | self.env.keys()
        }
        self._restore(merged)

    def _restore(self, env: Env) -> None:
        """Put the variables back in place: the top of a file shares them with its functions."""
        self.env.clear()
        self.env.update(env)

    def bind(self, target: ast.expr, held: Value, value: ast.expr) -> None:
        match target:
            case ast.Name(id=name):
                for key in [k for k in self.env if k.startswith((f"{name}.", f"{name}["))]:
                    del self.env[key]
                is_loss = _LOSS.search(name) is not None and isinstance(value, ast.Call)
                if is_loss and self.is_step:
                    is_certain = held is Held.INPUT or (held is Held.UNKNOWN and name == "loss")
                    held = Held.DEVICE if is_certain else held
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
                if self.of and isinstance(target.value, ast.Name) and target.value.id == "self":
                    known = self.whole.attributes(self.of)
                    known[attr] = join(known.get(attr, Held.UNKNOWN), held)
            case ast.Subscript(value=base, slice=index):
                current = self.value(base)
                self.indexed(target, current)
                key = ast.unparse(base)
                if isinstance(index, ast.Constant):
                    self.env[ast.unparse(target)] = held
                if isinstance(current, Record):
                    current = Held.TENSORS if on_device(current) else flattened(current)
                if on_device(held) and current in (Held.HOST, Held.CPU, Held.UNKNOWN):
                    self.env[key] = Held.DEVICE if current is Held.CPU else Held.TENSORS

    # Expressions

    def find(self, rule: str, node: ast.AST, line: int) -> None:
        if self.is_step:
            self.whole.found.add((self.source, line, rule, node))

    def condition(self, node: ast.expr) -> None:
        """Look at what Python has to know the truth of."""
        if isinstance(node, ast.BoolOp):
            for item in node.values:
                self.condition(item)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self.condition(node.operand)
        elif self.value(node) in _ON_DEVICE:
            self.find("branch", node, node.lineno)

    def formatted(self, node: ast.expr) -> None:
        """Look at what is made text."""
        if isinstance(node, ast.Tuple):
            for item in node.elts:
                self.formatted(item)
        elif isinstance(node, ast.Starred):
            self.formatted(node.value)
        elif isinstance(held := self.value(node), Instance):
            if (found := self.whole.method(held.of, "__str__")) is not None:
                source, function, of = found
                self.walk(source, function, (), {}, of=of, is_method=True)
        elif on_device(held):
            self.find("printed", node, node.lineno)

    def operation(self, *values: Value) -> Value:
        """Return what arithmetic of these gives."""
        flat = [flattened(value) for value in values]
        for held in (Held.DEVICE, Held.MASK, Held.TENSORS):
            if held in flat:
                return Held.TENSORS if held is Held.TENSORS else Held.DEVICE
        for held in (Held.INPUT, Held.CPU):
            if held in flat:
                return held
        return Held.HOST if all(value is Held.HOST for value in flat) else Held.UNKNOWN

    def value(self, node: ast.expr | None) -> Value:
        """Return what an expression gives, and look at it on the way."""
        match node:
            case None | ast.Constant():
                return Held.HOST
            case ast.Name():
                return self.named(node.id)
            case ast.Attribute():
                return self.attribute(node)
            case ast.Subscript():
                return self.subscript(node)
            case ast.Call():
                return self.called(node)
            case ast.BinOp(left=left, op=op, right=right):
                if isinstance(op, ast.Mod) and _is_text(left):
                    self.formatted(right)
                    return Held.HOST
                values = self.value(left), self.value(right)
                if isinstance(op, ast.BitAnd | ast.BitOr | ast.BitXor) and Held.MASK in values:
                    return Held.MASK
                return self.operation(*values)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self.condition(operand)
                return Held.HOST
            case ast.UnaryOp(op=op, operand=operand):
                held = self.value(operand)
                is_mask = isinstance(op, ast.Invert) and held in _ON_DEVICE
                return Held.MASK if is_mask else held
            case ast.BoolOp(values=values):
                for item in values[:-1]:
                    self.condition(item)
                return join(*[self.value(item) for item in values])
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                held = self.operation(*[self.value(item) for item in (left, *comparators)])
                if any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in ops):
                    return Held.HOST
                kept = {Held.DEVICE: Held.MASK, Held.INPUT: Held.INPUT, Held.CPU: Held.CPU}
                return kept.get(held, Held.HOST) if isinstance(held, Held) else Held.HOST
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
                held = [self.value(item) for item in values]
                names = [key.value for key in keys if isinstance(key, ast.Constant)]
                if len(names) == len(held) and all(isinstance(name, str) for name in names):
                    return Record(tuple(zip(map(str, names), held, strict=True)))
                return self.collected(held)
            case ast.ListComp(elt=elt) | ast.SetComp(elt=elt) | ast.GeneratorExp(elt=elt):
                return self.comprehension(node.generators, elt)
            case ast.DictComp(key=key, value=value):
                return self.comprehension(node.generators, value, key)
            case ast.JoinedStr(values=values):
                for item in values:
                    if isinstance(item, ast.FormattedValue):
                        self.formatted(item.value)
                return Held.HOST
            case ast.NamedExpr(target=target, value=value):
                held = self.value(value)
                self.bind(target, held, value)
                return held
            case ast.Starred(value=value) | ast.Await(value=value) | ast.YieldFrom(value=value):
                return self.value(value)
            case ast.Yield(value=value):
                self.returned.append(self.value(value))
                return Held.UNKNOWN
            case ast.Slice(lower=lower, upper=upper, step=step):
                for bound in (lower, upper, step):
                    self.value(bound)
                return Held.HOST
        return Held.UNKNOWN

    def collected(self, values: Sequence[Value]) -> Value:
        if any(on_device(value) for value in values):
            return Held.TENSORS
        if values and all(isinstance(value, Instance) for value in values):
            return join(*values)
        if Held.CPU in values:
            return Held.CPU
        if values and all(value is Held.MODULE for value in values):
            return Held.MODULE
        return Held.HOST if not values or Held.HOST in values else Held.UNKNOWN

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
        return Held.TENSORS if on_device(held) else held

    def named(self, name: str) -> Value:
        if name in self.env:
            return self.env[name]
        top = self.whole._globals[self.source]
        if name in top:
            return top[name]
        return _guess(name)

    def attribute(self, node: ast.Attribute) -> Value:
        key = ast.unparse(node)
        if key in self.env:
            return self.env[key]
        base, attr = self.value(node.value), node.attr
        if attr in _HOST_ATTRIBUTES:
            return Held.HOST
        if isinstance(node.value, ast.Name) and node.value.id == "self" and self.of:
            if attr == "__dict__":
                return self.collected([*self.whole.attributes(self.of).values()])
            known = self.whole.attributes(self.of).get(attr)
            return _guess(attr) if known is None or known is Held.UNKNOWN else known
        if isinstance(base, Instance):
            return self.whole.attributes(base.of).get(attr, Held.UNKNOWN)
        if base in (*_ON_DEVICE, Held.TENSORS):
            return Held.DEVICE
        if base in (Held.CPU, Held.INPUT):
            return base
        if attr == "grad" or (base is Held.MODULE and attr in ("weight", "bias", "data")):
            return Held.DEVICE
        return Held.MODULE if base is Held.MODULE else Held.UNKNOWN

    def subscript(self, node: ast.Subscript) -> Value:
        key = ast.unparse(node)
        base = self.value(node.value)
        self.indexed(node, base)
        if key in self.env:
            return self.env[key]
        if isinstance(base, tuple):
            index = node.slice
            if isinstance(index, ast.Constant) and isinstance(index.value, int):
                if -len(base) <= index.value < len(base):
                    return base[index.value]
            return element(base)
        if isinstance(base, Record):
            index = node.slice
            known = dict(base.fields)
            name = index.value if isinstance(index, ast.Constant) else None
            return known.get(str(name), Held.UNKNOWN) if name is not None else element(base)
        if base in _ON_DEVICE:
            return Held.DEVICE
        return element(base)

    def indexed(self, node: ast.Subscript, base: Value) -> None:
        """Look at an index: a mask of booleans chooses as many elements as are true."""
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for part in parts:
            held = self.value(part)
            is_mask = held is Held.MASK or (
                held is Held.INPUT and isinstance(part, ast.Compare | ast.UnaryOp)
            )
            if isinstance(part, ast.Name | ast.UnaryOp) and held is not Held.HOST:
                name = last_name(part.operand if isinstance(part, ast.UnaryOp) else part)
                is_mask |= "mask" in name.lower() and base in (*_ON_DEVICE, Held.INPUT)
            is_mask |= held is Held.INDICES and base in _ON_DEVICE
            if is_mask and base is not Held.HOST:
                self.find("data-dependent", node, node.lineno)

    def iterated(self, node: ast.expr) -> Value:
        """Return what a loop over an expression gives."""
        if isinstance(node, ast.Call):
            last = last_name(node.func)
            if last == "enumerate" and node.args:
                return Held.HOST, self.iterated(node.args[0])
            if last == "zip":
                return tuple(self.iterated(item) for item in node.args)
            if last in ("range", "count", "trange"):
                self.value(node)
                return Held.HOST
            if last in _PASSED_ON and node.args:
                return self.iterated(node.args[0])
            if last in ("items", "named_parameters", "named_buffers"):
                held = self.value(node)
                return Held.HOST, element(held)
        held = self.value(node)
        if isinstance(held, Instance):
            return self.iterated_instance(held)
        return element(held)

    def iterated_instance(self, held: Instance) -> Value:
        """Walk through what a loop over an object of the program calls for each round."""
        given = [
            self.walk(source, function, (), {}, of=of, is_method=True)
            for name in ("__iter__", "__next__")
            if (found := self.whole.method(held.of, name)) is not None
            for source, function, of in [found]
        ]
        return join(*given) if given else held

    # Calls

    def called(self, node: ast.Call) -> Value:
        values = [self.value(argument) for argument in node.args]
        given = {item.arg: self.value(item.value) for item in node.keywords}
        every = [*values, *given.values()]
        name, last = self.source.name(node.func), last_name(node.func)
        if (own := self.own(node, values, given)) is not None:
            return own
        if name.startswith("torch."):
            return self.torch(node, name, last, every)
        if isinstance(node.func, ast.Name) and (held := self.builtin(node, last, every)):
            return held
        if name.startswith("math."):
            if any(value in _ON_DEVICE for value in every):
                self.find("copied-to-host", node, node.lineno)
            return Held.HOST
        if isinstance(node.func, ast.Attribute):
            return self.method(node, name, every)
        if _LIBRARIES_ON_HOST.match(name):
            return Held.HOST
        if _BUILDERS.match(last):
            return _guess(last) if _guess(last) is Held.MODULE else self.unknown(last, every)
        held = self.value(node.func)
        return Held.DEVICE if held is Held.MODULE else self.unknown(last, every)

    def unknown(self, last: str, every: Sequence[Value]) -> Value:
        """Return what a call of something unknown gives: of tensors, probably a tensor."""
        if _HOST_NAMES.search(last):
            return Held.HOST
        if last[:1].isupper():
            return Held.MODULE if _MODULES.search(last.lower()) else Held.UNKNOWN
        if any(on_device(value) for value in every):
            return Held.DEVICE if _LOSS.search(last) else Held.INPUT
        if Held.CPU in every:
            return Held.DEVICE if _MOVES.search(last) else Held.UNKNOWN
        return Held.INPUT if Held.INPUT in every else Held.UNKNOWN

    def own(
        self, node: ast.Call, values: Sequence[Value], given: Mapping[str | None, Value]
    ) -> Value | None:
        """Walk through a function, method or class of the program; None if it is none."""
        func, whole = node.func, self.whole
        if isinstance(func, ast.Name):
            if func.id in self.local:
                function = self.local[func.id]
                return self.walk(self.source, function, values, given, of=self.of, around=self.env)
            if (found := whole.function(self.source, func.id)) is not None:
                return self.walk(*found, values, given)
            if func.id not in self.env and (of := whole.class_named(self.source, func.id)):
                made = whole.method(of, "__init__")
                if made is not None:
                    source, function, owner = made
                    self.walk(source, function, values, given, of=of, is_method=True)
                return Instance(of)
            held = self.named(func.id)
            return self.forward(held, values, given) if isinstance(held, Instance) else None
        if not isinstance(func, ast.Attribute):
            return None
        if isinstance(func.value, ast.Name) and func.value.id == "self" and self.of:
            found_method = whole.method(self.of, func.attr)
        elif isinstance(func.value, ast.Call) and last_name(func.value.func) == "super":
            return None
        else:
            base = self.value(func.value)
            if isinstance(base, Instance):
                found_method = whole.method(base.of, func.attr)
                if found_method is None and isinstance(self.value(func), Instance):
                    return self.forward(self.value(func), values, given)
            elif base is Held.UNKNOWN and not func.attr.startswith("_"):
                known = self.source.name(func).partition(".")[0]
                is_imported = known in self.source.aliases.values()
                found_method = None if is_imported else whole.only_method(func.attr)
            else:
                return None
        if found_method is None:
            held = self.value(func)
            return self.forward(held, values, given) if isinstance(held, Instance) else None
        source, function, of = found_method
        static = any(last_name(item) == "staticmethod" for item in function.decorator_list)
        return self.walk(source, function, values, given, of=of, is_method=not static)

    def forward(
        self, held: Value, values: Sequence[Value], given: Mapping[str | None, Value]
    ) -> Value | None:
        """Call an object of the program: a model's is its ``forward``."""
        assert isinstance(held, Instance)
        for name in ("forward", "__call__"):
            if (found := self.whole.method(held.of, name)) is not None:
                source, function, of = found
                result = self.walk(source, function, values, given, of=of, is_method=True)
                is_module = self.whole.is_module(held.of)
                return Held.DEVICE if is_module and result is Held.UNKNOWN else result
        return Held.DEVICE if self.whole.is_module(held.of) else None

    def walk(
        self,
        source: Source,
        function: Function,
        values: Sequence[Value],
        given: Mapping[str | None, Value],
        *,
        of: str = "",
        is_method: bool = False,
        around: Env | None = None,
    ) -> Value:
        names = [name for name, _ in _parameters(function, is_method=is_method)]
        arguments: dict[str, Value] = dict(zip(names, values, strict=False))
        arguments |= {name: value for name, value in given.items() if name in names and name}
        if is_method and function.name == "forward":
            # Optional arguments that are not given are None.
            missing = [name for name in names if name not in arguments]
            arguments |= {name: Held.HOST for name in missing}
        arguments = {
            name: _guess(name) if value is Held.UNKNOWN else value
            for name, value in arguments.items()
        }
        is_step = self.is_step and not is_evaluation(function.name)
        return self.whole.call(
            source, function, arguments, is_step=is_step, of=of, depth=self.depth, around=around
        )

    def builtin(self, node: ast.Call, last: str, every: Sequence[Value]) -> Value | None:
        """Return what a function of Python's own gives; None for any other."""
        if last in ("float", "int", "bool", "complex"):
            if any(value in _ON_DEVICE for value in every):
                self.find("copied-to-host", node, node.lineno)
            return Held.HOST
        if last in ("str", "repr"):
            for argument in node.args:
                self.formatted(argument)
            return Held.HOST
        if "print" in last:
            for argument in node.args:
                self.formatted(argument)
            return Held.HOST
        if last in ("len", "isinstance", "type", "id", "hasattr", "range", "callable", "dir"):
            return Held.HOST
        if last in ("sum", "max", "min", "abs", "round", "pow"):
            return self.operation(*[element(value) for value in every]) if every else Held.HOST
        if last == "next":
            return element(every[0]) if every else Held.UNKNOWN
        if last == "dict":
            named = [item.arg for item in node.keywords]
            if None in named or node.args:
                return self.collected(every)
            return Record(tuple(zip(map(str, named), every, strict=True)))
        if last in _PASSED_ON or last in ("zip", "enumerate"):
            return every[0] if every else Held.HOST
        return None

    def torch(self, node: ast.Call, name: str, last: str, every: Sequence[Value]) -> Value:
        device = keyword(node, "device")
        if last in _DYNAMIC or (last == "where" and len(node.args) == 1 and not node.keywords):
            if Held.CPU not in every and Held.HOST not in every[:1]:
                self.find("data-dependent", node, end_line(node.func))
            return every[0] if every and Held.CPU in every else Held.DEVICE
        if last == "repeat_interleave" and len(every) > 1 and on_device(every[1]):
            self.find("data-dependent", node, end_line(node.func))
        if last in ("clip_grad_norm_", "grad", "parameters_to_vector", "get_total_norm"):
            return Held.DEVICE
        if last in ("is_tensor", "numel", "device", "save", "is_grad_enabled", "manual_seed"):
            return Held.HOST
        if name.startswith(("torch.optim", "torch.distributed", "torch.cuda", "torch.backends")):
            is_wrapper = last in ("FullyShardedDataParallel", "fully_shard")
            return Held.MODULE if is_wrapper else Held.UNKNOWN
        if last == "DataLoader":
            return Held.LOADER
        if last in ("DistributedDataParallel", "DataParallel", "compile", "script"):
            return next((v for v in every if isinstance(v, Instance)), Held.MODULE)
        if last[:1].isupper() and name.startswith("torch.nn"):
            return Held.DEVICE if last == "Parameter" else Held.MODULE
        if device is not None and not is_constant(device.value, "cpu", None):
            return Held.DEVICE
        if any(on_device(value) for value in every):
            return Held.MASK if last in _BOOLEAN else Held.DEVICE
        if last in _CREATED:
            return Held.DEVICE if self.whole.creates_on_device else Held.CPU
        for held in (Held.INPUT, Held.CPU):
            if held in every:
                return held
        return Held.UNKNOWN

    def method(self, node: ast.Call, name: str, every: Sequence[Value]) -> Value:
        func = node.func
        assert isinstance(func, ast.Attribute)
        attr, line = func.attr, end_line(func)
        if attr == "format":
            for argument in (*node.args, *[item.value for item in node.keywords]):
                self.formatted(argument)
            return Held.HOST
        if attr in _LOGS or "print" in attr:
            for argument in node.args:
                self.formatted(argument)
            return Held.HOST
        if re.fullmatch(r"(np|numpy)\.(where|nonzero|argwhere|flatnonzero)", name):
            return Held.INDICES if len(node.args) == 1 else Held.HOST
        if _LIBRARIES_ON_HOST.match(name):
            return Held.HOST
        if attr == "decode" and re.search(r"token|processor", name):
            return Held.HOST
        base = self.value(func.value)
        if isinstance(base, Instance):
            is_module = self.whole.is_module(base.of)
            if attr in ("to", "cuda", "train", "eval", "half", "double", "float", "bfloat16"):
                return base
            base = Held.MODULE if is_module else Held.UNKNOWN
        elif isinstance(base, Record) and attr == "get" and node.args:
            key = node.args[0]
            known = dict(base.fields)
            return known.get(str(key.value), Held.UNKNOWN) if _is_text(key) else Held.UNKNOWN
        base = flattened(base)
        if isinstance(base, Instance):
            base = Held.UNKNOWN
        if attr == "prepare" and every:
            parts = tuple(Held.DEVICE_LOADER if v is Held.LOADER else v for v in every)
            return parts[0] if len(parts) == 1 else parts
        if attr in ("setup_dataloaders", "prepare_data_loader"):
            return Held.DEVICE_LOADER
        if attr in ("item", "cpu", "numpy", "tolist"):
            return self.copied(node, attr, base, line)
        if attr == "clip_grad_norm_":
            return Held.DEVICE
        if base is Held.MODULE:
            return self.of_module(attr, every)
        if attr in ("to", "cuda"):
            return self.moved(node, attr, base)
        if attr in ("append", "extend", "add", "insert", "update") and on_device(tuple(every)):
            if base in (Held.HOST, Held.UNKNOWN, Held.TENSORS):
                self.env[ast.unparse(func.value)] = Held.TENSORS
            return Held.HOST
        if attr in _HOST_METHODS and not (attr == "type" and node.args):
            return Held.HOST
        if base in (*_ON_DEVICE, Held.TENSORS, Held.INPUT):
            return self.of_tensor(node, attr, base, every)
        if attr in ("state_dict", "parameters", "named_parameters"):
            return Held.TENSORS
        if base is Held.UNKNOWN and attr in _CERTAINLY_TENSORS:
            self.find("data-dependent", node, line)
            return Held.DEVICE
        if base is Held.CPU:
            return Held.DEVICE if any(on_device(v) for v in every) else Held.CPU
        if base is Held.HOST:
            return Held.HOST
        if base in (Held.LOADER, Held.DEVICE_LOADER):
            return base if attr == "__iter__" else Held.UNKNOWN
        if attr in ("step", "reset") or attr == "sample":
            return Held.UNKNOWN
        return self.unknown(attr, every)

    def copied(self, node: ast.Call, attr: str, base: Value, line: int) -> Value:
        """Look at ``.item()`` and its like."""
        suspects = (*_ON_DEVICE, Held.TENSORS, Held.INPUT)
        if attr != "tolist":
            suspects = (*suspects, Held.UNKNOWN)
        if base in suspects and not node.args:
            self.find("copied-to-host", node, line)
        if attr == "cpu":
            return base if base is Held.MODULE else Held.CPU
        return Held.HOST

    def moved(self, node: ast.Call, attr: str, base: Value) -> Value:
        """Return what ``.to(...)`` gives."""
        where = keyword(node, "device")
        target = where.value if where is not None else (node.args[0] if node.args else None)
        if attr == "to" and (target is None or self.source.name(target).startswith("torch.")):
            return base  # to another type
        if attr == "to" and is_constant(target, "cpu"):
            return Held.CPU
        return Held.MASK if base is Held.MASK else Held.DEVICE

    def of_module(self, attr: str, every: Sequence[Value]) -> Value:
        if attr in ("parameters", "named_parameters", "buffers", "named_buffers", "state_dict"):
            return Held.TENSORS
        if attr in ("modules", "children", "named_modules", "named_children", "zero_grad"):
            return Held.UNKNOWN
        if attr in ("to", "cuda", "train", "eval", "half", "float", "double", "bfloat16", "apply"):
            return Held.MODULE
        if attr in ("requires_grad_", "share_memory", "compile", "load_state_dict"):
            return Held.MODULE
        return Held.DEVICE if any(v is not Held.HOST for v in every) else Held.UNKNOWN

    def of_tensor(self, node: ast.Call, attr: str, base: Value, every: Sequence[Value]) -> Value:
        line = end_line(node.func)
        if attr in ("values", "items"):
            return Held.TENSORS
        if attr in _DYNAMIC:
            self.find("data-dependent", node, line)
            return Held.DEVICE
        if attr == "repeat_interleave" and every and on_device(every[0]):
            self.find("data-dependent", node, line)
        if base is Held.INPUT:
            return Held.DEVICE if any(on_device(v) for v in every) else Held.INPUT
        if attr in _BOOLEAN:
            return Held.MASK
        return Held.DEVICE


def _parameters(
    function: Function, *, is_method: bool = True
) -> list[tuple[str, ast.expr | None]]:
    """Return the names of a function's parameters with their defaults, without ``self``."""
    named = function.args.posonlyargs + function.args.args
    defaults: list[ast.expr | None] = [None] * (len(named) - len(function.args.defaults))
    defaults += function.args.defaults
    pairs = [(item.arg, default) for item, default in zip(named, defaults, strict=True)]
    if is_method and pairs and pairs[0][0] in ("self", "cls", "ctx"):
        pairs = pairs[1:]
    kept = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return pairs + [(item.arg, default) for item, default in kept]


def _default(held: Held, default: ast.expr | None) -> Held:
    """Return what a parameter holds that nobody is seen to give."""
    if default is None:
        return held
    return Held.UNKNOWN if is_constant(default, None) else Held.HOST


def _guess(name: str) -> Held:
    """Guess from a name what a variable holds."""
    if _MODULES.search(name):
        return Held.MODULE
    return Held.LOADER if _LOADERS.search(name) else Held.UNKNOWN


def _is_text(node: ast.AST) -> bool:
    """Tell whether an expression is a string in the source."""
    while isinstance(node, ast.BinOp):
        node = node.left
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
