"""A rank of the ``neuron`` comparison; rank 0 prints the operations per layer as JSON."""

import dataclasses
import json
import os
from typing import Any

FEW, MANY = 2, 4
"""Layer counts of two models, which are compared to derive the cost of one layer."""
_NUM_WARMUP_STEPS = 2
"""Number of warm-up steps, after which nothing is compiled."""
_SHAPE = (
    *("--vocab-size=256", "--hidden-size=32", "--intermediate-size=64", "--seq-len=16"),
    *("--global-batch=2", "--micro-batch=2", "--warmup-steps=2"),
)


def main() -> None:
    """Count the operations of our steps and, with a single rank, those of plain PyTorch."""
    from trainium_emulators.neuron_device.device import register

    register(os.environ, report=False)
    import torch.distributed as dist

    dist.init_process_group("cpu:gloo,neuron:neuron")
    counters = {"ours": ours} | ({"plain": plain} if dist.get_world_size() == 1 else {})
    per_layer = {
        name: (count(MANY)[-1] - count(FEW)[-1]) / (MANY - FEW) for name, count in counters.items()
    }
    dist.barrier()
    if dist.get_rank() == 0:
        print(json.dumps(per_layer), flush=True)
    # Exit like a worker, without destroying the process group.
    os._exit(0)


def ours(layers: int) -> list[int]:
    """Count the operations of each of our steps."""
    import torch.distributed as dist

    from tests.training.backends.neuron_program import counted_steps
    from training.core.arguments import parse
    from training.core.config import TrainConfig

    ranks = dist.get_world_size()
    arguments = (*_SHAPE, f"--num-layers={layers}", f"--tensor-parallel={ranks}")
    config = TrainConfig.from_values(parse(["llama-tiny", *arguments]).values, ranks)
    config = dataclasses.replace(config, mixed=True)
    steps = [counts for _, _, counts in counted_steps(config)]
    graphs = sum(step["graphs"] for step in steps)
    assert graphs == 2, f"{graphs} graphs of equal layers, not one forward and one backward"
    for number, step in enumerate(steps, 1):
        # Only the first step may wait for the device: our code then checks for operators that ran
        # on the CPU.
        forbidden = ["graph_breaks", *(["host_syncs"] if number > 1 else [])]
        forbidden += ["graphs", "new_signatures"] if number > _NUM_WARMUP_STEPS else []
        assert not any(step[name] for name in forbidden), (number, step)
    return [step["operations"] for step in steps]


def plain(layers: int) -> list[int]:
    """Count the operations of plain PyTorch, used as in its documentation."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    from training.core.arguments import parse
    from training.core.config import TrainConfig
    from training.models.llama.huggingface import decoder_config, whole_model
    from trainium_emulators.neuron_device.counts import COUNTS

    torch._dynamo.reset()
    arguments = (*_SHAPE, f"--num-layers={layers}", "--tensor-parallel=1")
    config = TrainConfig.from_values(parse(["llama-tiny", *arguments]).values, 1)
    model: Any = whole_model(decoder_config(config.shape, seq_len=16)).to("neuron")
    settings: Any = {
        "mesh": init_device_mesh("neuron", (1,)),
        "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32),
        "reshard_after_forward": False,
    }
    for layer in model.model.layers:
        layer.compile(backend="neuron", dynamic=False, fullgraph=True)
        fully_shard(layer, **settings)
    fully_shard(model, **settings)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    ids = torch.zeros(2, 16, dtype=torch.int64, device="neuron")
    operations = []
    for _ in range(_NUM_WARMUP_STEPS + 1):
        COUNTS.reset()
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        operations.append(COUNTS.operations.total())
    return operations


if __name__ == "__main__":
    main()
