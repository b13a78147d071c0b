"""torch_xla's collectives over gloo: the same replica groups, executed eagerly.

Every collective of gradients, activations or weights is recorded in ``CALLS``, from torch_xla's
functions (ZeRO-1, the gradient norm, the project's own) and torch.distributed's (NxD's layers).
Object collectives between hosts are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

Groups = Sequence[Sequence[int]] | None
"""Ranks in replica groups; None: all ranks are one."""


class Call(NamedTuple):
    """One collective, as seen by this rank."""

    name: str
    dtype: str
    elements: int
    """Of the whole: what a rank has before a reduction, or after a gathering."""
    group_size: int


CALLS: list[Call] = []
"""In order, since the process began or somebody cleared it."""
_MADE: dict[tuple[tuple[int, ...], ...], Any] = {}


def take() -> list[Call]:
    """Return the calls since the last call of this."""
    taken, CALLS[:] = list(CALLS), []
    return taken


def _note(name: str, tensor: Any, elements: int, group: Any) -> None:
    import torch.distributed as dist

    size = dist.get_world_size(group)
    CALLS.append(Call(name, str(tensor.dtype).removeprefix("torch."), elements, size))


def group_of(groups: Groups) -> Any:
    """Return this rank's process group; every rank creates all groups, in order."""
    import torch.distributed as dist

    if not groups:
        return None
    key = tuple(tuple(ranks) for ranks in groups)
    if key not in _MADE:
        made = {ranks: dist.new_group(list(ranks), backend="gloo") for ranks in key}
        _MADE[key] = next(group for ranks, group in made.items() if dist.get_rank() in ranks)
    return _MADE[key]


class WithReplicaGroups:
    """torch.distributed whose functions accept replica groups for ``group``, as on XLA."""

    def __getattr__(self, name: str) -> Any:
        import torch.distributed as dist

        found = getattr(dist, name)
        if name == "ReduceOp" or not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            if isinstance(kwargs.get("group"), list):
                kwargs["group"] = group_of(kwargs["group"])
            return found(*args, **kwargs)

        return call


def noted_reduce_scatter(function: Any) -> Any:
    """Return NxD's reduce-scatter with its calls recorded."""

    def noted(*, input: Any, groups: Any, **settings: Any) -> Any:

        group = group_of(groups) if isinstance(groups, list) else groups
        _note("reduce-scatter", input, input.numel(), group)
        return function(input=input, groups=groups, **settings)

    return noted


def replace_collectives(xm: Any) -> None:
    """Patch ``torch_xla.core.xla_model`` and register torch.distributed's backend ``xla``."""
    import torch
    import torch.distributed as dist

    operations = {
        xm.REDUCE_SUM: dist.ReduceOp.SUM,
        xm.REDUCE_MAX: dist.ReduceOp.MAX,
        xm.REDUCE_MIN: dist.ReduceOp.MIN,
    }
    reduce, gather = dist.all_reduce, dist.all_gather
    join = dist.init_process_group

    def noted_reduce(
        tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, **more: Any
    ) -> Any:
        group = group_of(group) if isinstance(group, list) else group
        _note("all-reduce", tensor, tensor.numel(), group)
        return reduce(tensor, op, group=group, **more)

    def noted_gather(parts: Any, tensor: Any, group: Any = None, **more: Any) -> Any:
        _note("all-gather", tensor, len(parts) * tensor.numel(), group)
        return gather(parts, tensor, group=group, **more)

    def join_by_gloo(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        join("gloo" if backend == "xla" else backend, *args, **kwargs)

    def all_reduce(
        reduce_type: str, inputs: Any, scale: float = 1.0, groups: Groups = None, **unused: Any
    ) -> Any:
        group, operation = group_of(groups), operations[reduce_type]
        if isinstance(inputs, torch.Tensor):
            reduced = inputs.clone()
            noted_reduce(reduced, operation, group)
            return reduced * scale if scale != 1.0 else reduced
        for tensor in inputs:
            noted_reduce(tensor, operation, group)
            if scale != 1.0:
                tensor.mul_(scale)
        return inputs

    def all_gather(
        value: Any, dim: int = 0, groups: Groups = None, output: Any = None, **unused: Any
    ) -> Any:
        group = group_of(groups)

        def one(tensor: Any) -> Any:
            parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
            noted_gather(parts, tensor.contiguous(), group)
            return torch.cat(parts, dim)

        return _each(one, value, output)

    def reduce_scatter(
        reduce_type: str,
        input: Any,
        scale: float,
        scatter_dim: int,
        shard_count: int,
        groups: Groups = None,
        output: Any = None,
        **unused: Any,
    ) -> Any:
        group = group_of(groups)

        def one(tensor: Any) -> Any:
            whole = tensor.clone()
            _note("reduce-scatter", whole, whole.numel(), group)
            # gloo has no reduce-scatter.
            reduce(whole, operations[reduce_type], group=group)
            part = whole.chunk(shard_count, scatter_dim)[dist.get_rank(group)]
            return (part * scale if scale != 1.0 else part).contiguous()

        return _each(one, input, output)

    xm.all_reduce, xm.all_gather, xm.reduce_scatter = all_reduce, all_gather, reduce_scatter
    xm.rendezvous = lambda *args, **kwargs: dist.barrier()
    xm.get_ordinal = lambda *args: dist.get_rank()
    xm.xrt_world_size = lambda *args: dist.get_world_size()
    xm.is_master_ordinal = lambda local=True: dist.get_rank() == 0
    for module in (dist, dist.distributed_c10d):
        setattr(module, "init_process_group", join_by_gloo)  # noqa: B010 - no type checker agrees
    # Not in distributed_c10d: object collectives use that one.
    setattr(dist, "all_reduce", noted_reduce)  # noqa: B010
    setattr(dist, "all_gather", noted_gather)  # noqa: B010


def _each(one: Any, values: Any, output: Any) -> Any:
    """Apply to a tensor or each of a list, into ``output`` if passed."""
    many = isinstance(values, (list, tuple))
    results = [one(value) for value in (values if many else [values])]
    if output is not None:
        for place, result in zip(output if many else [output], results, strict=True):
            place.copy_(result)
        return output
    return results if many else results[0]
