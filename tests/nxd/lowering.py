"""Lower one rank's step to full-size HLO on any machine: the project's or AWS's.

    python -m tests.nxd.lowering <folder> [--defect] <workload> [--parameter=value]...
    python -m tests.nxd.lowering <folder> --aws <examples/training/llama> [--name=value]...

One process stands for rank 0 of 32: a fake process group, and lazy tensors of torch_xla's CPU
device. No step is executed, so Llama-2-7B's widths cost seconds. The texts are neuronx-cc's input,
including collectives with replica groups: ``micro-batch.hlo`` (forward and backward with gradient
sums) and ``update.hlo`` (the optimizer). Both sides get here by NxD's ``initialize_parallel_model``
and ``initialize_parallel_optimizer``, including everything these are configured to do. Started with
``on_cpu.environment(lazy=True)``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.nxd import kernels
from tests.nxd.cases import put_the_defect_back
from training.core.processes import die_with_parent

RANKS, DEGREE = 32, 8


def main(folder: Path, words: list[str]) -> None:
    """Write the graphs."""
    # Before NxD is imported, which binds them then.
    kernels.replace()
    _believe_in_the_other_ranks()
    if words[0] == "--aws":
        from tests.nxd.aws_example import lower as lower_aws

        texts = lower_aws(Path(words[1]), words[2:])
    else:
        if "--defect" in words:
            words.remove("--defect")
            put_the_defect_back()
        texts = lower(words)
    for name, text in zip(("micro-batch", "update"), texts, strict=True):
        (folder / f"{name}.hlo").write_text(text)
    kernels.write_calls(folder)


def _believe_in_the_other_ranks() -> None:
    import torch.distributed as dist
    import torch_xla.core.xla_model as xm
    from torch.testing._internal.distributed.fake_pg import FakeStore

    new_group: Any = dist.new_group

    def plain_group(ranks: Any = None, *args: Any, pg_options: Any = None, **kwargs: Any) -> Any:
        return new_group(ranks, *args, **kwargs)

    def mesh(group: Any) -> list[list[int]]:
        if isinstance(group, list):
            return group
        size = len(dist.get_process_group_ranks(group))
        return [list(range(first, first + size)) for first in range(0, RANKS, size)]

    def all_reduce(tensor: Any, op: Any = None, group: Any = None, async_op: bool = False) -> Any:
        xm.all_reduce(xm.REDUCE_SUM, [tensor], groups=mesh(group), pin_layout=False)
        return SimpleNamespace(wait=lambda: None) if async_op else None

    patches: Any = dist
    patches.new_group, patches.all_reduce = plain_group, all_reduce
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    runtime: Any = import_module("torch_xla.runtime")
    runtime.world_size = runtime.global_device_count = lambda: RANKS
    runtime.global_ordinal = runtime.local_ordinal = lambda: 0
    runtime.local_process_count = lambda: RANKS
    model: Any = xm
    model.rendezvous = lambda *args, **kwargs: []
    comm: Any = import_module("neuronx_distributed.parallel_layers.comm")
    comm._get_group_mesh = mesh
    parallel_state: Any = import_module("neuronx_distributed.parallel_layers.parallel_state")
    initialize = parallel_state.initialize_model_parallel

    def initialize_apart(**settings: Any) -> None:
        # The group's first collective would be compiled for 32 devices.
        initialize(**{**settings, "skip_collective_init": True})

    parallel_state.initialize_model_parallel = initialize_apart


def lower(words: list[str]) -> tuple[str, str]:
    """Return the texts of the project's backend."""
    import torch
    import torch_xla.core.xla_model as xm

    from training.backends.nxd import NxdBackend
    from training.backends.nxd_shards import Shards
    from training.core.arguments import parse
    from training.core.config import TrainConfig
    from training.models.llama.network import LlamaNetwork
    from training.models.llama.nxd import NxdLlama

    config = TrainConfig.from_values(parse(words).values, RANKS)
    place: Any = NxdLlama
    # Values are not read.
    place.fill = lambda self, module, device: zero(module)
    shards: Any = Shards
    # Master weights would be gathered from absent ranks.
    shards.publish = lambda self: None
    device: Any = SimpleNamespace(rank=0, num_ranks=RANKS)
    ranks: Any = SimpleNamespace()
    backend = NxdBackend(config, device, LlamaNetwork(config), ranks=ranks)
    backend.build()
    xm.mark_step()
    model: Any = xm
    model.mark_step = lambda *args, **kwargs: None
    tokens = torch.zeros((config.plan.micro_batch, config.plan.seq_len + 1), dtype=torch.int64)
    return graphs(
        lambda: backend.forward_backward(tokens, is_last=True),
        lambda: backend.clip_and_step(1e-4),
        backend._optimizer.optimizer,
    )


def zero(module: Any) -> None:
    """Fill a module's own parameters."""
    import torch

    with torch.no_grad():
        for parameter in module.parameters(recurse=False):
            parameter.zero_()


def graphs(
    micro_batch: Callable[[], Any], update: Callable[[], Any], zero1: Any
) -> tuple[str, str]:
    """Return the graphs of a micro-batch and of the update after it."""
    import torch_xla.core.xla_model as xm

    pairs = [
        pair
        for weights, masters in zip(
            zero1.param_groups, zero1.base_optimizer.param_groups, strict=True
        )
        for pair in zip(weights["params"], masters["params"], strict=True)
    ]
    loss = micro_batch()
    # In the order of the backward pass: the last layer first.
    gradients = [master.main_grad for _, master in reversed(pairs)]
    first = hlo([loss, *gradients])
    # The recording so far is never executed: the update starts with existing gradients.
    import_module("torch_xla")._XLAC._clear_pending_irs(str(xm.xla_device()))
    norm = update()
    states = [value for _, master in pairs for value in zero1.base_optimizer.state[master].values()]
    changed = [tensor for weight, master in pairs for tensor in (weight, master, master.main_grad)]
    tensors = [value for value in states if getattr(value, "is_cpu", True) is False]
    return first, hlo([norm, *changed, *tensors])


def hlo(tensors: Sequence[Any]) -> str:
    """Return the HLO text that computes these tensors."""
    text: str = import_module("_XLAC")._get_xla_tensors_hlo(list(tensors))
    return text


if __name__ == "__main__":
    die_with_parent(os.getppid())
    main(Path(sys.argv[1]), sys.argv[2:])
