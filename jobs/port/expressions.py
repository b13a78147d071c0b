"""Rules for single expressions: devices, backends, dtypes, loaders, libraries, forks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jobs.port.names import Function, SourceFile, end_line, is_constant, keyword, last_name

RuleMatch = tuple[ast.AST, int, str]
"""Node, line, and name of the rule."""

_CUDA = re.compile(r"cuda(:(\d+|%[sd]|\{[^}]*\})?)?|torch\.cuda\.\w+")
_NCCL = re.compile(r"(.*[:,])?nccl(,.*)?")
_NCCL_VARIABLE = re.compile(r"(TORCH_)?NCCL_\w+")
_FLOAT16 = re.compile(r"fp16|float16|half|16-mixed|16-true")
_KERNEL = re.compile(
    r"flash_attention_[23]|paged_\w+|(adamw|adam|lion|sgd|ademamix)_(bnb_)?8bit|adamw_apex_fused"
    r"|adamw_torch_fused|adamw_8bit"
)
_TORCH_DTYPES = {
    "float16": "float16", "half": "float16", "HalfTensor": "float16",
    "float64": "float64", "double": "float64", "DoubleTensor": "float64",
    "complex128": "float64", "cdouble": "float64",
}  # fmt: skip
_LIBRARIES = re.compile(
    r"(apex|amp_C|flash_attn\w*|bitsandbytes|triton|xformers|deepspeed|pynvml|nvidia_smi|py3nvml"
    r"|cupy|nvidia|transformer_engine|numba\.cuda|torch\.utils\.cpp_extension|mamba_ssm"
    r"|causal_conv1d|unsloth|liger_kernel|torchao\.float8|faiss\.contrib\.torch_utils)(\.|$)"
)
_GRAPHS = frozenset({"graph", "CUDAGraph", "make_graphed_callables", "graph_pool_handle"})
_FAISS_GPU = frozenset({"StandardGpuResources", "index_cpu_to_gpu", "index_cpu_to_all_gpus"})
_OPTIMIZER = re.compile(r"Adam|SGD|Adagrad|RMSprop|optim", re.IGNORECASE)
_EVALUATION = re.compile(
    r"(^|_|\b)(val|valid|validation|validate|eval|evaluation|evaluate|evaluator|test|testing|dev"
    r"|infer|inference|predict|prediction|pred|holdout|heldout|query|gallery)(\d|_|\b|$)"
    r"|(val|valid|eval|test)_?(loader|set|data|dl|ds|iter|queue)|(Val|Eval|Test)[A-Z]\w*",
)
_TRAINING = re.compile(r"train|trn", re.IGNORECASE)


def is_evaluation(name: str) -> bool:
    """Return whether a name belongs to evaluation: ``val_loader``, ``evaluate``, ``test_step``."""
    return _EVALUATION.search(name) is not None and _TRAINING.search(name) is None


def expression_findings(source: SourceFile) -> Iterator[RuleMatch]:
    """Apply the rules to every expression of a file."""
    workers = _has_workers(source)
    for node in source.nodes:
        if node in source.annotations:
            continue
        match node:
            case ast.Constant(value=str(text)):
                yield from _check_string(source, node, text)
            case ast.JoinedStr(values=[ast.Constant(value=str(start)), *_]):
                if re.fullmatch(r"cuda:?", start) and not source.is_text(node):
                    yield node, node.lineno, "cuda-device"
            case ast.Attribute() | ast.Name():
                yield from _check_name(source, node)
            case ast.Import() | ast.ImportFrom():
                yield from _check_import(node)
            case ast.Call():
                yield from _check_call(source, node)
            case ast.keyword(arg=str(name)):
                yield from _check_setting(source, node, name, node.value)
            case ast.Dict():
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        yield from _check_setting(source, node, key.value, value, line=key.lineno)
            case ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value=str(name)))]):
                yield from _check_setting(source, node, name, node.value)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for decorator in node.decorator_list:
                    if source.name(decorator) == "torch.compile":
                        yield decorator, decorator.lineno, "inductor"
                yield from _check_defaults(node)
            case ast.ClassDef() if workers and _is_dataset(node):
                for item in node.body:
                    if isinstance(item, ast.FunctionDef) and item.name.startswith("__get"):
                        yield from _device_uses(source, item, "worker-device")


def _check_string(source: SourceFile, node: ast.Constant, text: str) -> Iterator[RuleMatch]:
    parent = source.parents.get(node)
    if len(text) > 60 or isinstance(parent, ast.FormattedValue | ast.JoinedStr):
        return
    is_key = isinstance(parent, ast.Subscript) or (
        isinstance(parent, ast.Dict) and any(key is node for key in parent.keys)
    )
    if text == "CUDA_VISIBLE_DEVICES" and not source.is_text(node):
        yield node, node.lineno, "visible-devices"
    elif _NCCL_VARIABLE.fullmatch(text) and _is_assigned(source, node):
        yield node, node.lineno, "nccl-variable"
    elif (is_key and ":" not in text) or source.is_text(node):
        return
    elif _CUDA.fullmatch(text):
        amp = source.called(_enclosing_call(source, node)).rpartition(".")[2]
        rule = {"autocast": "cuda-amp", "GradScaler": "grad-scaler"}.get(amp, "cuda-device")
        yield node, node.lineno, rule
    elif isinstance(parent, ast.Compare) or _in_comparison(source, node):
        return  # a string that is only compared has no effect
    elif _NCCL.fullmatch(text):
        yield node, node.lineno, "nccl"
    elif _FLOAT16.fullmatch(text):
        yield node, node.lineno, "float16"
    elif _KERNEL.fullmatch(text):
        yield node, node.lineno, "cuda-kernel"


def _in_comparison(source: SourceFile, node: ast.AST) -> bool:
    """Return whether a string is in a list used for membership tests."""
    parent = source.parents.get(node)
    return isinstance(parent, ast.Tuple | ast.List | ast.Set) and isinstance(
        source.parents.get(parent), ast.Compare
    )


def _enclosing_call(source: SourceFile, node: ast.AST) -> ast.Call | None:
    """Return the call to which a node is passed, possibly within a conditional expression."""
    for parent in source.above(node):
        if isinstance(parent, ast.Call):
            return parent
        if not isinstance(parent, ast.keyword | ast.IfExp):
            return None
    return None


def _is_assigned(source: SourceFile, node: ast.AST) -> bool:
    """Return whether a string names an environment variable that the program sets."""
    parent = source.parents.get(node)
    if isinstance(parent, ast.Subscript):
        return isinstance(parent.ctx, ast.Store)
    if isinstance(parent, ast.Call):
        return last_name(parent.func) in ("setdefault", "putenv")
    return isinstance(parent, ast.Dict)


def _check_name(source: SourceFile, node: ast.Attribute | ast.Name) -> Iterator[RuleMatch]:
    """Check a full dotted name, not its parts."""
    parent = source.parents.get(node)
    if isinstance(parent, ast.Attribute):
        return
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return
    name = source.name(node)
    if not name:
        return
    line = node.lineno
    parts = name.split(".")
    if name.startswith("torch.cuda.amp."):
        yield node, line, "grad-scaler" if parts[-1] == "GradScaler" else "cuda-amp"
    elif parts[-1] == "GradScaler" and isinstance(parent, ast.Call) and parent.func is node:
        yield node, line, "grad-scaler"
    elif name.startswith("torch.cuda.") and parts[2] in _GRAPHS:
        yield node, line, "cuda-graph"
    elif name.startswith("torch.cuda."):
        yield node, line, "cuda-available" if parts[2] == "is_available" else "cuda-call"
    elif name.startswith(("torch.backends.cuda.", "torch.backends.cudnn.")):
        yield node, line, "cudnn"
    elif parts[0] == "torch" and len(parts) == 2 and parts[1] in _TORCH_DTYPES:
        yield node, line, _TORCH_DTYPES[parts[1]]
    elif parts[0] == "faiss" and parts[-1] in _FAISS_GPU:
        yield node, line, "cuda-library"


def _check_import(node: ast.Import | ast.ImportFrom) -> Iterator[RuleMatch]:
    module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
    if isinstance(node, ast.ImportFrom) and node.level:
        return
    for item in node.names:
        name = f"{module}.{item.name}" if module else item.name
        if _LIBRARIES.match(name):
            yield node, item.lineno, "cuda-library"
        elif name.startswith("torch.cuda.amp"):
            yield node, item.lineno, "cuda-amp"
        elif name.endswith(".GradScaler"):
            yield node, item.lineno, "grad-scaler"


def _check_call(source: SourceFile, node: ast.Call) -> Iterator[RuleMatch]:
    name, last, line = source.name(node.func), last_name(node.func), end_line(node.func)
    if isinstance(node.func, ast.Attribute) and not name.startswith("torch.cuda"):
        if last == "cuda":
            yield node, line, "cuda-device"
        elif last == "pin_memory":
            yield node, line, "pin-memory"
        elif last in ("half", "double") and not node.args and not node.keywords:
            yield node, line, "float16" if last == "half" else "float64"
    if last in ("DistributedDataParallel", "DDP", "DataParallel"):
        if last == "DataParallel" and "apex" not in name:
            yield node, line, "data-parallel"
        for item in node.keywords:
            if item.arg in ("device_ids", "output_device") and not is_constant(item.value, None):
                yield item, item.value.lineno, "device-ids"
    if name == "torch.compile" or _compiles_module(node):
        backend = keyword(node, "backend")
        if backend is None or is_constant(backend.value, "inductor", "cudagraphs"):
            yield node, line, "inductor"
    yield from _check_loader(source, node, last, line)
    yield from _check_padding(source, node, last, line)
    yield from _check_forks(source, node, last, line)


def _compiles_module(node: ast.Call) -> bool:
    """Return whether a call is ``model.compile()``, but not Keras' method of that name."""
    func = node.func
    return (
        isinstance(func, ast.Attribute)
        and func.attr == "compile"
        and re.search(r"model|net|module|block|layer", ast.unparse(func.value)) is not None
        and not node.args
        and all(item.arg in ("mode", "dynamic", "fullgraph", "backend") for item in node.keywords)
    )


