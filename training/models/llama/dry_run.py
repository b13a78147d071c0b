"""``--dry-run-full``: plans a run at full size without hardware, and checks a rank's memory.

python -m training.launch llama2-7b --dry-run-full --nodes 4 --instance-type trn1.32xlarge

The training code builds the model on the meta device and shards it over a fake process group of all
ranks, so the shapes are PyTorch's own and not this project's arithmetic.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

# Registers the process group "fake", which torchtitan's dry runs also use.
from torch.testing._internal.distributed.fake_pg import FakeStore

from training.core.arguments import DRY_RUN_FULL as FLAG
from training.core.arguments import PROGRAM, parse
from training.models.llama.huggingface import decoder_config, meta_model
from training.models.llama.lora import attach
from training.models.llama.parallel import parallelize
from trainium_catalogue.instances import InstanceType, find_instance_type
from trainium_catalogue.models.presets import DECODERS
from trainium_catalogue.parameters.layout import (
    FILLED,
    Layout,
    Recompute,
    activation_bytes,
    check_backend,
    has_torch_neuron,
    saved_by_resharding,
)
from trainium_catalogue.parameters.parameter import Value
from trainium_catalogue.parameters.plan import GIB, Gathered, RankState, TrainingPlan
from trainium_catalogue.releases import TorchBackend

_BF16, _FP32 = 2, 4


class DoesNotFit(ValueError):
    """The run needs more memory than a rank has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShards:
    """One rank's parameters, as sharded by PyTorch."""

    tensor_parallel: int
    """Number of weights after tensor parallelism."""
    trained: int
    """Number of trainable weights among them: all, or only adapters."""
    data_parallel: int
    """Number of trainable weights after data-parallel sharding: master weights, moments."""
    frozen: int
    """Number of frozen weights after data-parallel sharding."""
    root: Gathered
    """Everything outside the layers."""
    layer: Gathered


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory use of one rank in bytes, by purpose."""

    weights: int
    """bf16, after tensor parallelism; with reshard-after-forward, those gathered at once."""
    gradients: int
    """fp32, accumulated over micro-batches; with reshard-after-forward see ``RankState``."""
    optimizer: int
    """fp32 master weights and two moments of this rank's shard."""
    activations: int
    """Estimated peak of one micro-batch, without the compiler's own buffers."""
    available: int
    saved_by_resharding: int = 0
    """Bytes that would not be needed with reshard-after-forward=true."""

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return self.weights + self.gradients + self.optimizer + self.activations

    def refuse_too_much(self, plan: TrainingPlan, layout: Layout) -> None:
        """Raise ``DoesNotFit``, with the remedy, unless the rank has enough memory."""
        if self.total <= self.available:
            return
        remedy = self._remedy(layout, limit=self.available)
        raise DoesNotFit(
            f"a rank needs {self.total / GIB:.1f} GiB (weights, gradients and optimizer "
            f"{self._state / GIB:.1f}, activations {self.activations / GIB:.1f}) at "
            f"tensor-parallel={plan.tensor_parallel}, micro-batch={plan.micro_batch}, "
            f"seq-len={plan.seq_len}, but has {self.available / GIB:.0f} GiB; {remedy}"
        )

    def warning(self, layout: Layout) -> str | None:
        """Return a warning if the compiler's own buffers, whose size is unknown, may not fit.

        Not an error, because ``activations`` is an upper bound, and fusion reduces the actual use.
        """
        limit = FILLED * self.available
        if self.total <= limit:
            return None
        return (
            f"the plan fills {self.total / self.available:.0%} of a rank's memory, and beyond "
            f"{FILLED:.0%} the compiler's copies and collectives may not fit; if they do not, "
            f"{self._remedy(layout, limit=limit)}"
        )

    @property
    def _state(self) -> int:
        return self.total - self.activations

    def _remedy(self, layout: Layout, *, limit: float) -> str:
        if self.total - self.saved_by_resharding <= limit:
            return "set reshard-after-forward=true, with TorchNeuron"
        if self._state > self.available:
            return "raise tensor-parallel, or use more nodes to shard the optimizer further"
        if layout.recompute is Recompute.NOTHING:
            return "set activation-checkpointing=true"
        if layout.recompute is not Recompute.LAYERS:
            return "set recompute=auto"
        return "lower micro-batch or seq-len, or raise tensor-parallel"


