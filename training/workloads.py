"""Which code runs a workload, and what is refused before any worker starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from training.checks.allreduce.sweep import Sweep
from training.core.arguments import ArgumentError, Request
from training.core.contract import NodeContract
from training.core.stopping import StopSwitch
from trainium_catalogue.models import LLAMA_PRESETS, PRESETS
from trainium_catalogue.parameters.plan import TrainingPlan
from trainium_catalogue.parameters.verify import check_verify
from trainium_catalogue.workloads import Value

if TYPE_CHECKING:
    from training.core.device import Device
    from training.core.progress import Progress, RunContext
    from training.storage.results import ResultFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a workload gets, on one worker."""

    context: RunContext
    values: Mapping[str, Value]
    """Every parameter of the workload."""
    given: Mapping[str, Value]
    """Those that the user gave."""
    device: Device
    progress: Progress
    store: ResultFiles
    stop: StopSwitch = field(default_factory=StopSwitch)
    """A workload that defers it may end later than at once."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Neuron's and torch_xla's variables, as the worker has them."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """All variables of the worker; only probes look at them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """A workload of the catalogue, as code."""

    check: Callable[[Mapping[str, Value], int], object]
    """Raises ``ValueError`` for values that cannot run on that many ranks; needs no torch."""
    load: Callable[[], Callable[[Job], None]]
    """Imports the code and returns the function to run; only workers call it."""


def _load_all_reduce() -> Callable[[Job], None]:
    from training.checks.allreduce.allreduce import run

    return run


def _load_llama() -> Callable[[Job], None]:
    from training.models.llama.task import run

    return run


def _load_bert() -> Callable[[Job], None]:
    from training.models.bert.task import run

    return run


def _load_mnist() -> Callable[[Job], None]:
    from training.models.mnist.task import run

    return run


def _load_verify() -> Callable[[Job], None]:
    from training.checks.verify.verification import run

    return run


def _load_prepare() -> Callable[[Job], None]:
    from training.datasets.prepared.prepare import run

    return run


def _load_tokenize() -> Callable[[Job], None]:
    from training.datasets.text.tokenize import run

    return run


def _load_export() -> Callable[[Job], None]:
    from training.models.llama.export import run

    return run


def _anything(values: Mapping[str, Value], num_ranks: int) -> None:
    """Nothing has to agree with anything else."""


IMPLEMENTATIONS: Mapping[str, Implementation] = MappingProxyType(
    {
        "all-reduce": Implementation(check=Sweep.from_values, load=_load_all_reduce),
        **{
            name: Implementation(
                check=TrainingPlan.from_values,
                load=_load_llama if name in LLAMA_PRESETS else _load_bert,
            )
            for name in PRESETS
        },
        "mnist": Implementation(check=_anything, load=_load_mnist),
        "verify": Implementation(check=check_verify, load=_load_verify),
        "prepare": Implementation(check=_anything, load=_load_prepare),
        "tokenize": Implementation(check=_anything, load=_load_tokenize),
        "export": Implementation(check=_anything, load=_load_export),
    }
)


def refuse_unfit(request: Request, node: NodeContract) -> None:
    """Refuse a workload that cannot run on this job's nodes, or whose parameters disagree."""
    workload = request.workload
    if node.num_nodes < workload.min_nodes:
        raise ArgumentError(
            f"{workload.name} needs at least {workload.min_nodes} nodes, the job has "
            f"{node.num_nodes}; submit with --nodes {workload.min_nodes}"
        )
    try:
        IMPLEMENTATIONS[workload.name].check(request.values, node.num_ranks)
    except ValueError as error:
        raise ArgumentError(str(error)) from None
