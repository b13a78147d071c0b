"""The back-end ``neuron`` of torch.distributed: gloo, on the memory behind the device's tensors."""

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
from trainium_emulators.neuron_device.tensors import OperatorCall

_EAGER_GROUP = "process_group"
"""What eager collectives call their group; functional ones have a ``group_name``."""
_OUTPUTS = {"tensors", "output_tensor", "output_tensors", "outputs"}
"""What collectives call the tensors that they reduce into."""
_ON_HOST: dict[Any, dist.ProcessGroup] = {}
"""For each back-end the group of the same ranks that takes host tensors; programs get none."""


def register() -> None:
    """Register the back-end for tensors of the device, and for no others."""
    dist.Backend.register_backend(DEVICE, _create, devices=[DEVICE])


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Make a back-end for ``init_process_group`` or ``new_group``."""
    if not dist.is_initialized():
        RUNTIME.bind(rank)
    gloo = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
    on_host = dist.ProcessGroup(store, rank, size)
    on_host._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    on_host._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
    _ON_HOST[gloo] = on_host
    return gloo


def run(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run a collective of torch.distributed's, eager or functional, on the host's memory."""
    name = op._schema.name
    call = OperatorCall()
    given = {
        argument.name: value for argument, value in zip(op._schema.arguments, args, strict=False)
    } | kwargs
    raw = {what: call.unwrap(value) for what, value in given.items()}
    if name == "_c10d_functional::_wrap_tensor_autograd":
        return AsyncCollectiveTensor(args[0])
    if name == "_c10d_functional::wait_tensor":
        return call.wrap(op(**raw))
    rules.check_same_device(list(call.host.values()), name)
    where, group = _group(given)
    raw[where] = group.boxed() if where == _EAGER_GROUP else group
    COUNTS.collectives[name] += 1
    COUNTS.operation(name, (op, group.size(), *((t.dtype, t.shape) for t in _flat(raw))))
    _check(name, raw, group)
    if _is_average(raw):
        return call.wrap(_average(op, raw, group))
    return call.wrap(op(**raw))


def _group(given: dict[str, Any]) -> tuple[str, dist.ProcessGroup]:
    """Find the argument that is the process group, and the group of the same ranks on the host."""
    where = _EAGER_GROUP if _EAGER_GROUP in given else "group_name"
    group = given[where]
    c10d: Any = torch._C._distributed_c10d
    if isinstance(group, str):
        group = c10d._resolve_process_group(group)
    elif not isinstance(group, dist.ProcessGroup):
        group = dist.ProcessGroup.unbox(group)
    return where, _ON_HOST[group._get_backend(torch.device(DEVICE))]


def _flat(value: Any) -> list[torch.Tensor]:
    """List the tensors in nested arguments."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    return [tensor for inner in value for tensor in _flat(inner)]


def _check(name: str, raw: dict[str, Any], group: dist.ProcessGroup) -> None:
    """Refuse what the device's own back-end cannot do."""
    tensors = _flat(raw)
    if name == "c10d::barrier":
        rules.check_barrier(group.size())
    elif "reduce_op" in raw:
        rules.check_reduced_type(tensors)
    else:
        rules.check_no_objects(tensors[0])
    for what in ("output_split_sizes", "input_split_sizes"):
        rules.check_equal_splits(raw.get(what, ()), what)
    for what in ("output_tensors", "input_tensors"):
        if isinstance(raw.get(what), list):
            sizes = [tensor.numel() for tensor in _flat(raw[what])]
            rules.check_equal_splits(sizes, what)


def _is_average(raw: dict[str, Any]) -> bool:
    reduction: Any = raw.get("reduce_op")
    average: Any = dist.ReduceOp.AVG
    if reduction is None or isinstance(reduction, str):
        return reduction == "avg"
    return bool(reduction.op() == int(average))


def _average(op: Any, raw: dict[str, Any], group: dist.ProcessGroup) -> Any:
    """Divide a sum, since gloo has no averages."""
    if op.namespace == "_c10d_functional":
        summed = op(**{**raw, "reduce_op": "sum"})
        for tensor in _flat(summed):
            torch.ops._c10d_functional.wait_tensor(tensor).div_(group.size())
        return summed
    found = op(**{**raw, "reduce_op": torch.classes.c10d.ReduceOp()})  # a sum
    work = found[-1] if isinstance(found, tuple) else found
    dist.Work.unbox(work).wait()
    for what in _OUTPUTS & raw.keys():
        for tensor in _flat(raw[what]):
            tensor.div_(group.size())
    # Gloo's own would write the sum again when it is waited for again.
    done: Future[None] = Future()
    done.set_result(None)
    c10d: Any = torch._C._distributed_c10d
    divided = c10d._create_work_from_future(done).boxed()
    return (*found[:-1], divided) if isinstance(found, tuple) else divided
