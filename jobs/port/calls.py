"""What calls give, and which of them copy from the device or make shapes that depend on data."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence

from jobs.port.expressions import is_evaluation
from jobs.port.index import parameters
from jobs.port.names import Function, Source, end_line, is_constant, keyword, last_name
from jobs.port.values import (
    LOSS,
    MODULES,
    ON_DEVICE,
    Env,
    Held,
    Instance,
    Record,
    Value,
    element,
    flattened,
    guess,
    on_device,
)
from jobs.port.walk import PASSED_ON, Walk

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
_LOGS = frozenset({"debug", "info", "warning", "warn", "error", "critical", "exception"})
_HOST_NAMES = re.compile(
    r"numpy|item|scalar|batch_decode|to_?list|2np|_score$|^compute_metric|^str|tensor2im|to_cpu|tolist|np$"
)
_MOVES = re.compile(r"device|cuda|gpu|move|prepare_batch|prefetch", re.IGNORECASE)
_BUILDERS = re.compile(
    r"(get|build|make|create|load|find|init|setup|save|wrap|select|define|update|set|count|log)_"
)
"""Functions about a model, which are none themselves."""
_LIBRARIES_ON_HOST = re.compile(
    r"(numpy|np|sklearn|scipy|pandas|random|time|os|sys|json|wandb|math|itertools|datetime|PIL|cv2"
    r"|matplotlib|plt|copy|re|pathlib|shutil|logging|tqdm|evaluate|torchvision\.utils|gym|gymnasium"
    r")(\.|$)"
)


class CallWalk(Walk):
    """A walk that knows the calls of PyTorch, of Python, and of the program itself."""

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
            if any(value in ON_DEVICE for value in every):
                self.find("copied-to-host", node, node.lineno)
            return Held.HOST
        if isinstance(node.func, ast.Attribute):
            return self.method(node, name, every)
        if _LIBRARIES_ON_HOST.match(name):
            return Held.HOST
        if _BUILDERS.match(last):
            return guess(last) if guess(last) is Held.MODULE else self.unknown(last, every)
        held = self.value(node.func)
        return Held.DEVICE if held is Held.MODULE else self.unknown(last, every)

    def unknown(self, last: str, every: Sequence[Value]) -> Value:
        """Return what a call of something unknown gives: of tensors, probably a tensor."""
        if _HOST_NAMES.search(last):
            return Held.HOST
        if last[:1].isupper():
            return Held.MODULE if MODULES.search(last.lower()) else Held.UNKNOWN
        if any(on_device(value) for value in every):
            return Held.DEVICE if LOSS.search(last) else Held.INPUT
        if Held.CPU in every:
            return Held.DEVICE if _MOVES.search(last) else Held.UNKNOWN
        return Held.INPUT if Held.INPUT in every else Held.UNKNOWN

    def own(
        self, node: ast.Call, values: Sequence[Value], given: Mapping[str | None, Value]
    ) -> Value | None:
        """Walk through a function, method or class of the program; None if it is none."""
        func, whole = node.func, self.whole
        if isinstance(func, ast.Name) and func.id in self.local:
            function = self.local[func.id]
            return self.walk(self.source, function, values, given, of=self.of, around=self.env)
        if (found := whole.index.function(self.source, func)) is not None:
            return self.walk(*found, values, given)
        is_variable = isinstance(func, ast.Name) and func.id in self.env
        if not is_variable and (of := whole.index.class_named(self.source, func)):
            made = whole.index.method(of, "__init__")
            if made is not None:
                source, function, _ = made
                self.walk(source, function, values, given, of=of, is_method=True)
            return Instance(of)
        if isinstance(func, ast.Name):
            held = self.named(func.id)
            return self.forward(held, values, given) if isinstance(held, Instance) else None
        if not isinstance(func, ast.Attribute):
            return None
        if isinstance(func.value, ast.Name) and func.value.id == "self" and self.of:
            found_method = whole.index.method(self.of, func.attr)
        elif isinstance(func.value, ast.Call) and last_name(func.value.func) == "super":
            return None
        else:
            base = self.value(func.value)
            if isinstance(base, Instance):
                found_method = whole.index.method(base.of, func.attr)
                if found_method is None and isinstance(self.value(func), Instance):
                    return self.forward(self.value(func), values, given)
            elif base is Held.UNKNOWN and not func.attr.startswith("_"):
                known = self.source.name(func).partition(".")[0]
                is_imported = known in self.source.aliases.values()
                found_method = None if is_imported else whole.index.only_method(func.attr)
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
            if (found := self.whole.index.method(held.of, name)) is not None:
                source, function, of = found
                result = self.walk(source, function, values, given, of=of, is_method=True)
                is_module = self.whole.index.is_module(held.of)
                return Held.DEVICE if is_module and result is Held.UNKNOWN else result
        return Held.DEVICE if self.whole.index.is_module(held.of) else None

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
        names = [name for name, _ in parameters(function, is_method=is_method)]
        arguments: dict[str, Value] = dict(zip(names, values, strict=False))
        arguments |= {name: value for name, value in given.items() if name in names and name}
        if function.args.kwarg is not None:
            rest = [value for name, value in given.items() if name not in names]
            arguments[function.args.kwarg.arg] = self.collected(rest)
        if is_method and function.name == "forward":
            # Optional arguments that are not given are None.
            missing = [name for name in names if name not in arguments]
            arguments |= {name: Held.HOST for name in missing}
        arguments = {
            name: guess(name) if value is Held.UNKNOWN else value
            for name, value in arguments.items()
        }
        is_step = self.is_step and not is_evaluation(function.name)
        return self.whole.call(
            source, function, arguments, is_step=is_step, of=of, depth=self.depth, around=around
        )

    def builtin(self, node: ast.Call, last: str, every: Sequence[Value]) -> Value | None:
        """Return what a function of Python's own gives; None for any other."""
        if last in ("float", "int", "bool", "complex"):
            if any(value in ON_DEVICE for value in every):
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
        if last in PASSED_ON or last in ("zip", "enumerate"):
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
            is_module = self.whole.index.is_module(base.of)
            if attr in ("to", "cuda", "train", "eval", "half", "double", "float", "bfloat16"):
                return base
            base = Held.MODULE if is_module else Held.UNKNOWN
        elif isinstance(base, Record) and attr == "get" and node.args:
            key = node.args[0]
            name = str(key.value) if isinstance(key, ast.Constant) else ""
            return dict(base.fields).get(name, Held.UNKNOWN)
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
        if base in (*ON_DEVICE, Held.TENSORS, Held.INPUT):
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
        is_tensor = base in (*ON_DEVICE, Held.TENSORS, Held.INPUT)
        # What is unknown has most often come from a model; lists of arrays are frequent, too.
        if not node.args and (is_tensor or (base is Held.UNKNOWN and attr != "tolist")):
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
