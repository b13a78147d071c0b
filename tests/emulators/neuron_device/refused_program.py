"""A program of two ranks with operations that TorchNeuron refuses; each prints the errors."""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.device_mesh import init_device_mesh
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


def touch_by_size() -> None:
    torch.neuron.get_device_properties()  # type: ignore[attr-defined]
    dist.init_process_group(DEVICE)


def share_a_core() -> None:
    # Rank 0 has the core, but its group would wait for rank 1.
    store = TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=is_first())
    others = PrefixStore("default_pg", store)
    if is_first():
        dist.init_process_group(DEVICE, store=others, rank=0, world_size=1)
        store.set("bound", "")
        store.wait(["refused"])
        return
    store.wait(["bound"])
    try:
        dist.init_process_group(DEVICE, store=others, rank=1, world_size=2)
    finally:
        store.set("refused", "")


def is_first() -> bool:
    return os.environ["RANK"] == "0"


def raise_warnings(action: Callable[[], object]) -> None:
    """Raise what was warned of."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        action()
    for warning in said:
        raise RuntimeError(f"warned: {warning.message}")


def gather_objects() -> None:
    found: list[object] = [None, None]
    raise_warnings(lambda: dist.all_gather_object(found, dist.get_rank()))
    assert found == [0, 1], found


def gather(tensor: torch.Tensor) -> None:
    dist.all_gather([torch.empty_like(tensor) for _ in range(2)], tensor)


def scatter_product() -> None:
    dist.reduce_scatter_tensor(ones(2), ones(), dist.ReduceOp.PRODUCT)


def send() -> None:
    dist.send(ones(), 1) if is_first() else dist.recv(ones(), 0)


def broadcast_alone(value: int) -> None:
    """Broadcast in a group of one rank, so that the other rank does not wait."""
    groups = [dist.new_group([rank]) for rank in range(2)]
    mine = dist.get_rank()
    number = torch.tensor([value], device=DEVICE)
    dist.broadcast(number, mine, groups[mine])
    assert number.item() == value


def broadcast_over_garbage() -> None:
    """What a receiving rank's tensor held before does not matter."""
    number = torch.tensor([7 if is_first() else 2**40], device=DEVICE)
    dist.broadcast(number, 0)
    assert number.item() == 7, number


def compile_collective(group: dist.ProcessGroup) -> None:
    """Compile a sum over the ranks of a group."""
    name = group.group_name
    compiled = torch.compile(
        lambda x: all_reduce(x, "sum", name) + 1, backend=DEVICE, fullgraph=True
    )
    assert compiled(ones())[0].item() == group.size() + 1


def compile_over_meshes() -> None:
    for shape in ((2,), (2, 1)):
        mesh = init_device_mesh(DEVICE, shape, mesh_dim_names=("a", "b")[: len(shape)])
        for group in mesh.get_all_groups():
            compile_collective(group)


def compile_over_new_group() -> None:
    groups = [dist.new_group([rank]) for rank in range(2)]
    compile_collective(groups[dist.get_rank()])


def compile_in_mode() -> None:
    raise_warnings(
        lambda: torch.compile(lambda x: x + 3, backend=DEVICE, mode="max-autotune")(ones())
    )


def read_metrics() -> None:
    """Read those of the graphs so far, the last of which is one addition."""
    graphs = torch.neuron.get_dynamo_metrics()  # type: ignore[attr-defined]
    assert graphs[-1].graph_node_count == 1, graphs


def pixels() -> torch.Tensor:
    return torch.ones(1, 2, 3, 4, device=DEVICE)


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
    "memory's size before the group": touch_by_size,
    "device before the group": touch_first,
    "device in a fork": in_a_fork,
}
AFTER: dict[str, Callable[[], object]] = {
    "another rank's device": lambda: torch.neuron.set_device(1 - dist.get_rank()),  # type: ignore[attr-defined]
    "nonexistent device": lambda: torch.ones(2, device="neuron:7"),
    "operands on host and device": lambda: ones() + torch.ones(4),
    "host tensor in a collective": lambda: dist.all_reduce(torch.ones(4)),
    "64-bit sum": lambda: dist.all_reduce(ones(dtype=torch.int64) * 2**31),
    "64-bit gathering": lambda: gather(ones(dtype=torch.int64) * 2**31),
    "64-bit floats": lambda: gather(ones(dtype=torch.float64)),
    "64-bit broadcast": lambda: broadcast_alone(2**31),
    "32-bit broadcast": lambda: broadcast_alone(2**31 - 1),
    "broadcast over garbage": broadcast_over_garbage,
    "empty sum": lambda: dist.all_reduce(ones(0)),
    "empty gathering": lambda: gather(ones(0)),
    "product": lambda: dist.all_reduce(ones(), dist.ReduceOp.PRODUCT),
    "scattered product": scatter_product,
    "sum of infinity": lambda: raise_warnings(lambda: dist.all_reduce(ones() / 0)),
    "sending": lambda: raise_warnings(send),
    "receiving from any rank": lambda: dist.recv(ones()),
    "channels_last": lambda: pixels().contiguous(memory_format=torch.channels_last),
    "conversion to channels_last": lambda: pixels().to(memory_format=torch.channels_last),
    "channels_last clone": lambda: pixels().clone(memory_format=torch.channels_last),
    "8-bit floats": lambda: ones().to(torch.float8_e4m3fn),
    "8-bit floats of the device": lambda: ones().to(torch.float8_e5m2).float(),
    "8-bit floats at rest": lambda: torch.ones(4).to(torch.float8_e4m3fn).to(DEVICE).clone().cpu(),
    "compiled sum over a mesh": compile_over_meshes,
    "compiled sum over a new group": compile_over_new_group,
    "compilation mode": compile_in_mode,
    "metrics of graphs": read_metrics,
    "member not in the source": lambda: raise_warnings(torch.neuron.get_rng_state_all),  # type: ignore[attr-defined]
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
    if core := os.environ.get("CORE"):
        os.environ["NEURON_RT_VISIBLE_CORES"], os.environ["LOCAL_RANK"] = core, os.environ["RANK"]
        print(json.dumps({"shared core": answer(share_a_core)}))
        return
    if os.environ.get("BEFORE"):
        print(json.dumps({name: answer(action) for name, action in BEFORE.items()}))
        return
    os.environ["LOCAL_RANK"] = os.environ["RANK"]
    backend = os.environ.get("BACKEND", DEVICE)
    dist.init_process_group(backend)
    print(json.dumps({name: answer(action) for name, action in AFTER.items()}))


if __name__ == "__main__":
    main()