def _check_setting(
    source: SourceFile, node: ast.AST, name: str, value: ast.expr, *, line: int | None = None
) -> Iterator[RuleMatch]:
    """Check a setting: a keyword argument, or an entry of a dictionary."""
    if is_constant(value, False, None):
        return
    at = getattr(node, "lineno", value.lineno) if line is None else line
    shown = node if isinstance(node, ast.keyword) else ast.keyword(arg=name, value=value)
    can_be_true = not isinstance(value, ast.Constant) or value.value is True
    if name == "pin_memory" and can_be_true:
        yield shown, at, "pin-memory"
    elif (name == "fp16" and can_be_true) or (name == "precision" and is_constant(value, 16, "16")):
        yield shown, at, "float16"
    elif name in ("load_in_8bit", "load_in_4bit", "use_flash_attention_2") and can_be_true:
        yield shown, at, "cuda-kernel"
    elif name == "fused" and can_be_true:
        call = _enclosing_call(source, node)
        called = "" if call is None else source.name(call.func)
        if not isinstance(node, ast.keyword) or called == "dict" or _OPTIMIZER.search(called):
            yield shown, at, "cuda-kernel"


def _check_defaults(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[RuleMatch]:
    positional = node.args.posonlyargs + node.args.args
    optional = positional[len(positional) - len(node.args.defaults) :]
    defaults = zip(optional, node.args.defaults, strict=True)
    for argument, value in (
        *defaults,
        *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
    ):
        if argument.arg == "pin_memory" and is_constant(value, True):
            yield argument, argument.lineno, "pin-memory"


def _check_loader(source: SourceFile, node: ast.Call, last: str, line: int) -> Iterator[RuleMatch]:
    """Find training loaders whose last batch may be smaller."""
    if not last.endswith("DataLoader") or last in source.classes:
        return
    arguments = {item.arg: item.value for item in node.keywords if item.arg}
    for item in node.keywords:
        if item.arg is None and isinstance(item.value, ast.Name):
            arguments |= _kwargs_entries(source, item.value.id)
    size = arguments.get("batch_size", node.args[1] if len(node.args) > 1 else None)
    if is_constant(size, 1, None) or (size is None and None not in {i.arg for i in node.keywords}):
        return  # single samples, or no batching
    drops = arguments.get("drop_last")
    if drops is not None and not is_constant(drops, False):
        return
    if arguments.keys() & {"batch_sampler"} or not _is_training_loader(source, node, arguments):
        return
    yield node, line, "last-batch"


def _kwargs_entries(source: SourceFile, name: str) -> dict[str, ast.expr]:
    """Collect all entries of a dictionary of keyword arguments."""
    entries: dict[str, ast.expr] = {}
    for node in source.nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                for part in ast.walk(value):
                    entries |= _pairs(part)
            case ast.Assign(
                targets=[ast.Subscript(value=ast.Name(id=target), slice=ast.Constant(value=key))]
            ) if target == name:
                entries[str(key)] = node.value
            case ast.Call(func=ast.Attribute(value=ast.Name(id=target), attr="update")) if (
                target == name
            ):
                for part in (node, *node.args):
                    entries |= _pairs(part)
    return entries


def _pairs(node: ast.AST) -> dict[str, ast.expr]:
    """Return the entries of a dictionary, or the keyword arguments of a call."""
    if isinstance(node, ast.Call):
        return {item.arg: item.value for item in node.keywords if item.arg}
    if not isinstance(node, ast.Dict):
        return {}
    pairs = zip(node.keys, node.values, strict=True)
    return {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}


def _is_training_loader(source: SourceFile, node: ast.Call, arguments: dict[str, ast.expr]) -> bool:
    """Return whether a loader is for training, judging by its variable, dataset and function."""
    data = arguments.get("dataset", node.args[0] if node.args else None)
    targets, function = list[ast.expr](), ""
    for parent in source.above(node):
        if isinstance(parent, ast.Assign):
            targets = parent.targets
        elif isinstance(parent, ast.AnnAssign):
            targets = [parent.target]
        elif isinstance(parent, ast.DictComp):
            return True  # a loader for each split
        elif isinstance(parent, Function):
            function = parent.name
            break
    if targets and _is_used_only_for_length(source, targets[0]):
        return False
    if is_evaluation(function) and not _TRAINING.search(" ".join(map(ast.unparse, targets))):
        return False
    names = [*map(ast.unparse, targets), *([] if data is None else [ast.unparse(data)]), function]
    for name in names:
        if _TRAINING.search(name):
            return True
        if is_evaluation(name):
            return False
    return not is_constant(arguments.get("shuffle"), False) or "sampler" in arguments


def _is_used_only_for_length(source: SourceFile, target: ast.expr) -> bool:
    """Return whether a variable is used only for its length."""
    if not isinstance(target, ast.Name):
        return False
    uses = [
        source.called(source.parents.get(node)) == "len"
        for node in source.nodes
        if isinstance(node, ast.Name) and node.id == target.id and isinstance(node.ctx, ast.Load)
    ]
    return bool(uses) and all(uses)


def _check_padding(source: SourceFile, node: ast.Call, last: str, line: int) -> Iterator[RuleMatch]:
    padding, multiple = keyword(node, "padding"), keyword(node, "pad_to_multiple_of")
    if any(isinstance(up, Function) and is_evaluation(up.name) for up in source.above(node)):
        return
    if last in ("DataCollatorWithPadding", "DataCollatorForSeq2Seq"):
        is_fixed = padding is not None and is_constant(padding.value, "max_length", False)
        is_multiple = multiple is not None and not is_constant(multiple.value, None)
        if not is_fixed and not is_multiple and keyword(node, "max_length") is None:
            yield node, line, "pad-to-longest"
    elif padding is not None and is_constant(padding.value, True, "longest"):
        # A variable may be None, depending on the run.
        size = None if multiple is None else multiple.value
        is_multiple = isinstance(size, ast.Constant) and size.value is not None
        if not is_multiple and not _is_single_text(source, node):
            yield padding, padding.value.lineno, "pad-to-longest"
    elif last == "pad_sequence":
        yield node, line, "pad-to-longest"


def _is_single_text(source: SourceFile, node: ast.Call) -> bool:
    """Return whether a tokenizer receives one text at a time, which needs no padding."""
    if not node.args or not isinstance(node.args[0], ast.Name):
        return False
    targets: list[ast.expr] = []
    for parent in source.above(node):
        if isinstance(parent, ast.ListComp | ast.GeneratorExp):
            targets += [generator.target for generator in parent.generators]
    return any(isinstance(item, ast.Name) and item.id == node.args[0].id for item in targets)


def _check_forks(source: SourceFile, node: ast.Call, last: str, line: int) -> Iterator[RuleMatch]:
    first = node.args[0] if node.args else None
    if last in ("set_start_method", "get_context") and is_constant(first, "fork"):
        yield node, line, "forked"
    elif last in ("Process", "Pool") and not _uses_spawn(source):
        target = keyword(node, "target", "initializer")
        function = target and source.functions.get(last_name(target.value))
        if function and any(_device_uses(source, function, "forked")):
            yield node, line, "forked"
    elif last.endswith("DataLoader") and _starts_workers(node):
        collate = keyword(node, "collate_fn")
        function = collate and source.functions.get(last_name(collate.value))
        if function:
            yield from _device_uses(source, function, "worker-device")


def _uses_spawn(source: SourceFile) -> bool:
    return any(
        isinstance(node, ast.Call)
        and last_name(node.func) in ("set_start_method", "get_context")
        and node.args
        and is_constant(node.args[0], "spawn", "forkserver")
        for node in source.nodes
    )


def _device_uses(source: SourceFile, function: ast.AST, rule: str) -> Iterator[RuleMatch]:
    """Find calls in a function that move a tensor to a device, or create one there."""
    for node in ast.walk(function):
        if not isinstance(node, ast.Call):
            continue
        last, device = last_name(node.func), keyword(node, "device")
        if device is not None and _is_device(source, device.value):
            yield node, device.value.lineno, rule
        if (last == "cuda" and isinstance(node.func, ast.Attribute)) or (
            last == "to" and node.args and _is_device(source, node.args[0])
        ):
            yield node, end_line(node.func), rule


def _is_device(source: SourceFile, node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value.startswith("cuda")
    name = source.name(node)
    return "device" in name.lower() or name.startswith("torch.cuda")


def _has_workers(source: SourceFile) -> bool:
    return any(isinstance(node, ast.Call) and _starts_workers(node) for node in source.nodes)


def _starts_workers(node: ast.Call) -> bool:
    if not last_name(node.func).endswith("DataLoader"):
        return False
    workers = keyword(node, "num_workers")
    return workers is not None and not is_constant(workers.value, 0, None)


def _is_dataset(node: ast.ClassDef) -> bool:
    return any("Dataset" in last_name(base) for base in node.bases)
