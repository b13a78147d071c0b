"""One rank of the multi-rank checkpoint tests; its last line is a JSON result."""

from __future__ import annotations

import json
import os
import resource
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor

from training.checkpoint import Checkpoints
from training.core.ranks import Ranks
from training.storage import LocalObjects

SIZES = {"column": (64, 48), "row": (32, 128), "norm": (40,)}
LAYOUTS: dict[str, tuple[Placement, Placement]] = {
    # Data-parallel ranks divide rows (FSDP), tensor-parallel ranks outputs or inputs.
    "column": (Shard(0), Shard(0)),
    "row": (Shard(0), Shard(1)),
    "norm": (Shard(0), Replicate()),
}


def whole(name: str, step: int) -> torch.Tensor:
    size = SIZES[name]
    return torch.arange(torch.Size(size).numel(), dtype=torch.float32).reshape(size) + step


def state(step: int, mesh: DeviceMesh) -> dict[str, Any]:
    model = {n: distribute_tensor(whole(n, step), mesh, LAYOUTS[n]) for n in SIZES}
    moments = {n: distribute_tensor(-whole(n, step), mesh, LAYOUTS[n]) for n in SIZES}
    return {"model": model, "optimizer": {**moments, "step": torch.tensor(float(step))}}


def matches(loaded: dict[str, Any], step: int) -> bool:
    return all(
        torch.equal(loaded["model"][n].full_tensor(), whole(n, step))
        and torch.equal(loaded["optimizer"][n].full_tensor(), -whole(n, step))
        for n in SIZES
    ) and bool(loaded["optimizer"]["step"] == step)


def mesh_of(data: int, tensor: int) -> DeviceMesh:
    return init_device_mesh("cpu", (data, tensor), mesh_dim_names=("data", "tensor"))


def save_and_load(root: Path) -> dict[str, Any]:
    """Save, fail a save on one rank, damage another save, and load into several topologies."""
    rank = dist.get_rank()
    mesh = mesh_of(2, 2)
    failed: list[tuple[int, str]] = []
    lines: list[str] = []
    checkpoints = Checkpoints(
        LocalObjects(root),
        Ranks.open(),
        keep_last=3,
        keep_every=0,
        say=lines.append,
        on_failed=lambda step, reason: failed.append((step, reason)),
    )
    training = state(10, mesh)
    checkpoints.save(training, 10, {}, asynchronous=True)
    training["model"]["row"].to_local().fill_(-7)
    checkpoints.wait()

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank == 3:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
    checkpoints.save(state(20, mesh), 20, {}, asynchronous=True)
    checkpoints.wait()
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    dist.barrier()
    left = sorted(path.name for path in root.iterdir())

    checkpoints.save(state(30, mesh), 30, {}, asynchronous=False)
    latest = checkpoints.latest()
    assert latest is not None
    if rank == 0:
        # A file that rank 2 wrote and that only rank 2 will read.
        path = root / latest.name / "__2_0.distcp"
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    dist.barrier()
    loaded = state(0, mesh)
    used = checkpoints.load(loaded, latest)
    others = {}
    for layout in ((4, 1), (1, 4)):
        elsewhere = state(0, mesh_of(*layout))
        checkpoints.load(elsewhere, used)
        others["x".join(map(str, layout))] = matches(elsewhere, 10)
    return {
        "others": others,
        "failed": failed,
        "left": left,
        "latest": latest.step,
        "used": used.step,
        "matches": matches(loaded, 10),
        "files": sorted(used.files),
        "lines": lines,
        "by_tensor": tensor_by_tensor(root.with_name(f"{root.name}-by-tensor")),
    }


def tensor_by_tensor(root: Path) -> bool:
    """Save as torch_xla's ranks do: one rank saves each tensor, and the last saves none.

    Then every rank loads all tensors.
    """
    checkpoints = Checkpoints(LocalObjects(root), Ranks.open(), keep_last=3, keep_every=0)
    mine = {n: whole(n, 10) for i, n in enumerate(SIZES) if i == dist.get_rank()}
    checkpoints.save({"model": mine}, 10, {}, asynchronous=True)
    checkpoints.wait()
    info = checkpoints.latest()
    assert info is not None
    loaded = {"model": {n: torch.zeros(size) for n, size in SIZES.items()}}
    checkpoints.load(loaded, info)
    return all(torch.equal(loaded["model"][n], whole(n, 10)) for n in SIZES)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    print(json.dumps(save_and_load(Path(sys.argv[1]))), flush=True)
    dist.destroy_process_group()
