"""A decoder as a ``Network`` for the backends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from training.backends.base import Batch, weight_losses
from training.models.llama.data import model_inputs
from training.models.llama.head_loss import project_late, token_losses, weighted_loss
from training.models.llama.huggingface import (
    decoder_config,
    initial_weight,
    meta_model,
    restore_buffers,
    tie,
)
from training.models.llama.lora import attach, initial_adapter, is_adapter
from training.models.llama.parallel import parallelize
from trainium_catalogue.parameters.layout import Recompute

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from training.backends.base import WeightPart
    from training.core.config import TrainConfig
    from training.models.llama.nxd import NxdLlama
    from training.models.llama.pretrained import PretrainedModel


CAUSAL = "causal_sdpa"
"""The name under which torch's attention is registered, for which transformers creates no mask.

transformers would size the mask by the hidden states, of which a rank may hold only a part; torch's
attention has its own causal mask. Four-dimensional masks are used unchanged.
"""

_aten, _collectives = torch.ops.aten, torch.ops._c10d_functional
_SAVED_OPERATORS = [
    # TorchNeuron has a kernel for linear layers, other devices for matrix products.
    _aten.linear.default,
    _aten.mm.default,
    _aten._scaled_dot_product_fused_attention_overrideable.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _collectives.all_reduce.default,
    _collectives.reduce_scatter_tensor.default,
]
"""Operators whose results are saved under selective recomputation."""


class LlamaNetwork:
    """A decoder as a ``Network``."""

    def __init__(self, config: TrainConfig, pretrained: PretrainedModel | None = None) -> None:
        self._config, self._pretrained = config, pretrained

    def build(self, mesh: DeviceMesh | None) -> nn.Module:
        """Build the model without storage, with tensor parallelism by DTensor."""
        config = self._config
        AttentionInterface.register(CAUSAL, sdpa_attention_forward)
        model: Any = meta_model(
            decoder_config(config.shape, seq_len=config.plan.seq_len, attention=CAUSAL)
        )
        assert config.layout is not None, "a decoder's workload has all parameters of a layout"
        sequence_parallel = config.layout.sequence_parallel
        if mesh is None:
            project_late(model)
        else:
            parallelize(model, mesh, sequence_parallel=sequence_parallel)
        if config.plan.lora is not None:
            attach(model, config.plan.lora, mesh, sequence_parallel=sequence_parallel)
        if config.activation_checkpointing:
            _recompute(model.model.layers, config.layout.recompute)
        built: nn.Module = model
        return built

    def initial_part(self, part: WeightPart) -> torch.Tensor:
        """Read part of a parameter from the pretrained weights, if any, or create it."""
        if self._pretrained is not None and not is_adapter(part.name):
            return self._pretrained.read(part)
        make = initial_adapter if is_adapter(part.name) else initial_weight
        return part.of(make(part.name, part.whole, seed=self._config.seed))

    def restore(self, model: Any, device: torch.device) -> None:
        """Recompute the rotary frequencies, and restore tied weights."""
        restore_buffers(model, device)
        tie(model)

    def layers(self, model: Any) -> Iterable[nn.Module]:
        """List the decoder's layers."""
        layers: Iterable[nn.Module] = model.model.layers
        return layers

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        """Compute the loss of int64 ``[micro_batch, seq_len + 1]``: token i predicts i + 1."""
        states, labels = _states(model, batch)
        share = torch.full(labels.shape, 1 / labels.numel(), device=labels.device)
        weights = self._apply_weights(share, batch).flatten()
        return weighted_loss(states, model.lm_head.weight, labels, weights)

    def losses(self, model: Any, batch: Batch) -> torch.Tensor:
        """Compute the mean loss of each sequence, ``[micro_batch]``, without gradients."""
        states, labels = _states(model, batch)
        each = token_losses(states, model.lm_head.weight, labels)
        return self._apply_weights(each, batch).mean(1)

    def _apply_weights(self, per_token: torch.Tensor, batch: Batch) -> torch.Tensor:
        return weight_losses(per_token.reshape(self._config.plan.micro_batch, -1), batch)

    def for_nxd(self) -> NxdLlama:
        """Return the same model, built from neuronx_distributed's modules."""
        from training.models.llama.nxd import NxdLlama

        return NxdLlama(self._config, self.initial_part)


def _recompute(layers: Iterable[Any], what: Recompute) -> None:
    """Make the backward pass recompute layers; compiled layers recompute within their graph."""
    # Without dropout there is no RNG state to preserve.
    settings: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if what is Recompute.SELECTIVE:
        settings["context_fn"] = partial(create_selective_checkpoint_contexts, _SAVED_OPERATORS)
    checkpointed: Callable[..., Any] = partial(checkpoint, **settings)

    def wrap_forward(plain: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: checkpointed(plain, *args, **kwargs)

    for layer in layers:
        layer.forward = wrap_forward(layer.forward)


def _states(model: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute hidden states before the projection, ``[tokens, hidden]``, and labels."""
    # FSDP2 casts the mask to the compute dtype.
    inputs, labels = model_inputs(batch, torch.float32)
    # Otherwise Hugging Face's model would number only the positions of a sequence shard.
    positions = torch.arange(labels.shape[1], device=labels.device)
    states = model(
        **inputs, cache_position=positions, position_ids=positions[None], use_cache=False
    ).logits
    if isinstance(states, DTensor):
        # Each rank's gradient is only from its part of the vocabulary.
        states = states.to_local(grad_placements=[Partial()])
    return states.flatten(0, 1), labels.flatten()