def measure_shards(plan: TrainingPlan) -> RankShards:
    """Build and shard the model as rank 0 of ``plan.num_ranks``, in its own process group."""
    assert not dist.is_initialized()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=plan.num_ranks)
    try:
        mesh = init_device_mesh(
            "cpu",
            (plan.data_parallel, plan.tensor_parallel),
            mesh_dim_names=("data", "tensor"),
        )
        model = meta_model(decoder_config(plan.shape, seq_len=plan.seq_len))
        if plan.tensor_parallel > 1:
            parallelize(model, mesh["tensor"])
        if plan.lora is not None:
            attach(model, plan.lora, mesh["tensor"] if plan.tensor_parallel > 1 else None)
        whole = _count(model.parameters())
        of_layer = _count(model.model.layers[0].parameters())
        of_layers = _count(model.model.layers.parameters())
        if plan.data_parallel > 1:
            for layer in model.model.layers:
                fully_shard(layer, mesh=mesh["data"], reshard_after_forward=False)
            fully_shard(model, mesh=mesh["data"], reshard_after_forward=False)
        sharded = _count(model.parameters())
    finally:
        dist.destroy_process_group()
    return RankShards(
        tensor_parallel=whole.weights,
        trained=whole.trained,
        data_parallel=sharded.trained,
        frozen=sharded.weights - sharded.trained,
        root=Gathered(
            weights=whole.weights - of_layers.weights, trained=whole.trained - of_layers.trained
        ),
        layer=of_layer,
    )


def _count(parameters: Iterable[torch.Tensor]) -> Gathered:
    """Count parameters of this rank."""
    sizes = [(_local(p).numel(), p.requires_grad) for p in parameters]
    return Gathered(
        weights=sum(size for size, _ in sizes),
        trained=sum(size for size, trained in sizes if trained),
    )


