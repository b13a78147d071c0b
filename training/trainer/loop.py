"""The training loop, for every model size, device and number of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch

from training.storage import StorageUnavailable
from training.trainer.metrics import Stopwatch
from training.trainer.records import EvaluationRecord
from training.trainer.vote import StopVote, Vote

if TYPE_CHECKING:
    from training.backends.base import Backend, ModelParallel
    from training.checkpoint import Checkpoints
    from training.core.config import TrainConfig
    from training.core.job import StopSwitch
    from training.core.ranks import Ranks
    from training.trainer.metrics import MetricsRecorder
    from training.trainer.task import HeldOutSplit


EVALUATED = "evaluated"
"""Field of a checkpoint's metadata: false if the evaluation due after its step was abandoned."""
FAILED_SAVES = 3
"""Consecutive failed saves after which the job fails, since its work would be lost."""


class Diverged(ValueError):
    """The loss or gradient norm is not finite, so further steps are useless."""


class LoopEnd(StrEnum):
    """Reasons for the loop to end."""

    FINISHED = "finished"
    """All steps of the run are done."""
    PAUSED = "paused"
    """All steps of this job are done; the run has more."""
    STOPPED = "stopped"
    """Stopped on request, after the last complete step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A completed step whose metrics are still on the device."""

    number: int
    loss: torch.Tensor
    """The loss on this data-parallel rank."""
    grad_norm: torch.Tensor
    data_s: float


