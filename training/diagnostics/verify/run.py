"""A model trained on the device, step by step, for the checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from training.checkpoint import CheckpointInfo, Checkpoints
from training.core.contract import DeviceKind
from training.core.ranks import Ranks
from training.diagnostics.verify.reference import Step
from training.storage import Objects

if TYPE_CHECKING:
    from training.backends.base import Backend
    from training.core.config import TrainConfig


class CheckpointMissing(ValueError):
    """A checkpoint was not saved, for a reason in the log."""


class TrialRun:
    """A model on a backend, its steps, and checkpoints in ``objects``; the same on all ranks."""

    def __init__(
        self,
        config: TrainConfig,
        backend: Backend,
        batches: Callable[[range], Any],
        objects: Objects,
        *,
        count_graphs: Callable[[], int | None] = lambda: None,
        log: Callable[[str], None] = lambda text: None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.config, self._backend, self._batches = config, backend, batches
        self._count, self._log, self._report = count_graphs, log, report
        self._objects = objects
        self._checkpoints = self._open(objects)
        self.steps: list[Step] = []
        """Loss and norm of each step so far, without repetitions."""
        self.graphs: list[int] = []
        """Number of compiled graphs after each step; empty without a counter."""
        report("building the model")
        backend.build()

    def _open(self, objects: Objects) -> Checkpoints:
        return Checkpoints(
            objects, Ranks.open(), keep_last=9, keep_every=0, say=self._log, report=self._report
        )

    def train_to(self, step: int) -> None:
        """Train up to ``step``."""
        for number in range(len(self.steps) + 1, step + 1):
            self.steps.append(self.step(number))
            if (graphs := self._count()) is not None:
                self.graphs.append(graphs)

    def step(self, number: int, *, rate: float | None = None) -> Step:
        """Run one optimizer step (1-based); return loss and gradient norm."""
        self._report(f"verifying: step {number}")
        config, backend = self.config, self._backend
        count = config.plan.accumulation_steps
        for micro in range(count):
            batch = self._batches(config.positions(number - 1, micro, backend.data_rank))
            loss = backend.forward_backward(batch, is_last=micro == count - 1)
        norm = backend.clip_and_step(config.learning_rate_at(number) if rate is None else rate)
        return backend.mean_over_data(loss), backend.fetch(norm)

    def save(self, step: int) -> None:
        """Save the current state as ``step``."""
        self._save(self._checkpoints, step)

    def saved(self, step: int) -> tuple[Objects, CheckpointInfo]:
        """Return the checkpoint of ``step`` with its location."""
        return self._objects, self._checkpoint_of(self._checkpoints, step)

    def count(self) -> int:
        """Count the graphs compiled so far; 0 without a counter."""
        return self._count() or 0

    def load(self, step: int) -> CheckpointInfo:
        """Restore a checkpoint."""
        return self._backend.load(self._checkpoints, self._checkpoint_of(self._checkpoints, step))

    def save_again(self, step: int) -> tuple[Objects, CheckpointInfo]:
        """Save the current state in a second location."""
        place = self._objects.at("again")
        checkpoints = self._open(place)
        self._save(checkpoints, step)
        return place, self._checkpoint_of(checkpoints, step)

    def _save(self, checkpoints: Checkpoints, step: int) -> None:
        self._report(f"verifying: saving step {step}")
        plan = self.config.plan
        meta = {"tensor_parallel": plan.tensor_parallel, "data_parallel": plan.data_parallel}
        self._backend.save(checkpoints, step, meta, asynchronous=False)
        checkpoints.wait()

    def _checkpoint_of(self, checkpoints: Checkpoints, step: int) -> CheckpointInfo:
        info = checkpoints.latest(at_most=step)
        if info is None or info.step != step:
            raise CheckpointMissing(f"there is no checkpoint of step {step}")
        return info


def num_compiled_graphs(kind: DeviceKind) -> int | None:
    """Count the graphs torch_xla has compiled in this process; None without torch_xla."""
    if kind is not DeviceKind.XLA:
        return None
    from torch_xla.debug import metrics

    counted = metrics.metric_data("CompileTime")
    return int(counted[0]) if counted else 0
