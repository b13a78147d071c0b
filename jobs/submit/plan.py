"""The arithmetic of a submission, shown before the question: what follows from its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs.errors import Refusal
from jobs.submit.inputs import Inputs
from trainium_catalogue.parameters.allreduce import check_sweep
from trainium_catalogue.parameters.plan import TrainingPlan
from trainium_catalogue.parameters.verify import check_verify
from trainium_catalogue.workloads import Value, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a submission will do, for people and for programs."""

    lines: tuple[str, ...] = ()
    document: Mapping[str, Any] | None = None
    """``plan`` of ``submit --json``; None where there is nothing to derive."""


def check_sweep_values(values: Mapping[str, Value], *, num_ranks: int) -> None:
    """Refuse all-reduce parameters that contradict each other."""
    try:
        check_sweep(values, num_ranks)
    except ValueError as error:
        raise Refusal("plan", f"--{error}") from None


def check_verify_values(values: Mapping[str, Value], *, num_ranks: int) -> None:
    """Refuse checks that there are not, and a degree that the ranks do not allow."""
    try:
        check_verify(values, num_ranks)
    except ValueError as error:
        raise Refusal("plan", f"--{error}") from None


def training_plan(workload: Workload, inputs: Inputs, *, run: str, num_ranks: int) -> Plan:
    """Every number that follows from model, batch and ranks; refuses what leaves a remainder."""
    values = inputs.values
    try:
        plan = TrainingPlan.from_values(values, num_ranks)
    except ValueError as error:
        raise Refusal("plan", f"--{error}") from None
    max_steps = int(values["max-steps"])
    step = inputs.checkpoints.newest if inputs.checkpoints is not None else None
    tokens = int(inputs.dataset["num_tokens"])
    document = {
        "num_parameters": plan.shape.num_parameters,
        "num_ranks": num_ranks,
        "tensor_parallel": plan.tensor_parallel,
        "data_parallel": plan.data_parallel,
        "global_batch": plan.global_batch,
        "micro_batch": plan.micro_batch,
        "accumulation_steps": plan.accumulation_steps,
        "seq_len": plan.seq_len,
        "tokens_per_step": plan.tokens_per_step,
        "max_steps": max_steps,
        "checkpoint_bytes": plan.checkpoint_bytes,
        "dataset": values["dataset"],
        "dataset_tokens": tokens,
        "run_exists": inputs.exists,
        "continues_from_step": step,
    }
    total = max_steps * plan.tokens_per_step
    lines = (
        f"model: {plan.shape.num_parameters:,} parameters; a checkpoint takes "
        f"{plan.checkpoint_bytes / 1e9:.3g} GB",
        f"ranks: {num_ranks} = tensor parallel {plan.tensor_parallel} x data parallel "
        f"{plan.data_parallel}",
        f"batch: {plan.global_batch:,} sequences of {plan.seq_len:,} = {plan.data_parallel} ranks "
        f"x {plan.micro_batch} x {plan.accumulation_steps} accumulation steps; "
        f"{plan.tokens_per_step:,} tokens a step",
        f"data: {values['dataset']}, {tokens:,} tokens; {max_steps:,} steps read "
        f"{total:,} tokens, {total / tokens:.3g} times the dataset",
        f"run {run}: {_standing(inputs, max_steps)}",
    )
    return Plan(lines=lines, document=document)


def _standing(inputs: Inputs, max_steps: int) -> str:
    checkpoints = inputs.checkpoints
    if checkpoints is None:
        return "new"
    if not checkpoints.are_seen:
        return f"continues from the newest checkpoint in {checkpoints.uri}"
    step = checkpoints.newest
    if step is None:
        return "no complete checkpoint yet, begins at step 0"
    if step >= max_steps:
        return f"has all its {max_steps:,} steps; give a larger --max-steps to train on"
    return f"continues from step {step:,} of {max_steps:,}"
