"""The training loop: one for every model size, device and number of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NoReturn

from training.storage import StorageUnavailable
from training.trainer.vote import Wish
from training.trainer.watch import Stopwatch, Watch

if TYPE_CHECKING:
    import torch

    from training.backends.base import Backend
    from training.checkpoint import Checkpoints
    from training.core.config import TrainConfig
    from training.core.stopping import StopSwitch
    from training.trainer.evaluation import Evaluate
    from training.trainer.vote import Vote


FAILED_SAVES = 3
"""So many in a row end the job: what it makes would be lost, and is paid for."""


class Diverged(ValueError):
    """The loss is no number any more: more steps would train nothing."""


class Ending(StrEnum):
    """Why the loop ended."""

    FINISHED = "finished"
    """All steps of the run are made."""
    PAUSED = "paused"
    """All steps of this job are made; the run has more."""
    STOPPED = "stopped"
    """On request, after the last whole step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """A whole step; its numbers are still on the device."""

    step: int
    loss: torch.Tensor
    """Of this data rank."""
    norm: torch.Tensor
    """Of the gradients."""
    data_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """One rank's way through the steps of a job; every rank runs the same."""

    config: TrainConfig
    backend: Backend
    batch: Callable[[range], Any]
    """Positions in the data order to a micro-batch, as the model takes it."""
    checkpoints: Checkpoints | None
    """None: nothing is saved."""
    meta: dict[str, Any]
    """What every checkpoint of this job says about itself."""
    watch: Watch
    stop: StopSwitch
    vote: Vote
    report: Callable[[str], None]
    say: Callable[[str], None] = lambda text: None
    """One line into the log; of one rank."""
    check: Callable[[], None] = lambda: None
    """Raises when this job may not go on."""
    evaluate: Evaluate = lambda step, stops: None
    """Computes the validation loss between two steps, where it is time to."""

    def run(self, done: int) -> Ending:
        """Train from ``done`` steps on; returns when the last save is complete everywhere."""
        config, last = self.config, self.config.last_step(done)
        ending = Ending.FINISHED if last == config.max_steps else Ending.PAUSED
        saved = done
        unlogged: _Made | None = None
        for step in range(done + 1, last + 1):
            self.check()
            clock = Stopwatch()
            made = self._step(step, last)
            if made is None:
                ending, saved = Ending.STOPPED, self._leave(step - 1, saved, unlogged)
                break
            ends = step == last
            saves = ends or (config.save_every > 0 and step % config.save_every == 0)
            # Before an evaluation too, which would wait for the step's work in its place.
            logs = saves or config.evaluates_after(step)
            logs = logs or step % config.log_every == 0 or step == done + 1
            # Numbers come from the device, and with them the end of its work.
            numbers = self._fetch(made) if logs else None
            self.watch.count(step_s=clock.seconds, data_s=made.data_s)
            unlogged = made
            if numbers is not None:
                self._log(step, *numbers)
                unlogged = None
            # Before the save, so that a run that continues from it has the evaluation's line too.
            self.evaluate(step, self._stops)
            if saves:
                self._save(step, asynchronous=config.async_save and not ends)
                saved = step
        self._complete(saved)
        return ending

    def _leave(self, whole: int, saved: int, unlogged: _Made | None) -> int:
        """Bring ``whole`` steps to safety; returns the last one that is saved, or was at first."""
        if unlogged is not None:
            self._log(unlogged.step, *self._fetch(unlogged))
        if whole > saved:
            self._save(whole, asynchronous=False)
        return whole

    def _complete(self, step: int) -> None:
        """Wait for the last save, on every rank."""
        self.vote.settle()
        if self.checkpoints is not None:
            self.checkpoints.wait()
        # The main node leaves first, and its end ends the others: not before all have saved.
        self.backend.barrier()
        if (reason := self.watch.failed_saves.get(step)) is not None:
            # Another attempt makes the steps since the last complete checkpoint once more.
            raise StorageUnavailable(
                f"the last checkpoint, of step {step}, was not saved: {reason}"
            )

    def _step(self, step: int, last: int) -> _Made | None:
        """One optimizer step, or None where the ranks stop before it is whole."""
        config, backend = self.config, self.backend
        data_s = 0.0
        total: torch.Tensor | None = None
        count = config.plan.accumulation_steps
        for micro in range(count):
            if self._stops():
                self.say(f"asked to stop; {micro} of {count} micro-batches of step {step} are lost")
                if micro:
                    backend.drop_step()
                return None
            self.report(f"step {step} of {last}")
            waiting = Stopwatch()
            tokens = self.batch(config.positions(step - 1, micro, backend.data_rank))
            data_s += waiting.seconds
            total = backend.forward_backward(tokens, is_last=micro == count - 1)
        assert total is not None
        norm = backend.clip_and_step(config.learning_rate_at(step))
        return _Made(step=step, loss=total, norm=norm, data_s=data_s)

    def _stops(self) -> bool:
        """Whether this is the end, before a micro-batch.

        A step may take minutes and a stopped job has a minute and a half: a micro-batch takes
        seconds on any number of nodes.
        """
        wish = Wish.STOP if self.stop.requested else Wish.GO_ON
        if self.watch.failed_in_a_row >= FAILED_SAVES:
            wish = Wish.GIVE_UP
        heard = self.vote.cast(wish)
        if heard is Wish.GIVE_UP:
            self._give_up()
        return heard is Wish.STOP

    def _give_up(self) -> NoReturn:
        if self.checkpoints is not None:
            # Another rank's thread has known it before this one's.
            self.checkpoints.wait()
        step, reason = max(self.watch.failed_saves.items())
        raise StorageUnavailable(
            f"{FAILED_SAVES} saves in a row have failed, the last one of step {step}: {reason}; "
            "once storage takes files again, submit the run again: it continues from its last "
            "complete checkpoint"
        )

    def _fetch(self, made: _Made) -> tuple[float, float]:
        """Mean loss and norm; every rank asks for them."""
        return self.backend.mean_over_data(made.loss), self.backend.fetch(made.norm)

    def _log(self, step: int, loss: float, norm: float) -> None:
        rate = self.config.learning_rate_at(step)
        self.watch.log(step, loss=loss, lr=rate, grad_norm=norm)
        if not (math.isfinite(loss) and math.isfinite(norm)) and not self.backend.tracing_only:
            raise Diverged(
                f"the loss of step {step} is {loss} and the gradient norm {norm}; continue from "
                "the last checkpoint with a smaller lr, or look at the data"
            )

    def _save(self, step: int, *, asynchronous: bool) -> None:
        if self.checkpoints is None or self.backend.tracing_only:
            return
        self.report(f"saving step {step}")
        self.watch.before_save()
        clock = Stopwatch()
        plan = self.config.plan
        meta = {
            **self.meta,
            "tokens_total": step * plan.tokens_per_step,
            "position": step * plan.global_batch,
        }
        self.backend.save(self.checkpoints, step, meta, asynchronous=asynchronous)
        self.watch.save_began(step, stall_s=clock.seconds)
