"""The job passed to a workload on one worker, and the switch that asks it to stop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainium_catalogue.parameters.parameter import Value

if TYPE_CHECKING:
    from training.core.contract import NodeContract
    from training.core.device import Device
    from training.core.progress import WorkerProgress
    from training.storage.results import ResultFiles


class Stopped(Exception):
    """The workload has ended early because it was asked to."""


@dataclass(slots=True)
class StopSwitch:
    """A request to stop, set by SIGTERM. The worker ends at once unless the workload defers it.

    The launcher's ``stop-grace-s`` bounds the delay.
    """

    deferred: bool = False
    requested: bool = False

    def defer(self) -> None:
        """From here on, let the workload check ``requested`` and end itself with ``Stopped``."""
        self.deferred = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything a workload needs."""

    context: NodeContract
    values: Mapping[str, Value]
    """Every parameter of the workload."""
    given: Mapping[str, Value]
    """The parameters given by the user."""
    device: Device
    progress: WorkerProgress
    store: ResultFiles
    stop: StopSwitch = field(default_factory=StopSwitch)
    """A workload that defers it need not end at once."""
    hang_limit_s: float = float("inf")
    """Silence after which the launcher ends the node."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The worker's environment variables for Neuron and torch_xla."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """All environment variables of the worker, for probes and for pip."""
