"""LoRA adapters for a decoder's projections, as torch modules.

A projection keeps its name and gets two children, so the names of the model's own weights are
unchanged. PEFT's names are derived from these (``export``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import RowwiseParallel, SequenceParallel, parallelize_module

from training.models.initial import generator
from training.models.llama.parallel import output_sharding_style
from trainium_catalogue.parameters.lora import ROW_PARALLEL, Lora

DOWN, UP = "lora_A", "lora_B"
"""A projection's children, with PEFT's names: down to the LoRA rank, and up from it."""


def is_adapter(name: str) -> bool:
    """Return whether a parameter belongs to an adapter."""
    return name.endswith((f"{DOWN}.weight", f"{UP}.weight"))


def initial_adapter(name: str, size: torch.Size, *, seed: int) -> torch.Tensor:
    """Create the initial value of an adapter's weight, fp32 on the host, as in PEFT.

    The first matrix is Kaiming uniform with a = sqrt(5), that is, uniform with bound 1 /
    sqrt(inputs), and the second is zero (peft, tuners/lora/layer.py, ``reset_lora_parameters``).
    """
    if name.endswith(f"{UP}.weight"):
        return torch.zeros(size)
    bound = size[1] ** -0.5
    return torch.empty(size).uniform_(-bound, bound, generator=generator(name, seed=seed))


def freeze(model: nn.Module) -> None:
    """Freeze every weight except the adapters'."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_adapter(name))


def attach(
    model: Any, lora: Lora, mesh: DeviceMesh | None, *, sequence_parallel: bool = False
) -> None:
    """Add adapters to the projections of a model on the meta device, and freeze the rest.

    Call this after parallelizing the model over ``mesh``, since those hooks must run first.
    """
    for name, module in list(model.named_modules()):
        if not isinstance(module, nn.Linear) or name.rpartition(".")[2] not in lora.targets:
            continue
        # Without bias, like the projections.
        with torch.device("meta"):
            module.register_module(DOWN, nn.Linear(module.in_features, lora.rank, bias=False))
            module.register_module(UP, nn.Linear(lora.rank, module.out_features, bias=False))
        if mesh is not None:
            style: Any = {UP: output_sharding_style(name, model.config, mesh)}
            if name.endswith(ROW_PARALLEL):
                style = {DOWN: RowwiseParallel()}
                if sequence_parallel:
                    style = {
                        DOWN: RowwiseParallel(output_layouts=Shard(1)),
                        UP: SequenceParallel(use_local_output=True),
                    }
            parallelize_module(module, mesh, style, src_data_rank=None)
        module.register_forward_hook(_AdapterHook(lora.scale))
    freeze(model)


class _AdapterHook:
    """A forward hook that adds the adapter's output."""

    def __init__(self, scale: float) -> None:
        self._scale = scale

    def __call__(self, module: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        states = inputs[0].to_local() if isinstance(inputs[0], DTensor) else inputs[0]
        added: torch.Tensor = module.lora_B(module.lora_A(states))
        return output + self._scale * added
