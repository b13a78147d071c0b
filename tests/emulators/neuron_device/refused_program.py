"""A program of two ranks with operations that TorchNeuron refuses; each prints the errors."""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.distributed_c10d import _get_default_group

DEVICE = "neuron"


def ones(count: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(count, dtype=dtype, device=DEVICE)


def start_twice() -> None:
    dist.destroy_process_group()
    # Of this process only: the other one may have ended by now.
    alone = f"file://{tempfile.mkdtemp()}/store"
    dist.init_process_group(DEVICE, init_method=alone, rank=0, world_size=1)


def touch_first() -> None:
    ones()
    dist.init_process_group(DEVICE)


def in_a_fork() -> None:
    ones()
    reading, writing = os.pipe()
    if not os.fork():
        os.write(writing, answer(lambda: ones()).encode())
        os._exit(0)
    os.wait()
    raise RuntimeError(os.read(reading, 1000).decode())


def split_unequally() -> None:
    sizes = [1, 3] if dist.get_rank() == 0 else [3, 1]
    dist.all_to_all_single(ones(), ones(), sizes, sizes)


def gather_unequally() -> None:
    dist.all_gather([ones(1), ones(2)], ones(1 + dist.get_rank()))


def gather_objects() -> None:
    """Gather them, and raise what was warned of."""
    found: list[object] = [None, None]
    with warnings.catch_warnings(record=True) as said:
        dist.all_gather_object(found, dist.get_rank())
    assert found == [0, 1], found
    for warning in said:
        raise RuntimeError(f"warned: {warning.message}")


def reduce_by_factors(*factors: float) -> None:
    total = ones()
    for factor in factors:
        operation = dist.ReduceOp.PREMUL_SUM(factor)
    dist.all_reduce(total, operation)
    assert total.tolist() == [2 * factor] * 4, total


def sum_functionally() -> None:
    total = all_reduce(ones(), "sum", _get_default_group())
    assert total.tolist() == [2] * 4, total


def wait_in_a_subgroup() -> None:
    groups = [dist.new_group([rank]) for rank in range(2)]
    dist.barrier(groups[dist.get_rank()])


def compile_for_every_size() -> None:
    torch.compile(lambda x: x * 2, backend=DEVICE, dynamic=True)(ones())


BEFORE: dict[str, Callable[[], object]] = {
    "device before the group": touch_first,
    "device in a fork": in_a_fork,
}
AFTER: dict[str, Callable[[], object]] = {
    "another rank's device": lambda: torch.neuron.set_device(1 - dist.get_rank()),  # type: ignore[attr-defined]
    "nonexistent device": lambda: torch.ones(2, device="neuron:7"),
    "operands on host and device": lambda: ones() + torch.ones(4),
    "host tensor in a collective": lambda: dist.all_reduce(torch.ones(4)),
    "64-bit sum": lambda: dist.all_reduce(ones(dtype=torch.int64) * 2**31),
    "unequal splits": split_unequally,
    "unequal gathering": gather_unequally,
    "objects": gather_objects,
    "barrier of a subgroup": wait_in_a_subgroup,
    "sum scaled by a factor": lambda: reduce_by_factors(0.25),
    "sums scaled by two factors": lambda: reduce_by_factors(0.25, 0.5),
    "functional sum": sum_functionally,
    "dynamic shapes": compile_for_every_size,
    "second runtime in one process": start_twice,
}


def answer(action: Callable[[], object]) -> str:
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def main() -> None:
    if os.environ.get("BEFORE"):
        print(json.dumps({name: answer(action) for name, action in BEFORE.items()}))
        return
    os.environ["LOCAL_RANK"] = os.environ["RANK"]
    backend = os.environ.get("BACKEND", DEVICE)
    dist.init_process_group(backend)
    print(json.dumps({name: answer(action) for name, action in AFTER.items()}))


if __name__ == "__main__":
    main()
