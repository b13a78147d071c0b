"""Neuron's flash-attention kernel as one of transformers' implementations of attention.

It keeps no scores: the backward pass computes them again, a tile at a time. Registered by a name
for which transformers makes no mask; the kernel's own is that of what comes later.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.models.llama.modeling_llama import repeat_kv

FLASH = "nxd_flash"
"""The name."""


def register_flash() -> None:
    """Make it known to transformers; more than once changes nothing."""
    AttentionInterface.register(FLASH, flash_attention)


def flash_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    dropout: float = 0.0,
    **unused: Any,
) -> tuple[torch.Tensor, None]:
    """Map ``[batch, heads, sequence, head]`` to ``[batch, sequence, heads, head]``."""
    from neuronx_distributed.kernels.flash_attn import nki_flash_attn_func
    from neuronx_distributed.utils.model_utils import get_platform_lnc

    assert attention_mask is None, "obstacle_to_flash keeps masks away"
    groups = module.num_key_value_groups
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    # Cores that are joined to one divide the heads, and a kernel in a graph must be for as many as
    # the graph (NKI documentation, logical NeuronCores): there is no other way for an odd number.
    lnc = int(get_platform_lnc())
    assert query.size(1) % lnc == 0, "obstacle_to_flash keeps odd numbers of heads away"
    result = nki_flash_attn_func(
        # The layout in which AWS's example calls it (transpose_nki_inputs).
        query.transpose(2, 3),
        key.transpose(2, 3),
        value.transpose(2, 3),
        lnc=lnc,
        dropout_p=dropout,
        softmax_scale=scaling,
        causal=True,
        transpose_nki_inputs=True,
    )
    return result.transpose(1, 2), None
