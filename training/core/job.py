"""The job passed to a workload on one worker, and the switch that requests a stop."""

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


class StopRequested(Exception):
    """Raised by a workload that ends early on request."""


@dataclass(slots=True)
class StopSwitch:
    """A request to stop, set by SIGTERM.

    The worker exits immediately unless the workload defers the stop, by at most the launcher's
    ``stop-grace-s``.
    """

    deferred: bool = False
    requested: bool = False

    def defer(self) -> None:
        """Let the workload check ``requested`` from now on and raise ``StopRequested`` itself."""
        self.deferred = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything a workload needs."""

    context: NodeContract
    values: Mapping[str, Value]
    """Every parameter of the workload."""
    given: Mapping[str, Value]
    """The parameters set by the user."""
    device: Device
    progress: WorkerProgress
    store: ResultFiles
    stop: StopSwitch = field(default_factory=StopSwitch)
    """A workload may defer it to finish its current step first."""
    hang_limit_s: float = float("inf")
    """Time without progress after which the launcher stops the node's workers."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The worker's environment variables for Neuron and torch_xla."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """All environment variables of the worker, for probes and for pip."""
