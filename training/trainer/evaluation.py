"""The validation loss: of text that is held out of training, computed every so many steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from training.trainer.metrics import EvaluationRecord
from training.trainer.watch import Stopwatch

if TYPE_CHECKING:
    from training.backends.base import ModelParallel
    from training.core.config import TrainConfig
    from training.trainer.watch import Watch

Stops = Callable[[], bool]
"""Whether the ranks have been asked to stop; all of them ask as often, and get one answer."""

Evaluate = Callable[[int, Stops], None]
"""Called after every step, with its number: evaluates where it is time to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """The sequences that are evaluated: positions 0 to ``num_sequences`` of an order of their own.

    The same for any number of ranks, any micro-batch and any seed of the run.
    """

    batch: Callable[[range], Any]
    """Positions to a micro-batch, as in training; any position has a sequence."""
    num_sequences: int


def evaluation_of(
    held_out: HeldOut | None,
    *,
    config: TrainConfig,
    backend: Any,
    watch: Watch,
    report: Callable[[str], None],
) -> Evaluate:
    """What the loop calls; it does nothing where nothing is held out."""
    if held_out is None:
        return lambda step, stops: None
    return Evaluation(config=config, backend=backend, held_out=held_out, watch=watch, report=report)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One rank's part in every evaluation of a job; every rank calls it after the same steps."""

    config: TrainConfig
    backend: ModelParallel
    held_out: HeldOut
    watch: Watch
    report: Callable[[str], None]

    def __call__(self, step: int, stops: Stops) -> None:
        """Evaluate after ``step``, if it is time; given up when the ranks are asked to stop."""
        if not self.config.evaluates_after(step):
            return
        clock = Stopwatch()
        losses = self._losses(step, stops)
        if losses is None:
            return
        loss = self._mean(losses)
        self.watch.evaluated(
            EvaluationRecord(
                step=step,
                val_loss=loss,
                sequences=self.held_out.num_sequences,
                evaluation_s=clock.seconds,
            )
        )

    def _losses(self, step: int, stops: Stops) -> list[torch.Tensor] | None:
        """Of this data rank's sequences, on the device: one tensor a micro-batch."""
        plan = self.config.plan
        at_once = plan.data_parallel * plan.micro_batch
        rounds = -(-self.held_out.num_sequences // at_once)
        found = []
        for number in range(rounds):
            if stops():
                return None
            self.report(f"evaluating after step {step}: {number + 1} of {rounds}")
            first = number * at_once + self.backend.data_rank * plan.micro_batch
            tokens = self.held_out.batch(range(first, first + plan.micro_batch))
            found.append(self.backend.losses_of(tokens))
        return found

    def _mean(self, losses: list[torch.Tensor]) -> float:
        """Over all sequences of all data ranks; the same on every rank.

        Micro-batches are full, as in training, so that they are one graph: what the last ones have
        beyond the end is computed and not counted.
        """
        plan, left = self.config.plan, self.held_out.num_sequences
        total = 0.0
        for number, tensor in enumerate(losses):
            first = (number * plan.data_parallel + self.backend.data_rank) * plan.micro_batch
            total += sum(tensor.tolist()[: max(0, left - first)])
        part = torch.tensor(total * plan.data_parallel / left, dtype=torch.float32)
        return self.backend.mean_over_data(part.to(losses[0].device))
