"""What a run says of itself beside its steps: its plan, its place, its first status."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from training.core.config import TrainConfig
    from training.core.progress import RunContext

_UNKNOWN = (
    *("loss", "lr", "grad_norm", "tokens_per_second", "sequences_per_second", "mfu"),
    *(
        "val_loss",
        "val_step",
        "step_seconds",
        "eta_seconds",
        "last_checkpoint_step",
        "last_checkpoint_time",
        "error",
    ),
)


def plan_line(config: TrainConfig, *, done: int, backend: str) -> str:
    """Every derived number, for the log."""
    plan = config.plan
    return (
        f"{plan.shape.num_parameters:,} parameters; tensor parallel {plan.tensor_parallel} x data "
        f"parallel {plan.data_parallel}; global batch {plan.global_batch} = {plan.data_parallel} "
        f"ranks x {plan.micro_batch} sequences x {plan.accumulation_steps} accumulation steps; "
        f"{plan.tokens_per_step:,} tokens a step; steps {done + 1} to {config.last_step(done)} of "
        f"{config.max_steps}; a checkpoint takes {plan.checkpoint_bytes / 1e9:.3g} GB; back-end "
        f"{backend}"
    )


def place(context: RunContext, *, num_ranks: int, backend: str) -> dict[str, Any]:
    """On what the run is trained, for the metrics."""
    return {
        "job_id": context.job_id,
        "deployment": context.deployment,
        "device": context.device,
        "instance_type": context.instance_type,
        "neuron_release": context.neuron_release,
        "num_nodes": context.num_nodes,
        "processes_per_node": context.processes_per_node,
        "num_ranks": num_ranks,
        "backend": backend,
    }


def first_status(context: RunContext, *, workload: str, max_steps: int) -> dict[str, Any]:
    """Every field of status.json, most of them unknown."""
    return {
        "run": context.run,
        "workload": workload,
        "state": "starting",
        "step": 0,
        "max_steps": max_steps,
        **dict.fromkeys(_UNKNOWN),
        "tokens_total": 0,
        "attempt": context.attempt,
        "job_id": context.job_id,
        "num_nodes": context.num_nodes,
        "failed_saves": 0,
    }


def reference_parameters(
    config: TrainConfig,
    *,
    workload: str,
    dataset: str,
    device: str,
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """The ``parameters`` of results.json, by the reference's names."""
    plan = config.plan
    return {
        "Model": workload,
        "Model configuration": dataclasses.asdict(config.shape),
        "World size": plan.num_ranks,
        "Data parallel degree": plan.data_parallel,
        "Batch size": plan.micro_batch,
        "Total steps": config.max_steps,
        "Seed": config.seed,
        "Optimizer": config.optimizer.value,
        "Data type": "bfloat16" if config.mixed and device != "cpu" else "float32",
        "Gradient accumulation microsteps": plan.accumulation_steps,
        "Warmup steps": config.warmup_steps,
        "Dataset": dataset,
        "Environment variables": dict(environment),
    }
