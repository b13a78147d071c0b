"""Llama from its shape alone, never from the hub: Hugging Face's modules, weights of our own."""

from __future__ import annotations

import torch

# Importing transformers.models.llama's two modules takes half the time of importing more.
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM, LlamaRotaryEmbedding

from training.models.initial import INITIAL_DEVIATION, normal_weight
from trainium_catalogue.models import ModelShape, Shape


def llama_config(shape: Shape, *, seq_len: int, attention: str = "sdpa") -> LlamaConfig:
    """Hugging Face's configuration; what it does not say is Llama-2's."""
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
    """The model without storage: 32 workers of a node would not fit one full copy each."""
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    return model.train()


def initial_weight(name: str, size: torch.Size, *, seed: int) -> torch.Tensor:
    """The whole of one parameter as training begins, fp32 on the host.

    A pure function of its name and the seed, so every topology begins with the same model, and a
    rank that keeps a part of it needs no other rank.
    """
    if name.endswith("norm.weight"):
        return torch.ones(size)
    return normal_weight(name, size, seed=seed)


def restore_buffers(model: LlamaForCausalLM, device: torch.device) -> None:
    """Compute what is in no checkpoint, the rotary frequencies, which the meta device has lost."""
    model.model.rotary_emb = LlamaRotaryEmbedding(model.config, device=device)
