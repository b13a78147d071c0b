"""One rank that trains a tiny Llama by the native back-end, on the CPU and on the pretend device.

``neuron_program.py FOLDER DEGREES``: for every degree of tensor parallelism, in fp32 and in bf16.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from training.backends.native import NativeBackend
from training.checkpoint import Checkpoints
from training.core.arguments import parse
from training.core.config import TrainConfig
from training.core.contract import DeviceKind
from training.core.device import EagerDevice
from training.core.ranks import Ranks
from training.models.llama.data import random_batches
from training.models.llama.network import LlamaNetwork
from training.storage import open_objects

TINY = (
    *("--vocab-size=256", "--hidden-size=32", "--intermediate-size=64", "--num-layers=2"),
    *("--seq-len=16", "--global-batch=8", "--micro-batch=2", "--warmup-steps=2", "--lr=0.01"),
)
STEPS, SAVED = 5, 3


class TinyRun:
    """A model on one kind of device, and what its steps have given."""

    def __init__(self, kind: DeviceKind, config: TrainConfig) -> None:
        self.config = config
        name = "cpu" if kind is DeviceKind.CPU else "neuron"
        device = EagerDevice(kind, torch.device(name))
        self.backend = NativeBackend(config, device, LlamaNetwork(config), peak_flops=None)
        # CPUs compute in fp32 by themselves, because bf16 is slow there.
        self.backend._mixed = config.mixed
        self.backend.build()
        self.batch = random_batches(vocab_size=256, seed=1, seq_len=16)

    def step(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Make one step as the loop does, without looking at its numbers."""
        config, backend = self.config, self.backend
        count = config.plan.accumulation_steps
        loss = torch.tensor(0.0)
        for micro in range(count):
            tokens = self.batch(config.positions(number - 1, micro, backend.data_rank))
            loss = backend.forward_backward(tokens, is_last=micro == count - 1)
        return loss, backend.clip_and_step(config.learning_rate_at(number))

    def losses(self, first: int) -> Iterator[float]:
        """The losses and norms from a step to the last."""
        for number in range(first, STEPS + 1):
            loss, norm = self.step(number)
            yield self.backend.mean_over_data(loss)
            yield self.backend.fetch(norm)


def counted_steps(config: TrainConfig) -> Iterator[dict[str, int]]:
    """What each step asks of the device, in a process that has compiled nothing yet."""
    from trainium_emulators.neuron_device.counts import COUNTS

    torch._dynamo.reset()
    COUNTS.signatures.clear()
    trained = TinyRun(DeviceKind.TORCH_NEURON, config)
    for number in range(1, STEPS + 1):
        COUNTS.reset()
        trained.step(number)
        yield {
            "operations": COUNTS.operations.total(),
            "new_signatures": COUNTS.new_signatures.total(),
            "host_syncs": COUNTS.host_syncs.total(),
            "graphs": len(COUNTS.graphs),
            "graph_breaks": COUNTS.graph_breaks.total(),
        }


def resumed(config: TrainConfig, folder: Path) -> list[float]:
    """Losses after a checkpoint that was written while training went on."""
    objects = open_objects(str(folder), region=None, endpoint_url=None)
    checkpoints = Checkpoints(objects, Ranks.open(), keep_last=2, keep_every=0)
    first = TinyRun(DeviceKind.TORCH_NEURON, config)
    for number in range(1, STEPS + 1):
        first.step(number)
        if number == SAVED:
            first.backend.save(checkpoints, SAVED, {}, asynchronous=True)
    checkpoints.wait()
    second = TinyRun(DeviceKind.TORCH_NEURON, config)
    info = checkpoints.latest()
    assert info is not None
    assert second.backend.load(checkpoints, info).step == SAVED
    return list(second.losses(SAVED + 1))


def main(folder: str, *degrees: str) -> None:
    os.environ["LOCAL_RANK"] = os.environ["RANK"]
    # CPU tensors go to gloo, those of the device to its own back-end.
    dist.init_process_group("cpu:gloo,neuron:neuron")
    found: dict[str, Any] = {}
    for degree in degrees:
        values = parse(["llama-tiny", *TINY, f"--tensor-parallel={degree}"]).values
        for mixed in (False, True):
            config = TrainConfig.from_values(values, dist.get_world_size())
            config = dataclasses.replace(config, mixed=mixed, max_steps=STEPS)
            case = f"tp{degree}-{'bf16' if mixed else 'fp32'}"
            found[case] = {
                "cpu": list(TinyRun(DeviceKind.CPU, config).losses(1)),
                "neuron": list(TinyRun(DeviceKind.TORCH_NEURON, config).losses(1)),
                "resumed": resumed(config, Path(folder) / case),
                "counts": list(counted_steps(config)),
            }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
