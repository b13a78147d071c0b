"""``--dry-run-full``: shards and memory of a training workload as a table, or as JSON.

python -m training.launch llama2-7b --dry-run-full --nodes 4 --instance-type trn1.32xlarge
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from training.core.arguments import DRY_RUN_FULL as FLAG
from training.core.arguments import PROGRAM, parse
from training.models.llama.dry_run import Memory, Shards, measure_shards, rank_memory
from trainium_catalogue.instances import InstanceType, find_instance_type
from trainium_catalogue.models import LLAMA_PRESETS
from trainium_catalogue.parameters.parameter import Value
from trainium_catalogue.parameters.plan import GIB, TrainingPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """The outcome: PyTorch's numbers beside the plan's."""

    workload: str
    num_nodes: int
    instance_type: str
    plan: TrainingPlan
    shards: Shards
    memory: Memory
    seconds: float

    @property
    def agrees(self) -> bool:
        """Whether the arithmetic that plans are made with is PyTorch's."""
        return (
            self.plan.parameters_per_rank == self.shards.tensor_parallel
            and self.plan.optimizer_parameters_per_rank == self.shards.data_parallel
        )

    def rows(self) -> list[tuple[str, str]]:
        """A table: what, and how much."""
        plan, memory = self.plan, self.memory
        return [
            ("ranks", f"{plan.num_ranks} on {self.num_nodes} x {self.instance_type}"),
            ("tensor x data parallel", f"{plan.tensor_parallel} x {plan.data_parallel}"),
            (
                "global batch",
                f"{plan.global_batch} = {plan.data_parallel} x {plan.micro_batch} x "
                f"{plan.accumulation_steps}; {plan.tokens_per_step:,} tokens a step",
            ),
            ("parameters", f"{plan.shape.num_parameters:,}"),
            ("  of a rank", f"{self.shards.tensor_parallel:,}"),
            ("  of its optimizer", f"{self.shards.data_parallel:,}"),
            ("weights, bf16", _gib(memory.weights)),
            ("gradients, fp32", _gib(memory.gradients)),
            ("master weights, moments", _gib(memory.optimizer)),
            ("activations (estimate)", _gib(memory.activations)),
            ("sum", f"{_gib(memory.total)} of {memory.available / GIB:.0f} GiB"),
            ("checkpoint", f"{plan.checkpoint_bytes / 1e9:.1f} GB"),
            ("arithmetic of the plan", "the same" if self.agrees else "rounded differently"),
        ]

    def document(self) -> dict[str, object]:
        """The same for programs."""
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
    """Shard the model of a training workload over the ranks of so many nodes."""
    began = time.perf_counter()
    plan = TrainingPlan.from_values(values, num_nodes * instance_type.processes_per_node)
    shards = measure_shards(plan)
    memory = rank_memory(
        plan,
        shards,
        instance_type,
        activation_checkpointing=bool(values["activation-checkpointing"]),
    )
    return DryRun(
        workload=workload,
        num_nodes=num_nodes,
        instance_type=instance_type.name,
        plan=plan,
        shards=shards,
        memory=memory,
        seconds=time.perf_counter() - began,
    )


def main(words: Sequence[str]) -> int:
    """Print the table; 0 when the run fits, 2 with a reason when it cannot be."""
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
        if name not in LLAMA_PRESETS:
            raise ValueError(
                f"{name} has no model to split; {FLAG} takes {', '.join(LLAMA_PRESETS)}"
            )
        outcome = dry_run(
            name,
            request.values,
            num_nodes=options.nodes or request.workload.default_nodes,
            instance_type=find_instance_type(options.instance_type),
        )
        if options.json:
            print(json.dumps(outcome.document(), indent=1))
        else:
            width = max(len(what) for what, _ in outcome.rows())
            print("\n".join(f"{what:<{width}}  {much}" for what, much in outcome.rows()))
        outcome.memory.refuse_too_much(
            outcome.plan, activation_checkpointing=bool(request.values["activation-checkpointing"])
        )
    except ValueError as error:
        print(f"dry run: {error}", file=sys.stderr)
        return 2
    return 0
