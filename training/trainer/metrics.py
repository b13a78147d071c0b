"""What a training run tells about itself: one record a logged step, in every form it is read in."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

_WINDOW_STEPS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One logged optimizer step; times and rates are means since the step logged before it."""

    step: int
    """Counted from 1."""
    max_steps: int
    epoch: int
    """Passes over the dataset that are behind, from 0."""
    loss: float
    lr: float
    grad_norm: float
    """Before clipping."""
    step_s: float
    """Seconds of one step, without saving."""
    data_s: float
    """Part of them spent on waiting for data."""
    sequences_per_second: float
    tokens_per_second: float
    mfu: float | None
    """Model FLOPs utilization, 0 to 1; None where the device's peak is unknown."""
    throughput: float
    """Sequences a second over a moving window of about ten steps, as the reference gives it."""
    tokens_total: int

    def fields(self) -> dict[str, Any]:
        """For JSON: what JSON cannot hold becomes null."""
        return {name: _finite(value) for name, value in asdict(self).items()}

    def line(self) -> str:
        """For the log; begins with ``training: step``."""
        mfu = "" if self.mfu is None else f", MFU {self.mfu:.1%}"
        return (
            f"training: step {self.step} of {self.max_steps}: loss {self.loss:.4f}, "
            f"lr {self.lr:.2e}, grad-norm {self.grad_norm:.3f}, "
            f"{self.sequences_per_second:.2f} seq/s, {self.tokens_per_second:.0f} tok/s{mfu}, "
            f"{self.step_s:.3f} s"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecord:
    """One evaluation of the validation split."""

    step: int
    """Optimizer steps made before it."""
    val_loss: float
    """Mean over the sequences."""
    sequences: int
    evaluation_s: float
    """Seconds that training stood still for it; part of no step's time."""

    @property
    def perplexity(self) -> float:
        """Infinite where it is too large for a float."""
        try:
            return math.exp(self.val_loss)
        except OverflowError:
            return math.inf

    def fields(self) -> dict[str, Any]:
        """For JSON: what JSON cannot hold becomes null."""
        known = {**asdict(self), "perplexity": self.perplexity}
        return {name: _finite(value) for name, value in known.items()}

    def line(self) -> str:
        """For the log."""
        return (
            f"training: validation after step {self.step}: loss {self.val_loss:.4f}, perplexity "
            f"{self.perplexity:.2f}, of {self.sequences} sequences, {self.evaluation_s:.3f} s"
        )


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Window:
    """The reference's moving-window throughput: sequences of the last steps over their seconds.

    The window is ``ceil(10 / log_every)`` samples (aws-neuron
    neuronx-distributed, examples/training/llama, class Throughput).
    """

    def __init__(self, log_every: int) -> None:
        self._samples: deque[tuple[int, float]] = deque(maxlen=math.ceil(_WINDOW_STEPS / log_every))

    def add(self, sequences: int, seconds: float) -> float:
        """One more sample; returns sequences a second over the window."""
        self._samples.append((sequences, seconds))
        total_s = sum(seconds for _, seconds in self._samples)
        return sum(count for count, _ in self._samples) / total_s if total_s > 0 else 0.0
