"""LoRA adapters for projections in NxD's modules.

NxD's own adapters (modules/lora, 0.17 and 0.18) depend on its checkpoints for saving and merging,
and wrap the model, which changes names. The sharding is the same: if a projection's outputs are
sharded, so is the second matrix, and the first is replicated; if its inputs are sharded, so is the
first matrix, and the second is replicated. With sequence parallelism, replicated matrices, like
norms, receive only a part of the sequences on each rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from training.models.llama.lora import DOWN, UP, freeze
from training.models.llama.nxd_layers import Projections, column_parallel, row_parallel
from training.models.llama.parallel import Split
from trainium_catalogue.parameters.layout import Layout
from trainium_catalogue.parameters.lora import ROW_PARALLEL, Lora

_CHILD = "adapters"
_META = torch.device("meta")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterWeight:
    """An adapter's weight in the whole model."""

    name: str
    whole: torch.Size
    split: Split | None
    """None if replicated on every rank."""


def attach(
    model: nn.Module, lora: Lora, layout: Layout, sizes: dict[str, torch.Size]
) -> dict[str, AdapterWeight]:
    """Add adapters to the projections of a sharded model, and freeze the rest.

    ``sizes`` are the sizes of the whole model's weights. Returns the adapters' weights by parameter
    name in this model.
    """
    weights: dict[str, AdapterWeight] = {}
    for path, module, names in list(_projection_modules(model)):
        adapters = nn.ModuleDict()
        for name in names:
            if name not in lora.targets:
                continue
            full = f"{path.rpartition('.')[0]}.{name}"
            outputs, inputs = sizes[f"{full}.weight"]
            is_rowwise = name in ROW_PARALLEL
            pair = {
                DOWN: _row(inputs, lora.rank, layout) if is_rowwise else _linear(inputs, lora.rank),
                UP: _linear(lora.rank, outputs)
                if is_rowwise
                else column_parallel(lora.rank, outputs, layout),
            }
            adapters[name] = nn.ModuleDict(pair)
            for part, size, divided in (
                (DOWN, (lora.rank, inputs), is_rowwise),
                (UP, (outputs, lora.rank), not is_rowwise),
            ):
                how = (Split.ROWWISE if is_rowwise else Split.COLWISE) if divided else None
                weights[f"{path}.{_CHILD}.{name}.{part}.weight"] = AdapterWeight(
                    name=f"{full}.{part}.weight", whole=torch.Size(size), split=how
                )
                if not divided:
                    # As for norms, NxD sums its gradients over a model's ranks before the update
                    # (parallel_layers/grads.py, allreduce_sequence_parallel_gradients).
                    marked: Any = pair[part].weight
                    marked.sequence_parallel_enabled = layout.sequence_parallel
        if adapters:
            module.register_module(_CHILD, adapters)
            module.register_forward_hook(_AdapterHook(lora.scale, names))
    freeze(model)
    # Recomputation in the backward pass needs an input that requires a gradient, unlike frozen
    # embeddings' output (see transformers' enable_input_require_grads).
    model.get_submodule("model.embed_tokens").register_forward_hook(_require_gradient)
    return weights


def _projection_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module, tuple[str, ...]]]:
    """Yield modules that compute projections, with the projections' names in output order."""
    for path, module in model.named_modules():
        leaf = path.rpartition(".")[2]
        if isinstance(module, Projections):
            held = (weight for weights in module.sources.values() for weight in weights)
            yield path, module, tuple(weight.removesuffix(".weight") for weight in held)
        elif leaf in ROW_PARALLEL:
            yield path, module, (leaf,)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False, device=_META, dtype=torch.bfloat16)


def _row(inputs: int, outputs: int, layout: Layout) -> nn.Module:
    return row_parallel(_linear(inputs, outputs), layout)


class _AdapterHook:
    """A forward hook that adds the adapters' outputs to a module's results."""

    def __init__(self, scale: float, names: tuple[str, ...]) -> None:
        self._scale, self._names = scale, names

    def __call__(self, module: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        if isinstance(output, torch.Tensor):
            return self._sum(module, self._names[0], inputs[0], output)
        return tuple(
            self._sum(module, name, inputs[0], result)
            for name, result in zip(self._names, output, strict=True)
        )

    def _sum(self, module: Any, name: str, states: Any, result: torch.Tensor) -> torch.Tensor:
        if name not in module.adapters:
            return result
        pair = module.adapters[name]
        added: torch.Tensor = pair[UP](pair[DOWN](states))
        if added.requires_grad:
            # NxD views the gradient as a matrix (0.18.0, parallel_layers/layers.py, backward),
            # which fails after the transposition of a single head.
            added.register_hook(torch.Tensor.contiguous)  # type: ignore[no-untyped-call]
        return result + self._scale * added


def _require_gradient(module: nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
    return output.requires_grad_(True) if torch.is_grad_enabled() else output
