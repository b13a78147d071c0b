"""Lower one rank's step of the project's NxD model to HLO, at full size, on any machine.

    python -m tests.nxd.lowering <out.hlo> [--defect] <workload> [--parameter=value]...

One process stands for rank 0 of 32: a fake process group, and lazy tensors of torch_xla's CPU
device. Nothing is executed, so Llama-2-7B's widths cost seconds and no memory. The text is what
neuronx-cc would be given, collectives with their replica groups included. Started with
``on_cpu.environment(lazy=True)``.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.nxd.cases import put_the_defect_back
from training.core.processes import die_with_parent

RANKS = 32


def main(out: Path, words: list[str]) -> None:
    """Write the graph of one micro-batch, forward and backward."""
    _believe_in_the_other_ranks(degree=8)
    if "--defect" in words:
        words.remove("--defect")
        put_the_defect_back()
    out.write_text(lower(words))


def _believe_in_the_other_ranks(*, degree: int) -> None:
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
    runtime.world_size = lambda: RANKS
    runtime.global_ordinal = runtime.local_ordinal = lambda: 0
    comm: Any = import_module("neuronx_distributed.parallel_layers.comm")
    comm._get_group_mesh = mesh
    parallel_state: Any = import_module("neuronx_distributed.parallel_layers.parallel_state")
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=degree, skip_collective_init=True
    )


def lower(words: list[str]) -> str:
    """The text."""
    import torch
    import torch_xla.core.xla_model as xm
    from neuronx_distributed.parallel_layers import parallel_cross_entropy

    from training.core.arguments import parse
    from training.core.config import TrainConfig
    from training.models.llama.nxd import NxdLlama

    config = TrainConfig.from_values(parse(words).values, RANKS)
    model, device = NxdLlama(config).model(), xm.xla_device()
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                module._parameters[name] = _on(device, parameter)
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = buffer.to(device)
    ids = torch.zeros((1, config.plan.seq_len), dtype=torch.int64, device=device)
    logits = model(input_ids=ids, use_cache=False).logits
    loss = parallel_cross_entropy(logits.float(), ids).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    wanted = [loss, *(parameter.grad for parameter in model.parameters())]
    text: str = import_module("_XLAC")._get_xla_tensors_hlo(wanted)
    return text


def _on(device: Any, parameter: Any) -> Any:
    """The same without values, with what NxD has noted on it."""
    import torch

    made = torch.nn.Parameter(torch.zeros(parameter.shape, dtype=parameter.dtype, device=device))
    vars(made).update(vars(parameter))
    return made


if __name__ == "__main__":
    die_with_parent(os.getppid())
    main(Path(sys.argv[1]), sys.argv[2:])
