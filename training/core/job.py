"""The job that a workload gets on one worker, and the switch that asks it to stop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainium_catalogue.parameters.parameter import Value

if TYPE_CHECKING:
    from training.core.contract import NodeContract
    from training.core.device import Device
    from training.core.progress import Progress
    from training.storage.results import ResultFiles


class Stopped(Exception):
    """The workload has ended early because it was asked to."""


@dataclass(slots=True)
class StopSwitch:
    """A request to stop, set by SIGTERM. Unless a workload defers it, the worker ends at once.

    The launcher's ``stop-grace-s`` bounds how long a deferred end may take.
    """

    deferred: bool = False
    requested: bool = False

    def defer(self) -> None:
        """Let the workload look at ``requested`` from here on, and end itself with ``Stopped``."""
        self.deferred = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything a workload works with."""

    context: NodeContract
    values: Mapping[str, Value]
    """Every parameter of the workload."""
    given: Mapping[str, Value]
    """The parameters that the user gave."""
    device: Device
    progress: Progress
    store: ResultFiles
    stop: StopSwitch = field(default_factory=StopSwitch)
    """A workload that defers it may end later than at once."""
    hang_limit_s: float = float("inf")
    """Silence after which the launcher ends the node."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Neuron's and torch_xla's variables, as the worker has them."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """All variables of the worker; only probes look at them."""