@dataclass(slots=True, kw_only=True)
class Loop:
    """The steps of a job on one rank; every rank runs the same steps."""

    config: TrainConfig
    backend: Backend
    batch: Callable[[range], Any]
    """Maps positions in the data order to a micro-batch for the model."""
    metrics: MetricsRecorder
    stop: StopSwitch
    ranks: Ranks
    """A group reserved for the loop until it ends."""
    report: Callable[[str], None]
    checkpoints: Checkpoints | None = None
    """None if nothing is saved."""
    meta: dict[str, Any] = field(default_factory=dict)
    """Metadata of every checkpoint of this job."""
    held_out: HeldOutSplit | None = None
    """None if nothing is evaluated."""
    has_pending_evaluation: bool = False
    """True if the evaluation due after the steps so far was abandoned."""
    say: Callable[[str], None] = lambda text: None
    """Writes one line to the log, on one rank only."""
    check: Callable[[], None] = lambda: None
    """Raises if this job must not continue."""
    _vote: Vote = field(init=False)

    def __post_init__(self) -> None:
        self._vote = Vote(self.ranks, self.report)

    def run(self, done: int) -> LoopEnd:
        """Continue after ``done`` steps; return once the last save is complete on every rank."""
        config, last = self.config, self.config.last_step(done)
        end = LoopEnd.FINISHED if last == config.max_steps else LoopEnd.PAUSED
        saved = done
        unlogged: _Step | None = None
        if self.has_pending_evaluation:
            self._evaluate(done)
        for number in range(done + 1, last + 1):
            self.check()
            clock = Stopwatch()
            step = self._step(number, last)
            if step is None:
                end = LoopEnd.STOPPED
                saved = self._save_last_complete_step(number - 1, saved, unlogged)
                break
            is_last = number == last
            is_saved = is_last or (config.save_every > 0 and number % config.save_every == 0)
            # Log before evaluations too: otherwise their time would include the step's pending
            # work.
            is_logged = is_saved or config.evaluates_after(number)
            is_logged = is_logged or number % config.log_every == 0 or number == done + 1
            # Fetching metrics also waits for the device.
            fetched = self._fetch(step) if is_logged else None
            self.metrics.count(number, step_s=clock.seconds, data_s=step.data_s)
            unlogged = step
            if fetched is not None:
                self._log(number, *fetched)
                unlogged = None
            # Before the save, so that a run that resumes from it includes the evaluation.
            self._evaluate(number)
            if is_saved:
                self._save(number, asynchronous=config.async_save and not is_last)
                saved = number
        self._complete(saved)
        return LoopEnd.STOPPED if self.has_pending_evaluation else end

    def _step(self, number: int, last: int) -> _Step | None:
        """Run one optimizer step; return None if the ranks stop before it is complete."""
        config, backend = self.config, self.backend
        data_s = 0.0
        loss: torch.Tensor | None = None
        count = config.plan.accumulation_steps
        for micro in range(count):
            if self._should_stop():
                self.say(
                    f"stop requested: discarding {micro} of {count} micro-batches of step {number}"
                )
                if micro:
                    backend.drop_step()
                return None
            self.report(f"step {number} of {last}")
            waiting = Stopwatch()
            tokens = self.batch(config.positions(number - 1, micro, backend.data_rank))
            data_s += waiting.seconds
            loss = backend.forward_backward(tokens, is_last=micro == count - 1)
        assert loss is not None
        grad_norm = backend.clip_and_step(config.learning_rate_at(number))
        return _Step(number=number, loss=loss, grad_norm=grad_norm, data_s=data_s)

    def _fetch(self, step: _Step) -> tuple[float, float]:
        """Fetch the mean loss and the gradient norm; must be called on every rank."""
        return self.backend.mean_over_data(step.loss), self.backend.fetch(step.grad_norm)

    def _log(self, number: int, loss: float, grad_norm: float) -> None:
        learning_rate = self.config.learning_rate_at(number)
        self.metrics.log(number, loss=loss, learning_rate=learning_rate, grad_norm=grad_norm)
        if not (math.isfinite(loss) and math.isfinite(grad_norm)) and not self.backend.tracing_only:
            raise Diverged(
                f"the loss of step {number} is {loss} and the gradient norm {grad_norm}; continue "
                "from the last checkpoint with a smaller lr, or check the data"
            )

    def _evaluate(self, number: int) -> None:
        """Compute the validation loss if due; abandon the evaluation if a stop is requested."""
        if self.held_out is None or not self.config.evaluates_after(number):
            return
        clock = Stopwatch()
        loss = validation_loss(
            self.held_out,
            config=self.config,
            backend=cast("ModelParallel", self.backend),
            should_stop=self._should_stop,
            report=lambda text: self.report(f"evaluating after step {number}: {text}"),
        )
        self.has_pending_evaluation = loss is None
        if loss is not None:
            self.metrics.evaluated(
                EvaluationRecord(
                    step=number,
                    val_loss=loss,
                    sequences=self.held_out.num_sequences,
                    evaluation_s=clock.seconds,
                )
            )

    def _save(self, number: int, *, asynchronous: bool) -> None:
        if self.checkpoints is None or self.backend.tracing_only:
            return
        self.report(f"saving step {number}")
        self.metrics.before_save()
        clock = Stopwatch()
        plan = self.config.plan
        meta = {
            **self.meta,
            "tokens_total": number * plan.tokens_per_step,
            "position": number * plan.global_batch,
            EVALUATED: not self.has_pending_evaluation,
        }
        self.backend.save(self.checkpoints, number, meta, asynchronous=asynchronous)
        self.metrics.save_began(number, stall_s=clock.seconds)

    def _should_stop(self) -> bool:
        """Return whether the ranks stop before the next micro-batch.

        Checking once per step would be too late: a step may take minutes, the grace period is a
        minute and a half, and a micro-batch takes seconds on any number of nodes.
        """
        vote = StopVote.STOP if self.stop.requested else StopVote.CONTINUE
        if self.metrics.failed_in_a_row >= FAILED_SAVES:
            vote = StopVote.GIVE_UP
        outcome = self._vote.cast(vote)
        if outcome is StopVote.GIVE_UP:
            self._give_up()
        return outcome is StopVote.STOP

    def _give_up(self) -> NoReturn:
        if self.checkpoints is not None:
            # Another rank's saving thread may have recorded the failure before this rank's.
            self.checkpoints.wait()
        step, reason = max(self.metrics.failed_saves.items())
        raise StorageUnavailable(
            f"{FAILED_SAVES} saves in a row have failed, the last one of step {step}: {reason}; "
            "once storage works again, resubmit the run: it resumes from its last "
            "complete checkpoint"
        )

    def _save_last_complete_step(self, done: int, saved: int, unlogged: _Step | None) -> int:
        """Save the state after ``done`` steps unless already saved; return ``done``."""
        if unlogged is not None:
            self._log(unlogged.number, *self._fetch(unlogged))
        if done > saved:
            self._save(done, asynchronous=False)
        return done

    def _complete(self, saved: int) -> None:
        """Wait for the last save on every rank."""
        self._vote.resolve()
        if self.checkpoints is not None:
            self.checkpoints.wait()
        # The main node's exit stops all nodes, so it must wait until every rank has saved.
        self.backend.barrier()
        if (reason := self.metrics.failed_saves.get(saved)) is not None:
            # A retry repeats the steps since the last complete checkpoint.
            raise StorageUnavailable(
                f"the last checkpoint, of step {saved}, could not be saved: {reason}"
            )


def validation_loss(
    held_out: HeldOutSplit,
    *,
    config: TrainConfig,
    backend: ModelParallel,
    should_stop: Callable[[], bool] = lambda: False,
    report: Callable[[str], None] = lambda text: None,
) -> float | None:
    """Return the mean loss over the held-out sequences on every rank; None if the ranks stop.

    Micro-batches are full, as in training, so that they share one graph; sequences beyond the end
    are computed but not counted.
    """
    plan, num_sequences = config.plan, held_out.num_sequences
    num_batches = -(-num_sequences // (plan.data_parallel * plan.micro_batch))

    def first(number: int) -> int:
        """Return the first position of this data-parallel rank's micro-batch ``number``."""
        return (number * plan.data_parallel + backend.data_rank) * plan.micro_batch

    losses: list[torch.Tensor] = []
    for number in range(num_batches):
        if should_stop():
            return None
        report(f"{number + 1} of {num_batches}")
        tokens = held_out.batch(range(first(number), first(number) + plan.micro_batch))
        losses.append(backend.losses_of(tokens))
    total = 0.0
    for number, tensor in enumerate(losses):
        total += sum(tensor.tolist()[: max(0, num_sequences - first(number))])
    share = torch.tensor(total * plan.data_parallel / num_sequences, dtype=torch.float32)
    return backend.mean_over_data(share.to(losses[0].device))
