"""``torch.compile(backend="neuron")``: the device's graphs, run on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from functorch.compile import make_boxed_func  # type: ignore[import-untyped]
from torch._dynamo.backends.common import aot_autograd

from trainium_emulators.neuron_device import rules
from trainium_emulators.neuron_device.counts import COUNTS


def neuron(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: dict[str, Any] | None = None,
    mode: str = "default",
) -> Any:
    """Trace forward and backward passes into separate graphs, as TorchNeuron's backend does."""
    rules.warn_of_mode(mode)
    rules.check_static(inputs)
    return aot_autograd(fw_compiler=_compile, bw_compiler=_compile)(graph, inputs)


def _compile(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    COUNTS.graphs.append(sum(node.op == "call_function" for node in graph.graph.nodes))
    run = make_boxed_func(graph.forward)

    def run_uncounted(arguments: list[Any]) -> Any:
        with COUNTS.paused():
            return run(arguments)

    run_uncounted._boxed_call = True  # type: ignore[attr-defined]
    return run_uncounted
