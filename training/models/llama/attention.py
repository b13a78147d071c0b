"""torch's attention, registered under a name for which transformers creates no mask.

transformers would size the mask by the hidden states, of which a rank may hold only a part; torch's
attention has its own causal mask. Four-dimensional masks are used unchanged.
"""

from __future__ import annotations

from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

CAUSAL = "causal_sdpa"
"""Name of the implementation."""


def register_causal() -> None:
    """Register the attention with transformers; idempotent."""
    AttentionInterface.register(CAUSAL, sdpa_attention_forward)
