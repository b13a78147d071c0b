"""The reference's network for MNIST (aws-neuron-samples, mnist_mlp), as a ``Network``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from training.models.initial import generator
from trainium_catalogue.models.presets import MlpShape

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from training.backends.base import WeightPart
    from training.core.config import TrainConfig

SHAPE = MlpShape()


class Mlp(nn.Module):
    """An MLP of 784-120-84-10 units with ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(SHAPE.num_inputs, SHAPE.hidden_size)
        self.fc2 = nn.Linear(SHAPE.hidden_size, SHAPE.intermediate_size)
        self.fc3 = nn.Linear(SHAPE.intermediate_size, SHAPE.vocab_size)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map ``[batch, 784]`` to log probabilities of the classes, ``[batch, 10]``."""
        inner = functional.relu(self.fc2(functional.relu(self.fc1(images))))
        return functional.log_softmax(self.fc3(inner), dim=1)


class MlpNetwork:
    """The MLP as a ``Network``."""

    def __init__(self, config: TrainConfig) -> None:
        self._config = config

    def build(self, mesh: DeviceMesh | None) -> nn.Module:
        """Build the model without storage."""
        with torch.device("meta"):
            return Mlp()

    def initial_part(self, part: WeightPart) -> torch.Tensor:
        """Initialize as torch's Linear does: uniform within 1 / sqrt(inputs)."""
        inputs = {
            "fc1": SHAPE.num_inputs, "fc2": SHAPE.hidden_size, "fc3": SHAPE.intermediate_size
        }  # fmt: skip
        bound = inputs[part.name.partition(".")[0]] ** -0.5
        numbers = generator(part.name, seed=self._config.seed)
        return part.of(torch.empty(part.whole).uniform_(-bound, bound, generator=numbers))

    def restore(self, model: nn.Module, device: torch.device) -> None:
        """Do nothing: the model has no tied weights or buffers."""

    def layers(self, model: nn.Module) -> Iterable[nn.Module]:
        """Return no layers: none is worth gathering separately."""
        return ()

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        """Compute the negative log-likelihood, averaged over the batch."""
        return functional.nll_loss(model(batch["images"]), batch["labels"])


def count_correct(model: Any, batch: Any) -> torch.Tensor:
    """Count correctly classified images, without padding."""
    hits = model(batch["images"]).argmax(dim=1) == batch["labels"]
    total: torch.Tensor = (hits * batch["mask"]).sum()
    return total
