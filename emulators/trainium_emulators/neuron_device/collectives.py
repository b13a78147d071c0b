"""The torch.distributed backend ``neuron``: gloo on the host memory of the device's tensors."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.futures import Future

from trainium_emulators.neuron_device import rules
from trainium_emulators.neuron_device.counts import COUNTS
from trainium_emulators.neuron_device.device import DEVICE, RUNTIME
from trainium_emulators.neuron_device.tensors import OperatorCall, is_traced

_EAGER_GROUP = "process_group"
"""Name of the group argument in eager collectives; functional ones have ``group_name``."""
_OUTPUTS = {"tensors", "output_tensor", "output_tensors", "outputs"}
"""Names of collectives' arguments for the tensors that they reduce into."""
_ONLY_WRITTEN = {*_OUTPUTS, "output", "output_lists", "out"} - {"tensors"}
"""Names of arguments for tensors whose values before the call do not matter."""
_ON_HOST: dict[Any, tuple[str, dist.ProcessGroup]] = {}
"""For each backend, the name and group of the same ranks for host tensors, hidden from programs.

The name is stored, because PyTorch later gives the backend, and with it this group, the name of the
program's group.
"""
_FACTORS: set[float] = set()
"""Factors of all premultiplied sums so far; Python cannot read a single collective's factor."""


def register() -> None:
    """Register the backend for the device's tensors only."""
    dist.Backend.register_backend(DEVICE, _create, devices=[DEVICE])
    kind: Any = dist.ReduceOp.RedOpType
    make = kind.__call__

    def premultiply(self: Any, factor: Any) -> Any:
        _FACTORS.add(float(factor))
        return make(self, factor)

    kind.__call__ = premultiply


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Create a backend for ``init_process_group`` or ``new_group``."""
    if not dist.is_initialized():
        RUNTIME.bind(rank)
        rules.check_own_core(store, rank - RUNTIME.local_rank, RUNTIME.environment)
    gloo = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
    on_host = dist.ProcessGroup(store, rank, size)
    on_host._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    on_host._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
    # Registered by name, because a copy of a compiled graph cannot contain a process group.
    c10d: Any = torch._C._distributed_c10d
    name = f"host-of-{DEVICE}-{len(_ON_HOST)}"
    c10d._register_process_group(name, on_host)
    _ON_HOST[gloo] = name, on_host
    return gloo


def run(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run a collective of torch.distributed, eager or functional, on the host's memory."""
    name = op._schema.name
    call = OperatorCall()
    arguments = {
        argument.name: value for argument, value in zip(op._schema.arguments, args, strict=False)
    } | kwargs
    raw = {what: call.unwrap(value) for what, value in arguments.items()}
    if name == "_c10d_functional::_wrap_tensor_autograd":
        return AsyncCollectiveTensor(args[0])
    if name == "_c10d_functional::wait_tensor":
        return call.wrap(op(**raw))
    rules.check_same_device(list(call.host.values()), name)
    where, given = _group(arguments)
    if is_traced():
        rules.check_compiled_group(given)
    group_name, group = _ON_HOST[given._get_backend(torch.device(DEVICE))]
    raw[where] = group.boxed() if where == _EAGER_GROUP else group_name
    COUNTS.collectives[name] += 1
    COUNTS.operation(name, (op, group.size(), *((t.dtype, t.shape) for t in _flatten(raw))))
    _check(name, raw, group)
    factor = _factor(raw, group)
    if factor is not None:
        return call.wrap(_sum_times(factor, op, raw))
    return call.wrap(op(**raw))


def _group(arguments: dict[str, Any]) -> tuple[str, dist.ProcessGroup]:
    """Find the process group argument and its group."""
    where = _EAGER_GROUP if _EAGER_GROUP in arguments else "group_name"
    group = arguments[where]
    c10d: Any = torch._C._distributed_c10d
    if isinstance(group, str):
        group = c10d._resolve_process_group(group)
    elif not isinstance(group, dist.ProcessGroup):
        group = dist.ProcessGroup.unbox(group)
    return where, group


def _flatten(value: Any) -> list[torch.Tensor]:
    """List the tensors in nested arguments."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    return [tensor for inner in value for tensor in _flatten(inner)]


def _check(name: str, raw: dict[str, Any], group: dist.ProcessGroup) -> None:
    """Refuse calls that the real backend does not support, and warn about doubtful ones."""
    kind = name.partition("::")[2].strip("_")
    if kind == "barrier":
        rules.check_barrier(group.size())
        return
    rules.check_point_to_point(kind)
    # A trace has no values.
    sent = [] if is_traced() else _sent(kind, raw, group)
    rules.check_type_and_size(sent, kind)
    if "reduce_op" in raw:
        rules.check_reduction(_reduction(raw["reduce_op"]), kind)
        rules.warn_of_infinity(sent, kind)
    else:
        rules.warn_of_objects(_flatten(raw)[0])
    for what in ("output_split_sizes", "input_split_sizes"):
        rules.check_equal_splits(raw.get(what, ()), what)
    for what in ("output_tensors", "input_tensors"):
        if isinstance(raw.get(what), list):
            sizes = [tensor.numel() for tensor in _flatten(raw[what])]
            rules.check_equal_splits(sizes, what)


def _sent(kind: str, raw: dict[str, Any], group: dist.ProcessGroup) -> list[torch.Tensor]:
    """List the tensors whose values this rank sends."""
    root = raw.get("root_rank", raw.get("src", group.rank()))
    if "recv" in kind or (kind == "broadcast" and root != group.rank()):
        return []
    return _flatten({what: value for what, value in raw.items() if what not in _ONLY_WRITTEN})


def _reduction(reduction: Any) -> str:
    """Return the name of a reduction, such as SUM."""
    if isinstance(reduction, str):
        return reduction.upper()
    kinds: Any = dist.ReduceOp.RedOpType
    return str(kinds(reduction.op()).name)


def _factor(raw: dict[str, Any], group: dist.ProcessGroup) -> float | None:
    """Return the factor to apply to gloo's sum; None for other collectives."""
    reduction = _reduction(raw.get("reduce_op", ""))
    if reduction == "AVG":
        return 1 / group.size()
    return rules.only_factor(_FACTORS) if reduction == "PREMUL_SUM" else None


def _sum_times(factor: float, op: Any, raw: dict[str, Any]) -> Any:
    """Sum, then multiply; "April" (see ``rules``) multiplies first, which may round differently."""
    if op.namespace == "_c10d_functional":
        summed = op(**{**raw, "reduce_op": "sum"})
        for tensor in _flatten(summed):
            torch.ops._c10d_functional.wait_tensor(tensor).mul_(factor)
        return summed
    result = op(**{**raw, "reduce_op": torch.classes.c10d.ReduceOp()})  # by default a sum
    work = result[-1] if isinstance(result, tuple) else result
    dist.Work.unbox(work).wait()
    for what in _OUTPUTS & raw.keys():
        for tensor in _flatten(raw[what]):
            tensor.mul_(factor)
    # Gloo's own work object would write the sum again on a second wait.
    done: Future[None] = Future()
    done.set_result(None)
    c10d: Any = torch._C._distributed_c10d
    multiplied = c10d._create_work_from_future(done).boxed()
    return (*result[:-1], multiplied) if isinstance(result, tuple) else multiplied
