"""What a back-end asks of a model: one protocol, a class for each kind of model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

Batch = torch.Tensor | Mapping[str, torch.Tensor]
"""One micro-batch, as the workload's data gives it."""


class Network(Protocol):
    """A model whose weights a back-end makes, places, splits and trains."""

    def build(self, mesh: DeviceMesh | None) -> nn.Module:
        """The model without storage, on the meta device, ready to train.

        Split by tensor parallelism over ``mesh``, where there is one.
        """

    def initial_weight(self, name: str, size: torch.Size) -> torch.Tensor:
        """The whole of one parameter as training begins, fp32 on the host."""

    def restore(self, model: nn.Module, device: torch.device) -> None:
        """Make again what the move from the meta device has lost: ties, and buffers."""

    def layers(self, model: nn.Module) -> Iterable[nn.Module]:
        """The modules that are gathered one by one."""

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        """Mean loss of a micro-batch that is on the model's device."""


class SequenceNetwork(Network, Protocol):
    """A model whose loss is a mean over sequences."""

    def losses(self, model: Any, batch: Any) -> torch.Tensor:
        """Mean loss of each sequence of a micro-batch, ``[micro_batch]``."""


Score = Callable[[Any, Any], torch.Tensor]
"""What an evaluation sums up: of a model and a batch on its device."""


def place(batch: Batch, device: torch.device) -> Any:
    """Copy a micro-batch to the device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    return {name: tensor.to(device) for name, tensor in batch.items()}
