"""One kind of training: its data, model and batches; the trainer does the rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.storage import Objects, StorageAccess
from trainium_catalogue.parameters.parameter import Value

if TYPE_CHECKING:
    from training.backends.base import Backend
    from training.core.config import TrainConfig
    from training.core.device import Device
    from training.core.ranks import Ranks
    from training.trainer.records import StepRecord

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """Brings a dataset to this node; see ``datasets.samples.staging.stage``."""

    objects: Objects
    cache: Path
    is_leader: bool
    wait: Callable[[], None]
    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A dataset on this node."""

    samples: int
    """Samples of one epoch."""
    facts: Mapping[str, Any]
    """Facts that a run remembers and that must stay the same for it to continue."""
    tokenizer_sha256: str | None
    """Identifies the tokenizer that made its ids; None if unknown."""
    content: Any
    """Private to the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """The sequences to evaluate: positions 0 to ``num_sequences`` in an order of their own.

    The same for any number of ranks, any micro-batch and any seed of the run.
    """

    batch: Callable[[range], Any]
    """Maps positions to a micro-batch, as in training; every position has a sequence."""
    num_sequences: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalReport:
    """The final message of a run that has completed all its steps."""

    lines: tuple[str, ...] = ()
    metrics: tuple[tuple[str, float, str], ...] = ()
    """Name, value and unit, for results.json."""
    problem: str | None = None
    """Reason for the job to fail although it has trained."""


class WrongOutcome(ValueError):
    """The run has completed all its steps, but the result is wrong."""


class Task(ABC):
    """One kind of training; every rank makes the same calls in the same order."""

    @property
    def first_lines(self) -> tuple[str, ...]:
        """Text for the log, before the first step."""
        return ()

    follows_ranks = False
    """True if a different number of ranks makes a different run, through batch or learning rate."""

    @abstractmethod
    def check(self, values: Mapping[str, Value], num_ranks: int) -> None:
        """Raise ``ValueError`` for impossible parameters, before anything is downloaded."""

    def begin_from(
        self, values: Mapping[str, Value], storage: StorageAccess, ranks: Ranks, *, report: Report
    ) -> Mapping[str, Any]:
        """Open the weights that a new run begins with, if any are given; returns facts of them."""
        return {}

    @abstractmethod
    def open_data(self, staging: Staging, values: Mapping[str, Value]) -> Dataset:
        """Bring the dataset to this node, and refuse one that the model cannot take."""

    @abstractmethod
    def config(
        self, values: Mapping[str, Value], num_ranks: int, dataset: Dataset | None
    ) -> TrainConfig:
        """Build the run's configuration; a run that only compiles has no dataset."""

    @abstractmethod
    def backend(
        self, config: TrainConfig, device: Device, *, peak_flops: float | None, report: Report
    ) -> Backend:
        """Open the model on this rank's device; ``peak_flops`` is per rank."""

    @abstractmethod
    def batches(
        self, config: TrainConfig, dataset: Dataset, backend: Any
    ) -> Callable[[range], Any]:
        """Return a pure function from positions in the data order to a micro-batch."""

    def random_batches(self, config: TrainConfig, backend: Any) -> Callable[[range], Any]:
        """Return micro-batches without a dataset, for compiling graphs in advance."""
        raise TypeError(f"{type(self).__name__} compiles nothing beforehand")

    def held_out(self, config: TrainConfig, dataset: Dataset) -> HeldOut | None:
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
        """Do what is due after all steps; ``last`` is this job's last logged step."""
        return FinalReport()
