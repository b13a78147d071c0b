"""The interface of a kind of training, which provides data, model and batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.core.config import TrainConfig
from training.storage import Objects, StorageAccess
from trainium_catalogue.parameters.parameter import Value
from trainium_catalogue.parameters.plan import TrainingPlan

if TYPE_CHECKING:
    from training.backends.base import Backend
    from training.core.device import Device
    from training.core.ranks import Ranks
    from training.trainer.records import StepRecord

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingParameters:
    """Parameters for staging a dataset on this node; see ``datasets.samples.staging.stage``."""

    objects: Objects
    cache: Path
    is_leader: bool
    wait: Callable[[], None]
    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A dataset on this node."""

    samples: int
    """Number of samples per epoch."""
    facts: Mapping[str, Any]
    """Facts recorded in the run, which must not change when it resumes."""
    tokenizer_sha256: str | None
    """Hash of the tokenizer; None if unknown."""
    content: Any
    """Private to the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutSplit:
    """The sequences to evaluate: the first ``num_sequences`` positions in a separate order.

    They do not depend on the run's number of ranks, micro-batch or seed.
    """

    batch: Callable[[range], Any]
    """Maps positions to a micro-batch, as in training; every position has a sequence."""
    num_sequences: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalReport:
    """The final report of a run that has completed all its steps."""

    lines: tuple[str, ...] = ()
    metrics: tuple[tuple[str, float, str], ...] = ()
    """Name, value and unit, for results.json."""
    problem: str | None = None
    """Reason to fail the job although training is complete."""


class WrongOutcome(ValueError):
    """All steps are complete, but the result is wrong."""


class Task(ABC):
    """A kind of training; every rank makes the same calls in the same order."""

    @property
    def first_lines(self) -> tuple[str, ...]:
        """Log lines before the first step."""
        return ()

    depends_on_num_ranks = False
    """True if batch or learning rate depends on the number of ranks, which then must not change."""

    def check(self, values: Mapping[str, Value], num_ranks: int) -> None:
        """Raise ``ValueError`` for invalid parameters, before anything is downloaded."""
        TrainingPlan.from_values(values, num_ranks)

    def begin_from(
        self, values: Mapping[str, Value], storage: StorageAccess, ranks: Ranks, *, report: Report
    ) -> Mapping[str, Any]:
        """Open the pretrained weights that a new run starts from or that adapters modify, if any.

        Returns their facts.
        """
        return {}

    @abstractmethod
    def open_data(self, staging: StagingParameters, values: Mapping[str, Value]) -> Dataset:
        """Stage the dataset on this node; refuse it if it does not match the model."""

    def config(
        self, values: Mapping[str, Value], num_ranks: int, dataset: Dataset | None
    ) -> TrainConfig:
        """Build the run's configuration; a compile-only job has no dataset."""
        return TrainConfig.from_values(values, num_ranks)

    @abstractmethod
    def backend(self, config: TrainConfig, device: Device, *, report: Report) -> Backend:
        """Open the model on this rank's device."""

    @abstractmethod
    def batches(
        self, config: TrainConfig, dataset: Dataset, backend: Any
    ) -> Callable[[range], Any]:
        """Return a pure function from positions in the data order to a micro-batch."""

    def random_batches(self, config: TrainConfig, backend: Any) -> Callable[[range], Any]:
        """Return a function that makes random micro-batches, for compiling ahead of time."""
        raise TypeError(f"{type(self).__name__} compiles nothing ahead of time")

    def held_out(self, config: TrainConfig, dataset: Dataset) -> HeldOutSplit | None:
        """Return the sequences to evaluate every ``config.eval_every`` steps, if any."""
        return None

    def finish(
        self,
        config: TrainConfig,
        dataset: Dataset,
        backend: Any,
        last: StepRecord | None,
        values: Mapping[str, Value],
    ) -> FinalReport:
        """Finish after all steps; ``last`` is this job's last logged step."""
        return FinalReport()
