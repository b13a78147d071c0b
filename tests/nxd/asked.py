"""The project's calls of NxD and torch_xla, in order, as CI's fake also records them."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

_FUNCTIONS = {
    "neuronx_distributed": (
        "neuronx_distributed_config",
        "initialize_parallel_model",
        "initialize_parallel_optimizer",
    ),
    "torch_xla.core.xla_model": ("all_reduce", "mark_step"),
}
"""Noted where code of ``training`` calls them, not where they call each other."""
_GATHER = "allgather_weights_and_update_full_parameter"
"""Of torch_xla's optimizer: noted whoever calls it, for its own step does."""


def listen() -> list[str]:
    """Record the names of subsequent calls in this process."""
    heard: list[str] = []
    for module, names in _FUNCTIONS.items():
        for name in names:
            _note(import_module(module), name, heard, only_ours=True)
    zero1: Any = import_module("torch_xla.distributed.zero_redundancy_optimizer")
    _note(zero1.ZeroRedundancyOptimizer, _GATHER, heard, only_ours=False)
    return heard


def _note(place: Any, name: str, heard: list[str], *, only_ours: bool) -> None:
    function = getattr(place, name)

    def noted(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_globals["__name__"]
        if not only_ours or caller.startswith("training."):
            heard.append(name)
        return function(*args, **kwargs)

    setattr(place, name, noted)
