"""One rank that trains a tiny Llama with the native backend, on CPU and emulated device.

``neuron_program.py FOLDER DEGREES``: for every degree of tensor parallelism, losses; and the
gradients for all ways to shard and retain work.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from training.backends.base import trainable_parameters
from training.backends.native import NativeBackend
from training.checkpoint import Checkpoints
from training.core.arguments import parse
from training.core.config import TrainConfig
from training.core.contract import DeviceKind
from training.core.device import EagerDevice
from training.core.failures import ExplainedError
from training.core.ranks import Ranks
from training.models.llama.data import random_batches
from training.models.llama.network import LlamaNetwork
from training.storage import open_objects

TINY = (
    *("--vocab-size=256", "--hidden-size=32", "--intermediate-size=64", "--num-layers=2"),
    *("--seq-len=16", "--global-batch=8", "--micro-batch=2", "--warmup-steps=2", "--lr=0.01"),
)
STEPS, SAVED = 5, 3
Step = tuple[torch.Tensor, torch.Tensor]
"""A loss and a norm, on the device."""
WAYS = {
    "divided": ("llama-tiny",),
    "whole": ("llama-tiny", "--sequence-parallel=false"),
    "selective": ("llama-tiny", "--recompute=selective"),
    "kept": ("llama-tiny", "--activation-checkpointing=false"),
    "resharded": ("llama-tiny", "--reshard-after-forward=true"),
    "adapters": ("llama-tiny", "--lora-rank=2", "--init-from=given"),
    "masks": ("llama-tiny", "--document-masks=true"),
    "qwen3": ("pretrain", "--model=qwen3-tiny", "--head-dim=16"),
    "shared": ("llama-tiny", "--num-kv-heads=1"),
}
"""Workloads and parameters whose gradients do not depend on the ranks."""
_OF_RANKS = ("--sequence-", "--recompute", "--activation-", "--reshard-")
"""Parameters that only determine how ranks divide work and what they keep."""
IN_BOTH_DIMENSIONS: tuple[str, ...] = ("divided", "resharded", "adapters", "shared")
"""Ways that treat weights differently where data parallelism shards them further."""


class TinyRun:
    """A model on one kind of device, and what its steps have given."""

    def __init__(
        self, kind: DeviceKind, config: TrainConfig, network: LlamaNetwork | None = None
    ) -> None:
        self.config = config
        name = "cpu" if kind is DeviceKind.CPU else "neuron"
        device = EagerDevice(kind, torch.device(name))
        if config.plan.num_ranks == 1:
            device.rank, device.num_ranks = 0, 1
        self.backend = NativeBackend(config, device, network or LlamaNetwork(config))
        # CPUs default to fp32, because bf16 is slow there.
        self.backend._mixed = config.mixed
        self.backend.build()
        document_eos_id = 0 if config.document_masks else None
        self.batch = random_batches(
            vocab_size=256, seed=1, seq_len=16, document_eos_id=document_eos_id
        )

    def micro_batches(self, number: int) -> torch.Tensor:
        """Compute the loss and the gradients of a step."""
        config, backend = self.config, self.backend
        count = config.plan.accumulation_steps
        loss = torch.tensor(0.0)
        for micro in range(count):
            tokens = self.batch(config.positions(number - 1, micro, backend.data_rank))
            loss = backend.forward_backward(tokens, is_last=micro == count - 1)
        return loss

    def step(self, number: int) -> Step:
        """Run one step as the loop does, without reading its numbers."""
        loss = self.micro_batches(number)
        return loss, self.backend.clip_and_step(self.config.learning_rate_at(number))

    def gradients(self) -> dict[str, torch.Tensor]:
        """Whole gradients of the second step, on the host."""
        self.step(1)
        self.micro_batches(2)
        return {
            name: (grad.full_tensor() if isinstance(grad, DTensor) else grad).cpu()
            for name, parameter in trainable_parameters(self.backend._model).items()
            if (grad := parameter.grad) is not None
        }

    def read(self, steps: list[Step]) -> list[float]:
        """Return losses and norms of steps."""
        return [
            number
            for loss, norm in steps
            for number in (self.backend.mean_over_data(loss), self.backend.fetch(norm))
        ]

    def losses(self, first: int) -> list[float]:
        """Return losses and norms from a step to the last."""
        return self.read([self.step(number) for number in range(first, STEPS + 1)])


@cache
def gradients_of_one_process(*words: str) -> dict[str, torch.Tensor]:
    """Return the gradients on the CPU."""
    values = parse([*words, "--tensor-parallel=1"]).values
    config = dataclasses.replace(TrainConfig.from_values(values, 1), mixed=False)
    return TinyRun(DeviceKind.CPU, config).gradients()


def distances(degree: str, *words: str) -> dict[str, Any]:
    """How far gradients are from those of one process on the CPU, how large graphs are, and more.

    Collectives without a wait stay in torch's memory until the process exits.
    """
    from trainium_emulators.neuron_device.counts import COUNTS

    torch._dynamo.reset()
    COUNTS.reset()
    values = parse([*words, f"--tensor-parallel={degree}"]).values
    config = dataclasses.replace(
        TrainConfig.from_values(values, dist.get_world_size()), mixed=False
    )
    found = TinyRun(DeviceKind.TORCH_NEURON, config).gradients()
    expected = gradients_of_one_process(*(word for word in words if not word.startswith(_OF_RANKS)))
    far = max(float((found[name] - e).norm() / e.norm()) for name, e in expected.items())
    unwaited = torch._C._distributed_c10d._get_work_registry_size()
    return {"far": far, "graphs": COUNTS.graphs, "unwaited": unwaited}


def counted_steps(config: TrainConfig) -> Iterator[tuple[TinyRun, Step, dict[str, int]]]:
    """Yield each step with its device operators, in a process that has compiled nothing yet."""
    from trainium_emulators.neuron_device.counts import COUNTS

    torch._dynamo.reset()
    COUNTS.signatures.clear()
    run = TinyRun(DeviceKind.TORCH_NEURON, config)
    for number in range(1, STEPS + 1):
        COUNTS.reset()
        made = run.step(number)
        counts = {
            "operations": COUNTS.operations.total(),
            "new_signatures": COUNTS.new_signatures.total(),
            "host_syncs": COUNTS.host_syncs.total(),
            "graphs": len(COUNTS.graphs),
            "graph_breaks": COUNTS.graph_breaks.total(),
        }
        yield run, made, counts


def trained(config: TrainConfig, folder: Path) -> dict[str, Any]:
    """Train, and resume from a checkpoint that was written during training.

    Numbers are read after the last step only, as in steps that are not logged.
    """
    objects = open_objects(str(folder), region=None, endpoint_url=None)
    checkpoints = Checkpoints(objects, Ranks.open(), keep_last=2, keep_every=0)
    steps, counts = [], []
    for first, made, count in counted_steps(config):
        steps.append(made)
        counts.append(count)
        if len(steps) == SAVED:
            first.backend.save(checkpoints, SAVED, {}, asynchronous=True)
    checkpoints.wait()
    second, info = TinyRun(DeviceKind.TORCH_NEURON, config), checkpoints.latest()
    assert info is not None
    assert second.backend.load(checkpoints, info).step == SAVED
    return {
        "cpu": TinyRun(DeviceKind.CPU, config).losses(1),
        "neuron": first.read(steps),
        "resumed": second.losses(SAVED + 1),
        "counts": counts,
    }


class NetworkWithDeterminant(LlamaNetwork):
    """A Llama whose loss needs an operator that the device leaves to the CPU."""

    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        nothing: torch.Tensor = 0 * torch.linalg.det(torch.eye(2, device="neuron"))
        return super().loss(model, batch) + nothing


def refusal_of_fallback(config: TrainConfig) -> str:
    """Return the error of such a network's first step; empty if none."""
    run = TinyRun(DeviceKind.TORCH_NEURON, config, NetworkWithDeterminant(config))
    try:
        run.step(1)
    except ExplainedError as error:
        return str(error)
    return ""


