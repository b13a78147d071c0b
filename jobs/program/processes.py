"""Warnings about programs that start their own ranks, or do not share work among processes.

The launcher starts one process per NeuronCore, or ``--processes-per-node`` processes. A program
that starts its own ranks waits for peers forever: they inherit ``TORCHELASTIC_USE_AGENT_STORE``, so
none of them listens at the address that the program chose (``_create_c10d_store`` in
torch/distributed/rendezvous.py). A program that never reads its rank does the same work in each
process.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from jobs.program.grammar import parse_source

_SPAWNERS = frozenset(
    {
        "torch.multiprocessing.spawn",
        "torch.multiprocessing.start_processes",
        "torch_xla.distributed.xla_multiprocessing.spawn",
        "accelerate.notebook_launcher",
        "accelerate.debug_launcher",
        "accelerate.launchers.notebook_launcher",
        "accelerate.launchers.debug_launcher",
        "torch.distributed.launcher.elastic_launch",
        "torch.distributed.launcher.api.elastic_launch",
    }
)
_USUAL_NAMES: Mapping[str, str] = {
    "mp": "torch.multiprocessing",
    "xmp": "torch_xla.distributed.xla_multiprocessing",
    "notebook_launcher": "accelerate.notebook_launcher",
    "debug_launcher": "accelerate.debug_launcher",
}
"""Common names, for star imports and imports inside functions."""
_COMMANDS = re.compile(
    r"(?:^|[;&|]\s*|(?:^|\s)-m\s+)(?:\w+=\S*\s+)*(?:\S*/)?"
    r"(torchrun|accelerate\s+launch|deepspeed|torch\.distributed\.(?:run|launch)"
    r"|accelerate\.commands\.launch)(?=\s|$)"
)
"""Launchers as the first word of a command or after -m, but not as an argument of pip."""
_PROCESS_CALLS = re.compile(
    r"run|call|check_call|check_output|getoutput|Popen|system|popen|exec[lv]p?e?|posix_spawnp?"
    r"|create_subprocess_(?:exec|shell)"
)
_TORCHRUN_VARIABLES = frozenset({"MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE"})
_TORCHRUN_CHECKS = frozenset({"getenv", "is_torchelastic_launched"})
_RANK_WORDS = re.compile(r"(?:^|_)rank(?:$|_)|world", re.IGNORECASE)
_DISTRIBUTED = re.compile(
    rb"rank|world_?size|process_?group|process_index|process_count|distribut|accelerat|trainer"
    rb"|lightning|fabric|deepspeed|torch_xla|neuronx|optimum|composer|ignite|horovod|megatron"
    rb"|colossalai|torchtune|torchtitan|litgpt|axolotl|nanotron|fairseq|mmengine|detectron2"
    rb"|import ray|from ray",
    re.IGNORECASE,
)
"""Words in code that is aware of other processes, or uses a library that is."""
_SET = (
    "torchrun has already started the processes of each node and set RANK, WORLD_SIZE, "
    "MASTER_ADDR and MASTER_PORT"
)


def process_warnings(
    contents: Mapping[str, bytes], file: str, *, on_node: int = 0
) -> Iterator[str]:
    """Warn about code that conflicts with the processes started by the launcher.

    ``contents`` are the program's Python files, ``file`` is the file that runs, and ``on_node`` is
    the requested number of processes per node; 0 means one per NeuronCore.
    """
    for path in sorted(contents):
        try:
            tree = parse_source(path, contents[path])
        except (SyntaxError, ValueError):
            continue  # already refused, not imported, or for another Python version
        for line, remark in _File(tree).remarks(is_alone=on_node == 1):
            yield f"{path}, line {line}: {remark}"
    if on_node != 1 and not any(map(_DISTRIBUTED.search, contents.values())):
        processes = f"{on_node} processes" if on_node else "one process per NeuronCore"
        yield (
            f"{file}: nothing reads a rank or joins a process group, so {processes} would do the "
            "same work and write the same files; --processes-per-node 1 runs one on each node, and "
            "with --nodes 1 only one in total"
        )


class _File:
    """One file of a program: its imported names, and its AST nodes with their guards."""

    def __init__(self, tree: ast.Module) -> None:
        self._names = dict(_USUAL_NAMES)
        self._texts: dict[str, list[str]] = {}
        self._nodes: list[tuple[ast.AST, bool]] = []
        self._visit(tree)

    def remarks(self, *, is_alone: bool) -> Iterator[tuple[int, str]]:
        """Yield line numbers and warnings; the only process of a node may start its own ranks."""
        for node, is_guarded in self._nodes:
            match node:
                case ast.Call(lineno=line) if (what := self._describe_spawn(node)) is not None:
                    yield line, f"{what}; {_SET}, so call the training function directly"
                case ast.Call(lineno=line) if (what := self._find_launcher(node)) is not None:
                    starts_ranks = what in ("torchrun", "torch.distributed.run")
                    if is_alone and starts_ranks:
                        continue
                    # Other launchers find RANK and WORLD_SIZE set, and act as a rank.
                    remedy = ", or use --processes-per-node 1" if starts_ranks else ""
                    yield (
                        line,
                        f"starts {what} in the program; {_SET}, so call the training function "
                        f"directly{remedy}",
                    )
                case ast.Call(lineno=line) if (url := self._address(node)) is not None:
                    yield (
                        line,
                        f"connects to {url}, where no process listens; {_SET}, so omit init_method",
                    )
                case ast.stmt(lineno=line) | ast.Call(lineno=line) if not is_guarded:
                    for name in _assigned_variables(node):
                        yield line, f"assigns {name}; {_SET}, so do not change {name}"

    def _visit(self, tree: ast.Module) -> None:
        # Not recursive: long chains of calls or elif are deeply nested.
        waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
        while waiting:
            node, is_guarded = waiting.pop()
            self._nodes.append((node, is_guarded))
            match node:
                case ast.Import(names=names):
                    self._names |= {x.asname or x.name: x.name for x in names if x.asname}
                case ast.ImportFrom(module=str(module), names=names):
                    self._names |= {x.asname or x.name: f"{module}.{x.name}" for x in names}
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._texts[name] = [*self._texts.get(name, []), *_texts(value)]
                case ast.If(test=test) | ast.IfExp(test=test):
                    is_guarded = is_guarded or _checks_environment(test)
                case ast.ExceptHandler(type=ast.Name(id="KeyError")):
                    is_guarded = True
            children = reversed(list(ast.iter_child_nodes(node)))  # the first is visited next
            waiting += [(child, is_guarded) for child in children]

    def _dotted_name(self, node: ast.AST) -> str:
        """Return the full dotted name of a node, resolved through imports."""
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        first = self._names.get(node.id, node.id) if isinstance(node, ast.Name) else ""
        return ".".join([first, *reversed(attributes)])

    def _describe_spawn(self, call: ast.Call) -> str | None:
        name = self._dotted_name(call.func)
        short = name.rpartition(".")[2]
        if name in _SPAWNERS or (
            short == "spawn" and any(keyword.arg == "nprocs" for keyword in call.keywords)
        ):
            return f"{short}() starts more processes"
        if short == "Process" and any(keyword.arg == "target" for keyword in call.keywords):
            words = {x.id for x in ast.walk(call) if isinstance(x, ast.Name)}
            if any(map(_RANK_WORDS.search, words)):
                return "Process() starts more ranks"
        return None

    def _find_launcher(self, call: ast.Call) -> str | None:
        if not _PROCESS_CALLS.fullmatch(self._dotted_name(call.func).rpartition(".")[2]):
            return None
        words = list(_texts(*call.args))
        for argument in call.args:
            if isinstance(argument, ast.Name):
                words += self._texts.get(argument.id, [])
        match = _COMMANDS.search(" ".join(words))
        return None if match is None else " ".join(match[1].split())

    def _address(self, call: ast.Call) -> str | None:
        if not self._dotted_name(call.func).endswith("init_process_group"):
            return None
        given = [keyword.value for keyword in call.keywords if keyword.arg == "init_method"]
        for value in (*given, *call.args[1:2]):
            texts = list(_texts(value))
            # An address built from torchrun's variables is the address of torchrun's own store.
            if texts and texts[0].startswith("tcp://") and not _TORCHRUN_VARIABLES & set(texts):
                return texts[0] if isinstance(value, ast.Constant) else "a tcp:// address"
        return None


def _texts(*nodes: ast.AST) -> Iterator[str]:
    for node in nodes:
        for x in ast.walk(node):
            if isinstance(x, ast.Constant) and isinstance(x.value, str):
                yield x.value


def _is_environment(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr="environ") | ast.Name(id="environ"):
            return True
    return False


def _checks_environment(test: ast.AST) -> bool:
    """Return whether a condition checks if torchrun started the program."""
    return any(
        _is_environment(x)
        or (isinstance(x, ast.Attribute | ast.Name) and _name(x) in _TORCHRUN_CHECKS)
        or (isinstance(x, ast.Constant) and x.value in _TORCHRUN_VARIABLES)
        for x in ast.walk(test)
    )


def _name(node: ast.Attribute | ast.Name) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr


def _assigned_variables(node: ast.AST) -> list[str]:
    """List torchrun's variables that a statement or call overwrites."""
    names: list[object] = []
    value: ast.AST | None = None
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                match target:
                    case ast.Subscript(value=of, slice=ast.Constant(value=name)):
                        names += [name] if _is_environment(of) else []
        case ast.AugAssign(target=target, value=ast.Dict(keys=keys)) if _is_environment(target):
            names = [key.value for key in keys if isinstance(key, ast.Constant)]
        case ast.Call(func=ast.Attribute(value=of, attr="update")) if _is_environment(of):
            names = [keyword.arg for keyword in node.keywords]
            for given in node.args:
                keys = given.keys if isinstance(given, ast.Dict) else []
                names += [key.value for key in keys if isinstance(key, ast.Constant)]
        case ast.Call(func=ast.Attribute(attr="putenv"), args=[ast.Constant(value=name), *_]):
            names = [name]
    if value is not None and _checks_environment(value):
        return []  # os.environ["RANK"] = os.environ.get("RANK", "0")
    return [name for name in names if isinstance(name, str) and name in _TORCHRUN_VARIABLES]
