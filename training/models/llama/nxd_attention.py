"""Neuron's flash-attention kernel as an attention implementation for transformers.

It stores no scores; the backward pass recomputes them tile by tile. Under the registered name
transformers creates no mask, since the kernel applies its own causal mask.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.models.llama.modeling_llama import repeat_kv

FLASH = "nxd_flash"
"""Name of the implementation."""


def register_flash() -> None:
    """Register the kernel with transformers; idempotent."""
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

    assert attention_mask is None, "obstacle_to_flash rules out masks"
    groups = module.num_key_value_groups
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    # A logical core's physical cores divide the heads, and a kernel must be compiled for as many
    # physical cores as its graph (NKI documentation, logical NeuronCores), so an odd number of
    # heads cannot work.
    lnc = int(get_platform_lnc())
    assert query.size(1) % lnc == 0, "obstacle_to_flash rules out odd numbers of heads"
    result = nki_flash_attn_func(
        # Layout as in AWS's example (transpose_nki_inputs).
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
