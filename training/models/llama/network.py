"""A decoder as the back-ends see it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from training.backends.base import WEIGHTS, Batch, weighted
from training.models.llama.data import model_inputs
from training.models.llama.head_loss import (
    LateProjection,
    project_late,
    token_losses,
    weighted_loss,
)
from training.models.llama.huggingface import (
    initial_weight,
    llama_config,
    meta_model,
    restore_buffers,
    tie,
)
from training.models.llama.lora import attach, initial_adapter, is_adapter
from training.models.llama.parallel import parallelize

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from training.backends.base import WeightPart
    from training.core.config import TrainConfig
    from training.models.llama.given import GivenModel
    from training.models.llama.nxd import NxdLlama


class LlamaNetwork:
    """See ``Network``."""

    def __init__(self, config: TrainConfig, given: GivenModel | None = None) -> None:
        self._config, self._given = config, given

    def build(self, mesh: DeviceMesh | None) -> nn.Module:
        """Build the model without storage, with tensor parallelism by DTensor."""
        config = self._config
        model = meta_model(llama_config(config.shape, seq_len=config.plan.seq_len))
        if mesh is None:
            project_late(model)
        else:
            parallelize(model, mesh)
        if config.plan.lora is not None:
            attach(model, config.plan.lora, mesh)
        if config.activation_checkpointing:
            model.gradient_checkpointing_enable(
                # There is no dropout whose random numbers would have to be replayed.
                {"use_reentrant": False, "preserve_rng_state": False}
            )
        built: nn.Module = model
        return built

    def initial_weight(self, name: str, size: torch.Size) -> torch.Tensor:
        """Make the initial value of one whole parameter."""
        make = initial_adapter if is_adapter(name) else initial_weight
        return make(name, size, seed=self._config.seed)

    def initial_part(self, part: WeightPart) -> torch.Tensor:
        """Read a part of a parameter, if weights are given, or make it."""
        if self._given is not None and not is_adapter(part.name):
            return self._given.read(part)
        return part.of(self.initial_weight(part.name, part.whole))

    def restore(self, model: Any, device: torch.device) -> None:
        """Recompute the rotary frequencies, and tie what is tied."""
        restore_buffers(model, device)
        tie(model)

    def layers(self, model: Any) -> Iterable[nn.Module]:
        """List the decoder's layers."""
        found: Iterable[nn.Module] = model.model.layers
        return found

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        """Cross entropy of int64 ``[micro_batch, seq_len + 1]``: token i predicts i + 1."""
        if _is_late(model):
            states, labels = _outputs(model, batch)
            share = torch.full(labels.shape, 1 / labels.numel(), device=labels.device)
            weights = self._weighted(share, batch).flatten()
            return weighted_loss(states, model.lm_head.weight, labels, weights)
        if not isinstance(batch, torch.Tensor) and WEIGHTS in batch:
            return self.losses(model, batch).mean()
        return _cross_entropy(*_outputs(model, batch), reduction="mean")

    def losses(self, model: Any, batch: Batch) -> torch.Tensor:
        """Compute the cross entropy of each sequence, ``[micro_batch]``.

        Without gradients, if one rank holds the whole model.
        """
        outputs, labels = _outputs(model, batch)
        if _is_late(model):
            each = token_losses(outputs, model.lm_head.weight, labels)
        else:
            each = _cross_entropy(outputs, labels, reduction="none")
        # The ranks that share a model have the same losses, as DTensors.
        each = each.to_local() if isinstance(each, DTensor) else each
        return self._weighted(each, batch).mean(1)

    def _weighted(self, of_tokens: torch.Tensor, batch: Batch) -> torch.Tensor:
        return weighted(of_tokens.reshape(self._config.plan.micro_batch, -1), batch)

    def for_nxd(self) -> NxdLlama:
        """Return the same model built of neuronx_distributed's modules."""
        from training.models.llama.nxd import NxdLlama

        return NxdLlama(self._config, self.initial_part)


def _is_late(model: Any) -> bool:
    return isinstance(model.lm_head, LateProjection)


def _outputs(model: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute ``[tokens, vocabulary]``, or hidden states for a late projection, and labels."""
    # FSDP2 casts the mask to the type it computes in.
    inputs, labels = model_inputs(batch, torch.float32)
    outputs = model(**inputs, use_cache=False).logits
    return outputs.flatten(0, 1), labels.flatten()


def _cross_entropy(logits: torch.Tensor, labels: torch.Tensor, *, reduction: str) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits.float(), labels, reduction=reduction)
