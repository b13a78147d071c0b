"""The complete configuration of a training run, as one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from trainium_catalogue.models.presets import Shape
from trainium_catalogue.parameters.layout import Layout
from trainium_catalogue.parameters.parameter import Value
from trainium_catalogue.parameters.plan import TrainingPlan


class Optimizer(StrEnum):
    """The available optimizers."""

    ADAMW = "AdamW"
    SGD = "SGD"
    """Plain gradient descent without momentum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """The parameters of a training workload, named as in the catalogue."""

    plan: TrainingPlan
    max_steps: int
    steps_this_run: int
    """0: continue to ``max_steps``."""
    learning_rate: float
    """Peak, reached at the end of the warm-up."""
    warmup_steps: int
    optimizer: Optimizer = Optimizer.ADAMW
    decays_learning_rate: bool = True
    """True if the learning rate decays to 0 after the warm-up."""
    mixed: bool = True
    """True for bf16 arithmetic and fp32 master weights on accelerators."""
    weight_decay: float
    """Applied to matrices, not to norms and biases."""
    beta1: float
    beta2: float
    adam_eps: float
    max_grad_norm: float
    """0: gradients are not clipped."""
    seed: int
    activation_checkpointing: bool = False
    save_every: int
    """0: only at the end."""
    keep_last: int
    keep_every: int
    async_save: bool
    checkpoint_uri: str
    """Empty: the run's default location."""
    log_every: int
    layout: Layout | None = None
    """How the model is split across ranks, if it can be."""
    document_masks: bool = False
    """True if tokens attend only to tokens of the same document."""
    responses: bool = False
    """True if only responses contribute to the loss."""
    eval_every: int = 0
    """0: never evaluate."""
    eval_sequences: int = 0
    """Upper bound on sequences from the validation split."""
    dropout: float = 0.0
    max_predictions: int = 0
    """Maximum masked positions per sequence, for masked language models."""
    compile_only: bool = False
    cpu_fallback: bool = False
    """True if operators that TorchNeuron lacks may run on the CPU."""

    @property
    def shape(self) -> Shape:
        """The model."""
        return self.plan.shape

    @staticmethod
    def from_values(values: Mapping[str, Value], num_ranks: int) -> TrainConfig:
        """Read a workload's parameters; raise ``ValueError`` if they conflict."""
        plan = TrainingPlan.from_values(values, num_ranks)
        named = {name.replace("-", "_"): value for name, value in values.items()}
        known = {item.name for item in fields(TrainConfig)}
        unchanged: dict[str, Any] = {name: value for name, value in named.items() if name in known}
        return TrainConfig(
            plan=plan,
            learning_rate=float(values["lr"]),
            layout=Layout.choose(values, plan) if "sequence-parallel" in values else None,
            **unchanged,
        )

    def last_step(self, done: int) -> int:
        """Return the last step of a job that starts after ``done`` steps."""
        if self.steps_this_run:
            return min(self.max_steps, done + self.steps_this_run)
        return self.max_steps

    def evaluates_after(self, step: int) -> bool:
        """Return whether the validation loss is due after optimizer step ``step``."""
        return self.eval_every > 0 and (step % self.eval_every == 0 or step == self.max_steps)

    def learning_rate_at(self, step: int) -> float:
        """Compute the learning rate of optimizer step ``step`` (1-based).

        Linear warm-up to the peak at step ``warmup_steps``, then linear decay that would reach 0
        one step after the last.
        """
        if step <= self.warmup_steps:
            return self.learning_rate * step / self.warmup_steps
        if not self.decays_learning_rate:
            return self.learning_rate
        decay_steps = self.max_steps - self.warmup_steps
        return self.learning_rate * max(0, self.max_steps + 1 - step) / max(1, decay_steps)

    def positions(self, step: int, micro: int, data_rank: int) -> range:
        """Return a data-parallel rank's positions in the data order for one micro-batch.

        Step ``step`` of the run (0-based) takes ``global_batch`` consecutive positions, regardless
        of the number of ranks, and each rank a contiguous part of them; ``micro`` is the 0-based
        index of the accumulation step.
        """
        plan = self.plan
        first = step * plan.global_batch
        first += (data_rank * plan.accumulation_steps + micro) * plan.micro_batch
        return range(first, first + plan.micro_batch)

    @property
    def positions_per_rank(self) -> int:
        """Positions per data-parallel rank and step."""
        return self.plan.accumulation_steps * self.plan.micro_batch
