"""Results of calls, and calls that copy from the device or create data-dependent shapes."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence

from jobs.port.expressions import is_evaluation
from jobs.port.index import parameters
from jobs.port.names import Function, SourceFile, end_line, is_constant, keyword, last_name
from jobs.port.values import (
    LOSS,
    MODULES,
    ON_DEVICE,
    Content,
    Env,
    ProgramObject,
    Record,
    Value,
    element,
    flattened,
    guess,
    on_device,
)
from jobs.port.walk import ITERATION_WRAPPERS, Walk

_HOST_METHODS = frozenset(
    {"size", "dim", "numel", "nelement", "stride", "element_size", "get_device", "is_contiguous",
     "ndimension", "is_floating_point", "data_ptr", "keys", "storage_offset", "type"}
)  # fmt: skip
_DYNAMIC = frozenset({"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive"})
_TENSOR_ONLY_METHODS = frozenset({"nonzero", "masked_select", "unique_consecutive"})
_BOOLEAN = frozenset(
    {"isnan", "isinf", "isfinite", "eq", "ne", "lt", "gt", "le", "ge", "bool", "logical_and",
     "logical_or", "logical_not", "logical_xor", "any", "all", "equal", "allclose", "isclose",
     "isin", "isneginf", "isposinf", "greater", "less", "not_equal"}
)  # fmt: skip
_CREATION_FUNCTIONS = frozenset(
    {"tensor", "zeros", "ones", "rand", "randn", "randint", "randperm", "full", "arange", "empty",
     "eye", "linspace", "as_tensor", "from_numpy", "normal", "Tensor", "FloatTensor", "LongTensor",
     "multinomial", "tril", "triu"}
)  # fmt: skip
_MODULE_METHODS = frozenset(
    {"to", "cuda", "train", "eval", "half", "float", "double", "bfloat16", "apply",
     "requires_grad_", "share_memory", "compile", "load_state_dict"}
)  # fmt: skip
_LOG_METHODS = frozenset({"debug", "info", "warning", "warn", "error", "critical", "exception"})
_HOST_NAMES = re.compile(
    r"numpy|item|scalar|batch_decode|to_?list|2np|_score$|^compute_metric|^str|tensor2im|to_cpu|tolist|np$"
)
_MOVES = re.compile(r"device|cuda|gpu|move|prepare_batch|prefetch", re.IGNORECASE)
_BUILDERS = re.compile(
    r"(get|build|make|create|load|find|init|setup|save|wrap|select|define|update|set|count|log)_"
)
"""Functions that handle models, but are not models."""
_LIBRARIES_ON_HOST = re.compile(
    r"(numpy|np|sklearn|scipy|pandas|random|time|os|sys|json|wandb|math|itertools|datetime|PIL|cv2"
    r"|matplotlib|plt|copy|re|pathlib|shutil|logging|tqdm|evaluate|torchvision\.utils|gym|gymnasium"
    r")(\.|$)"
)


class CallWalk(Walk):
    """Interpreter that also evaluates calls to PyTorch, Python and the program's own functions."""

    def called(self, node: ast.Call) -> Value:
        """Evaluate a call, and report findings in it."""
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
            return Content.HOST
        if isinstance(node.func, ast.Attribute):
            return self.method(node, name, every)
        if _LIBRARIES_ON_HOST.match(name):
            return Content.HOST
        if _BUILDERS.match(last):
            return guess(last) if guess(last) is Content.MODULE else self.unknown(last, every)
        held = self.value(node.func)
        return Content.DEVICE if held is Content.MODULE else self.unknown(last, every)

    def unknown(self, last: str, every: Sequence[Value]) -> Value:
        """Guess the result of an unknown call: with tensor arguments, probably a tensor."""
        if _HOST_NAMES.search(last):
            return Content.HOST
        if last[:1].isupper():
            return Content.MODULE if MODULES.search(last.lower()) else Content.UNKNOWN
        if any(on_device(value) for value in every):
            return Content.DEVICE if LOSS.search(last) else Content.INPUT
        if Content.CPU in every:
            return Content.DEVICE if _MOVES.search(last) else Content.UNKNOWN
        return Content.INPUT if Content.INPUT in every else Content.UNKNOWN

    def own(
        self, node: ast.Call, values: Sequence[Value], given: Mapping[str | None, Value]
    ) -> Value | None:
        """Interpret a call to the program's own function, method or class; None for any other."""
        func, whole = node.func, self.whole
        if isinstance(func, ast.Name) and func.id in self.local:
            function = self.local[func.id]
            return self.walk(
                self.source, function, values, given, class_name=self.class_name, around=self.env
            )
        if (found := whole.index.function(self.source, func)) is not None:
            return self.walk(*found, values, given)
        is_variable = isinstance(func, ast.Name) and func.id in self.env
        if not is_variable and (class_name := whole.index.class_named(self.source, func)):
            constructor = whole.index.method(class_name, "__init__")
            if constructor is not None:
                source, function, _ = constructor
                self.walk(source, function, values, given, class_name=class_name, is_method=True)
            return ProgramObject(class_name)
        if isinstance(func, ast.Name):
            held = self.named(func.id)
            return self.forward(held, values, given) if isinstance(held, ProgramObject) else None
        if not isinstance(func, ast.Attribute):
            return None
        if isinstance(func.value, ast.Name) and func.value.id == "self" and self.class_name:
            found_method = whole.index.method(self.class_name, func.attr)
        elif isinstance(func.value, ast.Call) and last_name(func.value.func) == "super":
            return None
        else:
            base = self.value(func.value)
            if isinstance(base, ProgramObject):
                found_method = whole.index.method(base.class_name, func.attr)
                if found_method is None and isinstance(self.value(func), ProgramObject):
                    return self.forward(self.value(func), values, given)
            elif base is Content.UNKNOWN and not func.attr.startswith("_"):
                known = self.source.name(func).partition(".")[0]
                is_imported = known in self.source.aliases.values()
                found_method = None if is_imported else whole.index.only_method(func.attr)
            else:
                return None
        if found_method is None:
            held = self.value(func)
            return self.forward(held, values, given) if isinstance(held, ProgramObject) else None
        source, function, class_name = found_method
        static = any(last_name(item) == "staticmethod" for item in function.decorator_list)
        return self.walk(
            source, function, values, given, class_name=class_name, is_method=not static
        )

    def forward(
        self, held: Value, values: Sequence[Value], given: Mapping[str | None, Value]
    ) -> Value | None:
        """Interpret a call to an object of the program: its ``forward`` or else ``__call__``."""
        assert isinstance(held, ProgramObject)
        for name in ("forward", "__call__"):
            if (found := self.whole.index.method(held.class_name, name)) is not None:
                source, function, class_name = found
                result = self.walk(
                    source, function, values, given, class_name=class_name, is_method=True
                )
                is_module = self.whole.index.is_module(held.class_name)
                return Content.DEVICE if is_module and result is Content.UNKNOWN else result
        return Content.DEVICE if self.whole.index.is_module(held.class_name) else None

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
        names = [name for name, _ in parameters(function, is_method=is_method)]
        arguments: dict[str, Value] = dict(zip(names, values, strict=False))
        arguments |= {name: value for name, value in given.items() if name in names and name}
        if function.args.kwarg is not None:
            rest = [value for name, value in given.items() if name not in names]
            arguments[function.args.kwarg.arg] = self.collected(rest)
        if is_method and function.name == "forward":
            # Assume that missing arguments are optional and default to None.
            missing = [name for name in names if name not in arguments]
            arguments |= {name: Content.HOST for name in missing}
        arguments = {
            name: guess(name) if value is Content.UNKNOWN else value
            for name, value in arguments.items()
        }
        is_step = self.is_step and not is_evaluation(function.name)
        return self.whole.call(
            source,
            function,
            arguments,
            is_step=is_step,
            class_name=class_name,
            depth=self.depth,
            around=around,
        )

    def builtin(self, node: ast.Call, last: str, every: Sequence[Value]) -> Value | None:
        """Return the result of a Python builtin; None for any other function."""
        if last in ("float", "int", "bool", "complex"):
            if any(value in ON_DEVICE for value in every):
                self.find("copied-to-host", node, node.lineno)
            return Content.HOST
        if last in ("str", "repr") or "print" in last:
            for argument in node.args:
                self.formatted(argument)
            return Content.HOST
        if last in ("len", "isinstance", "type", "id", "hasattr", "range", "callable", "dir"):
            return Content.HOST
        if last in ("sum", "max", "min", "abs", "round", "pow"):
            return self.operation(*[element(value) for value in every]) if every else Content.HOST
        if last == "next":
            return element(every[0]) if every else Content.UNKNOWN
        if last == "dict":
            named = [item.arg for item in node.keywords]
            if None in named or node.args:
                return self.collected(every)
            return Record(tuple(zip(map(str, named), every, strict=True)))
        if last in ITERATION_WRAPPERS or last in ("zip", "enumerate"):
            return every[0] if every else Content.HOST
        return None

    def torch(self, node: ast.Call, name: str, last: str, every: Sequence[Value]) -> Value:
        """Return the result of a function or class of PyTorch."""
        device = keyword(node, "device")
        if last in _DYNAMIC or (last == "where" and len(node.args) == 1 and not node.keywords):
            if Content.CPU not in every and Content.HOST not in every[:1]:
                self.find("data-dependent", node, end_line(node.func))
            return every[0] if every and Content.CPU in every else Content.DEVICE
        if last == "repeat_interleave" and len(every) > 1 and on_device(every[1]):
            self.find("data-dependent", node, end_line(node.func))
        if last in ("clip_grad_norm_", "grad", "parameters_to_vector", "get_total_norm"):
            return Content.DEVICE
        if last in ("is_tensor", "numel", "device", "save", "is_grad_enabled", "manual_seed"):
            return Content.HOST
        if name.startswith(("torch.optim", "torch.distributed", "torch.cuda", "torch.backends")):
            is_wrapper = last in ("FullyShardedDataParallel", "fully_shard")
            return Content.MODULE if is_wrapper else Content.UNKNOWN
        if last == "DataLoader":
            return Content.LOADER
        if last in ("DistributedDataParallel", "DataParallel", "compile", "script"):
            return next((v for v in every if isinstance(v, ProgramObject)), Content.MODULE)
        if last[:1].isupper() and name.startswith("torch.nn"):
            return Content.DEVICE if last == "Parameter" else Content.MODULE
        if device is not None and not is_constant(device.value, "cpu", None):
            return Content.DEVICE
        if any(on_device(value) for value in every):
            return Content.MASK if last in _BOOLEAN else Content.DEVICE
        if last in _CREATION_FUNCTIONS:
            return Content.DEVICE if self.whole.creates_on_device else Content.CPU
        for held in (Content.INPUT, Content.CPU):
            if held in every:
                return held
        return Content.UNKNOWN

    def method(self, node: ast.Call, name: str, every: Sequence[Value]) -> Value:
        """Return the result of a method or of a library's function."""
        func = node.func
        assert isinstance(func, ast.Attribute)
        attr, line = func.attr, end_line(func)
        if attr == "format":
            for argument in (*node.args, *[item.value for item in node.keywords]):
                self.formatted(argument)
            return Content.HOST
        if attr in _LOG_METHODS or "print" in attr:
            for argument in node.args:
                self.formatted(argument)
            return Content.HOST
        if re.fullmatch(r"(np|numpy)\.(where|nonzero|argwhere|flatnonzero)", name):
            return Content.INDICES if len(node.args) == 1 else Content.HOST
        if _LIBRARIES_ON_HOST.match(name):
            return Content.HOST
        if attr == "decode" and re.search(r"token|processor", name):
            return Content.HOST
        base = self.value(func.value)
        if isinstance(base, ProgramObject):
            is_module = self.whole.index.is_module(base.class_name)
            if attr in ("to", "cuda", "train", "eval", "half", "double", "float", "bfloat16"):
                return base
            base = Content.MODULE if is_module else Content.UNKNOWN
        elif isinstance(base, Record) and attr == "get" and node.args:
            key = node.args[0]
            name = str(key.value) if isinstance(key, ast.Constant) else ""
            return dict(base.fields).get(name, Content.UNKNOWN)
        base = flattened(base)
        if isinstance(base, ProgramObject):
            base = Content.UNKNOWN
        if attr == "prepare" and every:
            parts = tuple(Content.DEVICE_LOADER if v is Content.LOADER else v for v in every)
            return parts[0] if len(parts) == 1 else parts
        if attr in ("setup_dataloaders", "prepare_data_loader"):
            return Content.DEVICE_LOADER
        if attr in ("item", "cpu", "numpy", "tolist"):
            return self.copied(node, attr, base, line)
        if attr == "clip_grad_norm_":
            return Content.DEVICE
        if base is Content.MODULE:
            return self.of_module(attr, every)
        if attr in ("to", "cuda"):
            return self.moved(node, attr, base)
        if attr in ("append", "extend", "add", "insert", "update") and on_device(tuple(every)):
            if base in (Content.HOST, Content.UNKNOWN, Content.TENSORS):
                self.env[ast.unparse(func.value)] = Content.TENSORS
            return Content.HOST
        if attr in _HOST_METHODS and not (attr == "type" and node.args):
            return Content.HOST
        if base in (*ON_DEVICE, Content.TENSORS, Content.INPUT):
            return self.of_tensor(node, attr, base, every)
        if attr in ("state_dict", "parameters", "named_parameters"):
            return Content.TENSORS
        if base is Content.UNKNOWN and attr in _TENSOR_ONLY_METHODS:
            self.find("data-dependent", node, line)
            return Content.DEVICE
        if base is Content.CPU:
            return Content.DEVICE if any(on_device(v) for v in every) else Content.CPU
        if base is Content.HOST:
            return Content.HOST
        if base in (Content.LOADER, Content.DEVICE_LOADER):
            return base if attr == "__iter__" else Content.UNKNOWN
        if attr in ("step", "reset", "sample"):
            return Content.UNKNOWN
        return self.unknown(attr, every)

    def copied(self, node: ast.Call, attr: str, base: Value, line: int) -> Value:
        """Report ``.item()`` and similar calls."""
        is_tensor = base in (*ON_DEVICE, Content.TENSORS, Content.INPUT)
        # Unknown values mostly come from models, but lists of arrays are common too.
        if not node.args and (is_tensor or (base is Content.UNKNOWN and attr != "tolist")):
            self.find("copied-to-host", node, line)
        if attr == "cpu":
            return base if base is Content.MODULE else Content.CPU
        return Content.HOST

    def moved(self, node: ast.Call, attr: str, base: Value) -> Value:
        """Return the result of ``.to(...)`` or ``.cuda(...)``."""
        where = keyword(node, "device")
        target = where.value if where is not None else (node.args[0] if node.args else None)
        if attr == "to" and (target is None or self.source.name(target).startswith("torch.")):
            return base  # only a dtype
        if attr == "to" and is_constant(target, "cpu"):
            return Content.CPU
        return Content.MASK if base is Content.MASK else Content.DEVICE

    def of_module(self, attr: str, every: Sequence[Value]) -> Value:
        """Return the result of a method of a model."""
        if attr in ("parameters", "named_parameters", "buffers", "named_buffers", "state_dict"):
            return Content.TENSORS
        if attr in ("modules", "children", "named_modules", "named_children", "zero_grad"):
            return Content.UNKNOWN
        if attr in _MODULE_METHODS:
            return Content.MODULE
        return Content.DEVICE if any(v is not Content.HOST for v in every) else Content.UNKNOWN

    def of_tensor(self, node: ast.Call, attr: str, base: Value, every: Sequence[Value]) -> Value:
        """Return the result of a method of a tensor."""
        line = end_line(node.func)
        if attr in ("values", "items"):
            return Content.TENSORS
        if attr in _DYNAMIC:
            self.find("data-dependent", node, line)
            return Content.DEVICE
        if attr == "repeat_interleave" and every and on_device(every[0]):
            self.find("data-dependent", node, line)
        if base is Content.INPUT:
            return Content.DEVICE if any(on_device(v) for v in every) else Content.INPUT
        if attr in _BOOLEAN:
            return Content.MASK
        return Content.DEVICE
