"""Everything that decides a training run, as one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from trainium_catalogue.models import Shape
from trainium_catalogue.parameters.parameter import Value
from trainium_catalogue.parameters.plan import TrainingPlan


class Optimizer(StrEnum):
    """The rules by which gradients change weights."""

    ADAMW = "AdamW"
    SGD = "SGD"
    """Without momentum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """The parameters of a training workload; the names are those of the catalogue."""

    plan: TrainingPlan
    max_steps: int
    steps_this_run: int
    """0: up to ``max_steps``."""
    learning_rate: float
    """The peak, reached at the end of the warm-up."""
    warmup_steps: int
    optimizer: Optimizer = Optimizer.ADAMW
    rate_falls: bool = True
    """The learning rate falls to 0 after the warm-up."""
    mixed: bool = True
    """Use bf16 arithmetic and fp32 master weights on accelerators."""
    weight_decay: float
    """Applies to matrices, not to norms and biases."""
    beta1: float
    beta2: float
    adam_eps: float
    max_grad_norm: float
    """0: gradients are not clipped."""
    seed: int
    activation_checkpointing: bool
    save_every: int
    """0: only at the end."""
    keep_last: int
    keep_every: int
    async_save: bool
    checkpoint_uri: str
    """Empty: the run's own place."""
    log_every: int
    document_masks: bool = False
    """Tokens attend to their own document only."""
    eval_every: int = 0
    """0: nothing is evaluated."""
    eval_sequences: int = 0
    """The most that are taken of the validation split."""
    dropout: float = 0.0
    max_predictions: int = 0
    """The most in a sequence, where words are predicted at some positions only."""
    compile_only: bool = False

    @property
    def shape(self) -> Shape:
        """The model."""
        return self.plan.shape

    @staticmethod
    def from_values(values: Mapping[str, Value], num_ranks: int) -> TrainConfig:
        """Read a workload's parameters; ``ValueError`` where they disagree with each other."""
        return TrainConfig(
            plan=TrainingPlan.from_values(values, num_ranks),
            max_steps=int(values["max-steps"]),
            steps_this_run=int(values["steps-this-run"]),
            learning_rate=float(values["lr"]),
            warmup_steps=int(values["warmup-steps"]),
            weight_decay=float(values["weight-decay"]),
            beta1=float(values["beta1"]),
            beta2=float(values["beta2"]),
            adam_eps=float(values["adam-eps"]),
            max_grad_norm=float(values["max-grad-norm"]),
            seed=int(values["seed"]),
            activation_checkpointing=bool(values.get("activation-checkpointing", False)),
            save_every=int(values["save-every"]),
            keep_last=int(values["keep-last"]),
            keep_every=int(values["keep-every"]),
            async_save=bool(values["async-save"]),
            checkpoint_uri=str(values["checkpoint-uri"]),
            log_every=int(values["log-every"]),
            document_masks=bool(values.get("document-masks", False)),
            eval_every=int(values.get("eval-every", 0)),
            eval_sequences=int(values.get("eval-sequences", 0)),
            dropout=float(values.get("dropout", 0.0)),
            max_predictions=int(values.get("max-predictions", 0)),
            compile_only=bool(values["compile-only"]),
        )

    def last_step(self, done: int) -> int:
        """The step at which a job ends that begins with ``done`` steps behind it."""
        if self.steps_this_run:
            return min(self.max_steps, done + self.steps_this_run)
        return self.max_steps

    def evaluates_after(self, step: int) -> bool:
        """Tell if the validation loss is computed after optimizer step ``step``."""
        return self.eval_every > 0 and (step % self.eval_every == 0 or step == self.max_steps)

    def learning_rate_at(self, step: int) -> float:
        """Compute the learning rate of optimizer step ``step``, counted from 1.

        Linear warm-up to the peak, which step ``warmup_steps`` has, then linear to 0, which the
        step after the last one would have.
        """
        if step <= self.warmup_steps:
            return self.learning_rate * step / self.warmup_steps
        if not self.rate_falls:
            return self.learning_rate
        falling = self.max_steps - self.warmup_steps
        return self.learning_rate * max(0, self.max_steps + 1 - step) / max(1, falling)

    def positions(self, step: int, micro: int, data_rank: int) -> range:
        """Positions in the data order that a data rank computes at once.

        Step ``step``, counted from 0, of the run takes ``global_batch`` positions in a row, the
        same for any number of ranks, and each rank a part of them in a row; ``micro`` counts the
        accumulation steps.
        """
        plan = self.plan
        first = step * plan.global_batch
        first += (data_rank * plan.accumulation_steps + micro) * plan.micro_batch
        return range(first, first + plan.micro_batch)

    @property
    def positions_of_a_rank(self) -> int:
        """Number of positions that each data rank computes in a step."""
        return self.plan.accumulation_steps * self.plan.micro_batch
