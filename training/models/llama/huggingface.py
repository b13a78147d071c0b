"""Hugging Face's Llama from a shape alone, never from the hub, with weights of our own."""

from __future__ import annotations

import torch

# Importing only transformers.models.llama's two modules halves the import time.
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM, LlamaRotaryEmbedding

from training.models.initial import INITIAL_DEVIATION, normal_weight
from trainium_catalogue.models import ModelShape, Shape


def llama_config(shape: Shape, *, seq_len: int, attention: str = "sdpa") -> LlamaConfig:
    """Build Hugging Face's configuration; its other defaults are Llama-2's."""
    assert isinstance(shape, ModelShape), shape
    return LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        max_position_embeddings=seq_len,
        rms_norm_eps=1e-5,
        initializer_range=INITIAL_DEVIATION,
        rope_theta=10000.0,
        hidden_act="silu",
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=None,
        use_cache=False,
        attn_implementation=attention,
    )


def meta_model(config: LlamaConfig) -> LlamaForCausalLM:
    """Build the model without storage: a node cannot hold a full copy for each of 32 workers."""
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    return model.train()


def initial_weight(name: str, size: torch.Size, *, seed: int) -> torch.Tensor:
    """Make the initial value of one whole parameter, fp32 on the host.

    A pure function of name and seed, so every topology begins with the same model, and a rank that
    keeps a part of it needs no other.
    """
    if name.endswith("norm.weight"):
        return torch.ones(size)
    return normal_weight(name, size, seed=seed)


def restore_buffers(model: LlamaForCausalLM, device: torch.device) -> None:
    """Recompute the rotary frequencies, lost on the meta device and not in checkpoints."""
    model.model.rotary_emb = LlamaRotaryEmbedding(model.config, device=device)
