"""A program of two ranks that does what TorchNeuron refuses; each prints the answers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import torch
import torch.distributed as dist

DEVICE = "neuron"


def ones(count: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(count, dtype=dtype, device=DEVICE)


def start_twice() -> None:
    dist.destroy_process_group()
    dist.init_process_group(DEVICE)


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
    dist.all_gather_object([None, None], {"rank": dist.get_rank()})


def wait_in_a_subgroup() -> None:
    groups = [dist.new_group([rank]) for rank in range(2)]
    dist.barrier(groups[dist.get_rank()])


def compile_for_every_size() -> None:
    torch.compile(lambda x: x * 2, backend=DEVICE, dynamic=True)(ones())


BEFORE: dict[str, Callable[[], object]] = {
    "touched before the group": touch_first,
    "used in a fork": in_a_fork,
}
AFTER: dict[str, Callable[[], object]] = {
    "another rank's device": lambda: torch.neuron.set_device(1 - dist.get_rank()),  # type: ignore[attr-defined]
    "a device that nobody has": lambda: torch.ones(2, device="neuron:7"),
    "host and device": lambda: ones() + torch.ones(4),
    "host tensor in a collective": lambda: dist.all_reduce(torch.ones(4)),
    "64-bit sum": lambda: dist.all_reduce(ones(dtype=torch.int64)),
    "unequal splits": split_unequally,
    "unequal gathering": gather_unequally,
    "objects": gather_objects,
    "barrier of some ranks": wait_in_a_subgroup,
    "dynamic shapes": compile_for_every_size,
    "a second runtime": start_twice,
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
