"""BERT as the back-ends see it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from training.models.bert.model import bert_config, initial_weight, meta_model, restore
from trainium_catalogue.models import BertShape

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from training.core.config import TrainConfig


class BertNetwork:
    """See ``Network``."""

    def __init__(self, config: TrainConfig) -> None:
        self._config = config

    def build(self, mesh: DeviceMesh | None) -> nn.Module:
        """The model without storage; it is whole on every rank."""
        shape = self._config.shape
        assert mesh is None and isinstance(shape, BertShape), shape
        model: nn.Module = meta_model(bert_config(shape, dropout=self._config.dropout))
        return model

    def initial_weight(self, name: str, size: torch.Size) -> torch.Tensor:
        """The whole of one parameter as training begins."""
        return initial_weight(name, size, seed=self._config.seed)

    def restore(self, model: Any, device: torch.device) -> None:
        """Tie again what is one parameter, and make the buffers."""
        restore(model, device)

    def layers(self, model: Any) -> Iterable[nn.Module]:
        """The encoder's."""
        found: Iterable[nn.Module] = model.bert.encoder.layer
        return found

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        """Of words and next sentence together."""
        found: torch.Tensor = model(batch)
        return found