def remarks_without_fallback_functions(config: TrainConfig) -> list[str]:
    """Return what the trainer logs where TorchNeuron does not list operators run on the CPU."""
    import torch_neuronx

    remarks: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: remarks.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("training").setLevel(logging.INFO)
    logging.getLogger("training").addHandler(handler)
    with mock.patch.object(torch_neuronx, "get_fallback_ops"):
        del torch_neuronx.get_fallback_ops
        assert not refusal_of_fallback(config)
    logging.getLogger("training").removeHandler(handler)
    return remarks


def main(folder: str, *degrees: str) -> None:
    os.environ["LOCAL_RANK"] = os.environ["RANK"]
    # CPU tensors use gloo, device tensors their own backend.
    dist.init_process_group("cpu:gloo,neuron:neuron")
    found: dict[str, Any] = {}
    for degree in degrees:
        values = parse(["llama-tiny", *TINY, f"--tensor-parallel={degree}"]).values
        # Ranks compare their gradients below in fp32.
        for mixed in (False, True) if dist.get_world_size() == 1 else (True,):
            config = TrainConfig.from_values(values, dist.get_world_size())
            config = dataclasses.replace(config, mixed=mixed, max_steps=STEPS)
            case = f"tp{degree}-{'bf16' if mixed else 'fp32'}"
            found[case] = trained(config, Path(folder) / case)
        # With data parallelism alone, only weights are sharded.
        if degree == "1":
            names: tuple[str, ...] = ("resharded",)
        elif dist.get_world_size() > int(degree):
            names = IN_BOTH_DIMENSIONS
        else:
            names = tuple(WAYS)
        found[f"tp{degree}-gradients"] = {
            name: distances(degree, WAYS[name][0], *TINY, *WAYS[name][1:]) for name in names
        }
    if dist.get_world_size() == 1:
        allowed = dataclasses.replace(config, cpu_fallback=True)
        found["fallback"] = {
            "refused": refusal_of_fallback(config),
            "allowed": refusal_of_fallback(allowed),
            "remarks": remarks_without_fallback_functions(config),
        }
    print(json.dumps(found), flush=True)
    # As a worker exits: torch's last output would come after.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
