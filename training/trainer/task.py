"""One kind of training: its data, model and batches; all else is the trainer's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.storage import Objects
from trainium_catalogue.parameters.parameter import Value

if TYPE_CHECKING:
    from training.backends.base import Backend
    from training.core.config import TrainConfig
    from training.core.device import Device
    from training.trainer.records import StepRecord

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """The way of a dataset to this node; see ``datasets.samples.staging.stage``."""

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
    """Facts that a run remembers, and refuses to continue without."""
    tokenizer_sha256: str | None
    """Identifies the tokenizer that made its ids; None where that is not known."""
    content: Any
    """For the task itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """The sequences that are evaluated: positions 0 to ``num_sequences`` of an order of their own.

    The same for any number of ranks, any micro-batch and any seed of the run.
    """

    batch: Callable[[range], Any]
    """Positions to a micro-batch, as in training; any position has a sequence."""
    num_sequences: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalReport:
    """The last words of a run that has made all its steps."""

    lines: tuple[str, ...] = ()
    metrics: tuple[tuple[str, float, str], ...] = ()
    """Name, value and unit, for results.json."""
    problem: str | None = None
    """Why the job fails though it has trained."""


class WrongOutcome(ValueError):
    """The run has made all its steps, and what has come of them is not right."""


class Task(ABC):
    """One kind of training; every rank makes the same calls in the same order."""

    first_lines: tuple[str, ...] = ()
    """For the log, before the first step."""
    follows_ranks = False
    """Another number of ranks makes another run: batch or learning rate depend on it."""

    @abstractmethod
    def check(self, values: Mapping[str, Value], num_ranks: int) -> None:
        """Raise ``ValueError`` for what cannot be, before anything is downloaded."""

    @abstractmethod
    def open_data(self, staging: Staging, values: Mapping[str, Value]) -> Dataset:
        """Bring the dataset to this node, and refuse one that the model cannot take."""

    @abstractmethod
    def config(
        self, values: Mapping[str, Value], num_ranks: int, dataset: Dataset | None
    ) -> TrainConfig:
        """Everything that decides the run; one that only compiles has no dataset."""

    @abstractmethod
    def backend(
        self, config: TrainConfig, device: Device, *, peak_flops: float | None, report: Report
    ) -> Backend:
        """The model on this rank's device; ``peak_flops`` is one rank's."""

    @abstractmethod
    def batches(
        self, config: TrainConfig, dataset: Dataset, backend: Any
    ) -> Callable[[range], Any]:
        """Positions in the data order to a micro-batch, as a pure function."""

    def random_batches(self, config: TrainConfig, backend: Any) -> Callable[[range], Any]:
        """Micro-batches without a dataset, for graphs that are compiled beforehand."""
        raise TypeError(f"{type(self).__name__} compiles nothing beforehand")

    def held_out(self, config: TrainConfig, dataset: Dataset) -> HeldOut | None:
        """The sequences to evaluate every ``config.eval_every`` steps; None for none."""
        return None

    def finish(
        self,
        config: TrainConfig,
        dataset: Dataset,
        backend: Any,
        last: StepRecord | None,
        values: Mapping[str, Value],
    ) -> FinalReport:
        """Do what is due when all steps are made; ``last`` is this job's last logged step."""
        return FinalReport()