def _local(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def rank_memory(
    plan: TrainingPlan,
    shards: RankShards,
    instance_type: InstanceType,
    layout: Layout,
) -> Memory:
    """Compute the memory that a rank needs and has."""
    hbm_gib = instance_type.hbm_gib_per_device * instance_type.num_neuron_devices
    state = RankState(
        weights=_BF16 * shards.tensor_parallel,
        gradients=_FP32 * shards.trained,
        optimizer=3 * _FP32 * shards.data_parallel,
    )
    if plan.reshard_after_forward:
        state = RankState.resharded(
            shards.root,
            shards.layer,
            trained=shards.trained,
            trained_shard=shards.data_parallel,
            frozen_shard=shards.frozen,
            accumulates=plan.accumulation_steps > 1,
        )
    return Memory(
        **dataclasses.asdict(state),
        activations=activation_bytes(plan, layout),
        available=hbm_gib * GIB // instance_type.num_logical_cores,
        saved_by_resharding=saved_by_resharding(plan, instance_type),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """Outcome of a dry run: PyTorch's numbers compared with the plan's."""

    workload: str
    num_nodes: int
    instance_type: str
    plan: TrainingPlan
    layout: Layout
    """Layout under NxD."""
    shards: RankShards
    memory: Memory
    seconds: float

    @property
    def agrees(self) -> bool:
        """Return whether the plan's numbers match PyTorch's."""
        return (
            self.plan.parameters_per_rank == self.shards.tensor_parallel
            and self.plan.optimizer_parameters_per_rank == self.shards.data_parallel
        )

    def rows(self) -> list[tuple[str, str]]:
        """Build the rows of the table: quantity and amount."""
        plan, memory = self.plan, self.memory
        return [
            ("ranks", f"{plan.num_ranks} on {self.num_nodes} x {self.instance_type}"),
            ("tensor x data parallel", f"{plan.tensor_parallel} x {plan.data_parallel}"),
            (
                "global batch",
                f"{plan.global_batch} = {plan.data_parallel} x {plan.micro_batch} x "
                f"{plan.accumulation_steps}; {plan.tokens_per_step:,} tokens per step",
            ),
            ("parameters", f"{plan.shape.num_parameters:,}"),
            ("  per rank", f"{self.shards.tensor_parallel:,}"),
            ("  in its optimizer", f"{self.shards.data_parallel:,}"),
            ("weights, bf16", _gib(memory.weights)),
            ("gradients, fp32", _gib(memory.gradients)),
            ("master weights, moments", _gib(memory.optimizer)),
            ("activations (estimate)", _gib(memory.activations)),
            (
                "sum",
                f"{_gib(memory.total)} of {memory.available / GIB:.0f} GiB, "
                f"{memory.total / memory.available:.0%}",
            ),
            ("with NeuronX Distributed", self.layout.describe()),
            ("checkpoint", f"{plan.checkpoint_bytes / 1e9:.1f} GB"),
            ("plan's own numbers", "match PyTorch's" if self.agrees else "differ from PyTorch's"),
        ]

    def document(self) -> dict[str, object]:
        """Build a JSON document of the outcome."""
        return {
            "workload": self.workload,
            "num_nodes": self.num_nodes,
            "instance_type": self.instance_type,
            "num_ranks": self.plan.num_ranks,
            "tensor_parallel": self.plan.tensor_parallel,
            "data_parallel": self.plan.data_parallel,
            "accumulation_steps": self.plan.accumulation_steps,
            "num_parameters": self.plan.shape.num_parameters,
            "parameters_per_rank": self.shards.tensor_parallel,
            "optimizer_parameters_per_rank": self.shards.data_parallel,
            "memory_bytes": {**dataclasses.asdict(self.memory), "total": self.memory.total},
            "checkpoint_bytes": self.plan.checkpoint_bytes,
            "plan_agrees": self.agrees,
            "seconds": round(self.seconds, 3),
        }


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f} GiB"


def dry_run(
    workload: str, values: Mapping[str, Value], *, num_nodes: int, instance_type: InstanceType
) -> DryRun:
    """Shard the model of a training workload over the ranks of ``num_nodes`` nodes."""
    began = time.perf_counter()
    if not has_torch_neuron(instance_type):
        check_backend(values, TorchBackend.XLA)
    plan = TrainingPlan.from_values(values, num_nodes * instance_type.processes_per_node)
    shards = measure_shards(plan)
    layout = Layout.choose(values, plan)
    memory = rank_memory(plan, shards, instance_type, layout)
    return DryRun(
        workload=workload,
        num_nodes=num_nodes,
        instance_type=instance_type.name,
        plan=plan,
        layout=layout,
        shards=shards,
        memory=memory,
        seconds=time.perf_counter() - began,
    )


def main(words: Sequence[str]) -> int:
    """Print the table; return 0 if the run fits, otherwise print the reason and return 2.

    Warns if the plan leaves little memory for the compiler.
    """
    parser = argparse.ArgumentParser(
        prog=f"{PROGRAM} <workload> {FLAG}", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--nodes", type=int, default=None)
    parser.add_argument("--instance-type", default="trn1.32xlarge")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options, rest = parser.parse_known_args([word for word in words if word != FLAG])
    try:
        request = parse(rest)
        name = request.workload.name
        if name not in DECODERS:
            raise ValueError(f"{name} has no model to shard; {FLAG} supports {', '.join(DECODERS)}")
        outcome = dry_run(
            name,
            request.values,
            num_nodes=options.nodes or request.workload.default_nodes,
            instance_type=find_instance_type(options.instance_type),
        )
        if options.json:
            print(json.dumps(outcome.document(), indent=1))
        else:
            width = max(len(quantity) for quantity, _ in outcome.rows())
            print(
                "\n".join(f"{quantity:<{width}}  {amount}" for quantity, amount in outcome.rows())
            )
        outcome.memory.refuse_too_much(outcome.plan, outcome.layout)
        if (warning := outcome.memory.warning(outcome.layout)) is not None:
            print(f"dry run: warning: {warning}", file=sys.stderr)
    except ValueError as error:
        print(f"dry run: {error}", file=sys.stderr)
        return 2
    return 0
