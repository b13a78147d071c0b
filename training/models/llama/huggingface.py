"""Hugging Face's decoders, with this project's initial weights and without access to the Hub."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import torch
from transformers.configuration_utils import PretrainedConfig
from transformers.modeling_utils import PreTrainedModel

from training.models.initial import INITIAL_STD, normal_weight
from trainium_catalogue.models.presets import Family, ModelShape, Shape

_CLASSES = {Family.LLAMA: "Llama", Family.QWEN3: "Qwen3"}
"""Prefix of each family's class names."""
TIED = "lm_head.weight"
"""The parameter that a model with tied embeddings shares with the input embedding."""


def _class(family: Family, module: str, name: str) -> Any:
    """Import a class of a family's own module.

    This halves the import time compared with ``from transformers import ...``.
    """
    imported = importlib.import_module(f"transformers.models.{family}.{module}_{family}")
    return getattr(imported, f"{_CLASSES[family]}{name}")


def decoder_config(shape: Shape, *, seq_len: int, attention: str = "sdpa") -> PretrainedConfig:
    """Build Hugging Face's configuration of the shape's family."""
    assert isinstance(shape, ModelShape), shape
    scaling = shape.rope_scaling
    config: PretrainedConfig = _class(shape.family, "configuration", "Config")(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_size,
        # The published length, even in exports and for runs with shorter sequences: rotary
        # embeddings have no table of this length, and pretrained weights keep their maximum.
        max_position_embeddings=shape.max_position_embeddings or seq_len,
        rms_norm_eps=shape.rms_norm_eps,
        initializer_range=INITIAL_STD,
        rope_theta=shape.rope_theta,
        rope_scaling=scaling and {"rope_type": "llama3", **dataclasses.asdict(scaling)},
        hidden_act="silu",
        tie_word_embeddings=shape.tie_word_embeddings,
        bos_token_id=shape.bos_token_id,
        eos_token_id=shape.eos_token_id,
        pad_token_id=None,
        use_cache=False,
        attn_implementation=attention,
    )
    return config


def meta_model(config: PretrainedConfig) -> PreTrainedModel:
    """Build the model without storage, because a node cannot hold full copies for 32 workers."""
    with torch.device("meta"):
        return whole_model(config)


def whole_model(config: PretrainedConfig) -> PreTrainedModel:
    """Build the model on PyTorch's default device, in training mode."""
    model: PreTrainedModel = _class(Family(config.model_type), "modeling", "ForCausalLM")(config)
    return model.train()


def initial_weight(name: str, size: torch.Size, *, seed: int) -> torch.Tensor:
    """Create the initial value of a full (unsharded) parameter, fp32 on the host.

    A pure function of name and seed, so every topology starts from the same model.
    """
    if name.endswith("norm.weight"):
        return torch.ones(size)
    return normal_weight(name, size, seed=seed)


def restore_buffers(model: Any, device: torch.device) -> None:
    """Recompute the rotary frequencies, which checkpoints lack and the meta device discards."""
    rotary = type(model.model.rotary_emb)
    model.model.rotary_emb = rotary(model.config, device=device)


def tie(model: Any) -> None:
    """Tie the embeddings of a model with tied embeddings again, after replacing modules."""
    if model.config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
