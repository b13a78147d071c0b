"""Adapters beside the projections of a decoder, of torch's modules.

A projection keeps its name and gets two children, so that the model's own weights are called as
without adapters. PEFT's names follow from ours (``export``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from training.models.initial import generator
from trainium_catalogue.parameters.lora import DIVIDED_BY_INPUT, Lora

DOWN, UP = "lora_A", "lora_B"
"""The children of a projection: to the rank, and from it; PEFT's names."""


def is_adapter(name: str) -> bool:
    """Recognise an adapter's weight."""
    return name.endswith((f"{DOWN}.weight", f"{UP}.weight"))


def initial_adapter(name: str, size: torch.Size, *, seed: int) -> torch.Tensor:
    """Make the initial value of an adapter's weight, fp32 on the host, as PEFT does.

    (peft, tuners/lora/layer.py, ``reset_lora_parameters``: Kaiming's uniform numbers with
    a = sqrt(5), which are within 1 / sqrt(inputs), and zeros.)
    """
    if name.endswith(f"{UP}.weight"):
        return torch.zeros(size)
    bound = size[1] ** -0.5
    return torch.empty(size).uniform_(-bound, bound, generator=generator(name, seed=seed))


def projections(model: nn.Module, lora: Lora) -> Iterator[tuple[str, nn.Linear]]:
    """Yield the projections that get adapters, with their full names."""
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] in lora.targets:
            yield name, module


def freeze(model: nn.Module) -> None:
    """Keep every weight but the adapters' as it is."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_adapter(name))


def attach(model: nn.Module, lora: Lora, mesh: DeviceMesh | None) -> None:
    """Put adapters beside the projections of a model on the meta device, and freeze the rest.

    Comes after the model's own tensor parallelism over ``mesh``, whose hooks then run before ours.
    """
    for name, module in projections(model, lora):
        # They stay without bias, as the projections are.
        with torch.device("meta"):
            module.register_module(DOWN, nn.Linear(module.in_features, lora.rank, bias=False))
            module.register_module(UP, nn.Linear(lora.rank, module.out_features, bias=False))
        if mesh is not None:
            style: Any = {UP: ColwiseParallel()}
            if name.endswith(DIVIDED_BY_INPUT):
                style = {DOWN: RowwiseParallel()}
            parallelize_module(module, mesh, style, src_data_rank=None)
        add_to(module, lora)
    freeze(model)


def add_to(module: nn.Module, lora: Lora) -> None:
    """Have a projection add what its adapter computes."""
    module.register_forward_hook(_Added(lora.scale))


class _Added:
    """Adds what a projection's adapter computes."""

    def __init__(self, scale: float) -> None:
        self._scale = scale

    def __call__(self, module: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        states = inputs[0].to_local() if isinstance(inputs[0], DTensor) else inputs[0]
        added: torch.Tensor = module.lora_B(module.lora_A(states))
        return output + self._scale * added
