"""The implementation of each workload, and checks before any worker starts."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from training.core.arguments import ArgumentError, Request
from training.program.settings import check as check_program
from trainium_catalogue.models.presets import LLAMA_PRESETS, PRESETS, PRETRAIN
from trainium_catalogue.parameters.allreduce import check_sweep
from trainium_catalogue.parameters.verify import check_verify
from trainium_catalogue.wording import counted

if TYPE_CHECKING:
    from training.core.contract import NodeContract
    from training.core.job import Job
    from trainium_catalogue.parameters.parameter import Value

Check = Callable[["Mapping[str, Value]", int], object]


@dataclass(frozen=True, slots=True)
class Implementation:
    """The implementation of a workload in the catalogue."""

    entry: str
    """``module:function``, imported only by workers."""
    check: Check = lambda values, num_ranks: None
    """Raises ``ValueError`` for values that cannot run on this number of ranks; imports no torch.

    Training values are checked by the trainer, since a resumed run has its own (``run.json``).
    """
    needs_torch: bool = True
    """False if the workload, including its use of transformers, does not need torch."""

    def load(self) -> Callable[[Job], None]:
        """Import the code and return the function to run."""
        module, _, function = self.entry.partition(":")
        entry: Callable[[Job], None] = getattr(importlib.import_module(module), function)
        return entry


_LLAMA, _BERT = "training.models.llama.task:run", "training.models.bert.task:run"

IMPLEMENTATIONS: Mapping[str, Implementation] = MappingProxyType(
    {
        "all-reduce": Implementation("training.diagnostics.allreduce.allreduce:run", check_sweep),
        **{name: Implementation(_LLAMA if name in LLAMA_PRESETS else _BERT) for name in PRESETS},
        PRETRAIN: Implementation(_LLAMA),
        "mnist": Implementation("training.models.mnist.task:run"),
        "verify": Implementation("training.diagnostics.verify.verification:run", check_verify),
        "program": Implementation("training.program.worker:main", check_program),
        "wheels": Implementation("training.program.wheels.collect:run", needs_torch=False),
        "prepare": Implementation("training.datasets.prepared.prepare:run", needs_torch=False),
        "tokenize": Implementation("training.datasets.text.tokenize:run", needs_torch=False),
        "export": Implementation("training.models.llama.export:run"),
    }
)


def hide_sklearn() -> None:
    """Hide scikit-learn from this process, as if it were not installed.

    transformers imports it, along with scipy and pandas, for features that are not used here, which
    lengthens startup by a fifth.
    """
    sys.modules["sklearn"] = None  # type: ignore[assignment]


def refuse_unfit(request: Request, node: NodeContract) -> None:
    """Reject a workload that cannot run on this job's nodes, or whose parameters conflict."""
    workload = request.workload
    if node.num_nodes < workload.min_nodes:
        raise ArgumentError(
            f"{workload.name} needs at least {counted(workload.min_nodes, 'node')}, but the job "
            f"has {node.num_nodes}; submit with --nodes {workload.min_nodes}"
        )
    try:
        IMPLEMENTATIONS[workload.name].check(request.values, node.num_ranks)
        if not workload.trains:
            node.check_backend(request.values)
    except ValueError as error:
        raise ArgumentError(str(error)) from None
