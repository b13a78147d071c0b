"""Measurements of the training loop, which rank 0 writes to the log and the run's files."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from training.trainer.records import SavedLine, SaveFailedLine, StepRecord

if TYPE_CHECKING:
    from training.checkpoint import CheckpointInfo
    from training.core.config import TrainConfig
    from training.trainer.records import EvaluationRecord
    from training.trainer.run_files import RunFiles

_WINDOW_STEPS = 10


class Stopwatch:
    """Measures seconds since its creation."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return time.perf_counter() - self._began_s


@dataclass(slots=True)
class _Sums:
    """Measurements since the last logged step."""

    steps: int = 0
    step_s: float = 0.0
    data_s: float = 0.0


class Window:
    """Moving-window throughput as in AWS's example.

    Sequences per second over the most recent steps. The window is ``ceil(10 / log_every)`` samples
    (aws-neuron/neuronx-distributed, examples/training/llama, class Throughput).
    """

    def __init__(self, log_every: int) -> None:
        self._samples: deque[tuple[int, float]] = deque(maxlen=math.ceil(_WINDOW_STEPS / log_every))

    def add(self, sequences: int, seconds: float) -> float:
        """Add a sample; return sequences per second over the window."""
        self._samples.append((sequences, seconds))
        total_s = sum(seconds for _, seconds in self._samples)
        return sum(count for count, _ in self._samples) / total_s if total_s > 0 else 0.0


class MetricsRecorder:
    """Converts steps to records, and checkpoint saves to events."""

    def __init__(
        self,
        config: TrainConfig,
        files: RunFiles | None,
        *,
        sequences_per_epoch: int,
        peak_flops: float | None,
        on_step: Callable[[int], None] = lambda step: None,
    ) -> None:
        """``on_step`` is called for every completed step."""
        self._config, self._files, self._peak_flops = config, files, peak_flops
        self._on_step = on_step
        self._sequences_per_epoch = sequences_per_epoch
        self._window = Window(config.log_every)
        self._sums = _Sums()
        self.last: StepRecord | None = None
        """The last logged step, on every rank."""
        self.failed_saves: dict[int, str] = {}
        """Maps steps of failed saves to reasons, on every rank."""
        self.failed_in_a_row = 0
        """Failed saves since the last complete one, on every rank."""

    def count(self, step: int, *, step_s: float, data_s: float) -> None:
        """Count one completed step; the next record includes its times."""
        self._on_step(step)
        self._sums.steps += 1
        self._sums.step_s += step_s
        self._sums.data_s += data_s

    def log(self, step: int, *, loss: float, learning_rate: float, grad_norm: float) -> None:
        """Write to every output one record of the steps since the last call."""
        plan, sums = self._config.plan, self._sums
        self._sums = _Sums()
        sequences = sums.steps * plan.global_batch
        sequences_per_second = sequences / max(sums.step_s, 1e-9)
        tokens_per_second = sequences_per_second * plan.seq_len
        mfu = None
        if self._peak_flops is not None:
            mfu = plan.model_flops_utilization(tokens_per_second, peak_flops=self._peak_flops)
        record = StepRecord(
            step=step,
            max_steps=self._config.max_steps,
            epoch=(step * plan.global_batch - 1) // self._sequences_per_epoch,
            loss=loss,
            lr=learning_rate,
            grad_norm=grad_norm,
            step_s=sums.step_s / sums.steps,
            data_s=sums.data_s / sums.steps,
            sequences_per_second=sequences_per_second,
            tokens_per_second=tokens_per_second,
            mfu=mfu,
            throughput=self._window.add(sequences, sums.step_s),
            tokens_total=step * plan.tokens_per_step,
        )
        self.last = record
        if self._files is None:
            return
        self._files.step(record)
        shown = record.fields()
        self._files.status(
            state="training",
            eta_seconds=round((record.max_steps - step) * record.step_s, 1),
            step_seconds=record.step_s,
            **{
                name: shown[name]
                for name in (
                    *("step", "loss", "lr", "grad_norm", "tokens_per_second"),
                    *("sequences_per_second", "mfu", "tokens_total"),
                )
            },
        )

    def evaluated(self, record: EvaluationRecord) -> None:
        """Record an evaluation of the validation split, between two steps."""
        if self._files is not None:
            self._files.evaluation(record)

    def before_save(self) -> None:
        """Set the run's state to ``saving``."""
        if self._files is not None:
            self._files.status(now=True, state="saving")

    def save_began(self, step: int, *, stall_s: float) -> None:
        """Record a checkpoint whose copy or upload paused training for ``stall_s`` seconds."""
        if self._files is not None:
            self._files.save(step, stall_s=stall_s)
            self._files.status(state="training")

    def saved(self, info: CheckpointInfo) -> None:
        """Record a complete checkpoint; may be called from another thread."""
        self.failed_in_a_row = 0
        if self._files is not None:
            self._files.event(SavedLine, {"step": info.step, "bytes": info.num_bytes})
            self._files.status(
                now=True, last_checkpoint_step=info.step, last_checkpoint_time=info.time
            )

    def save_failed(self, step: int, reason: str) -> None:
        """Record a failed checkpoint; may be called from another thread."""
        self.failed_saves[step] = reason
        self.failed_in_a_row += 1
        if self._files is not None:
            self._files.event(SaveFailedLine, {"step": step, "reason": reason})
            self._files.status(now=True, failed_saves=len(self.failed_saves))
