"""Llama as the back-ends see it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import torch

from training.models.llama.documents import model_inputs
from training.models.llama.model import initial_weight, llama_config, meta_model, restore_buffers
from training.models.llama.parallel import parallelize
from training.models.network import Batch

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    from training.core.config import TrainConfig


class LlamaNetwork:
    """See ``Network``."""

    def __init__(self, config: TrainConfig) -> None:
        self._config = config

    def build(self, mesh: DeviceMesh | None) -> nn.Module:
        """The model without storage, its tensor parallelism by DTensor."""
        config = self._config
        model: nn.Module = meta_model(llama_config(config.shape, seq_len=config.plan.seq_len))
        if mesh is not None:
            parallelize(model, mesh)
        if config.activation_checkpointing:
            cast("LlamaForCausalLM", model).gradient_checkpointing_enable(
                # There is no dropout whose random numbers would have to be repeated.
                {"use_reentrant": False, "preserve_rng_state": False}
            )
        return model

    def initial_weight(self, name: str, size: torch.Size) -> torch.Tensor:
        """The whole of one parameter as training begins."""
        return initial_weight(name, size, seed=self._config.seed)

    def restore(self, model: Any, device: torch.device) -> None:
        """Compute the rotary frequencies again."""
        restore_buffers(model, device)

    def layers(self, model: Any) -> Iterable[nn.Module]:
        """The decoder's."""
        found: Iterable[nn.Module] = model.model.layers
        return found

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        """Cross entropy of int64 ``[micro_batch, seq_len + 1]``: token i predicts i + 1."""
        return _cross_entropy(model, batch, reduction="mean")

    def losses(self, model: Any, batch: Batch) -> torch.Tensor:
        """The same of each sequence, ``[micro_batch]``."""
        each = _cross_entropy(model, batch, reduction="none")
        return each.reshape(self._config.plan.micro_batch, -1).mean(1)


def _cross_entropy(model: Any, batch: Batch, *, reduction: str) -> torch.Tensor:
    # FSDP2 gives the mask the type that it computes in.
    inputs, labels = model_inputs(batch, torch.float32)
    logits = model(**inputs, use_cache=False).logits
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), reduction=reduction
    )
