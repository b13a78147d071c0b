"""The models to pre-train, as data: their shapes and hyperparameters.

``llama2-7b`` is the configuration of AWS's reference (neuronx-distributed,
``examples/training/llama/tp_zero1_llama_hf_pretrain/7B_config_llama2``): tensor parallel degree 8,
global batch 1024, sequence 4096, AdamW at 3e-4 with 100 warm-up steps, 10,000 steps. ``bert`` is
phase 1 of AWS's BERT-large (aws-neuron-samples, ``torch-neuronx/training/dp_bert_hf_pretrain``):
data parallel, global batch 16,384 on any number of nodes, sequence 128, AdamW at 4e-4 with 2,000
warm-up steps, 28,125 steps.
"""

from collections.abc import Mapping
from types import MappingProxyType

from trainium_catalogue.models.decoders import FAMILIES
from trainium_catalogue.models.shapes import (
    BERT_POSITIONS,
    BertShape,
    Family,
    MlpShape,
    ModelShape,
    Preset,
    RopeScaling,
    Shape,
)

__all__ = [
    "BERT_POSITIONS",
    "DECODERS",
    "LLAMA_PRESETS",
    "MODELS",
    "PRESETS",
    "PRETRAIN",
    "BertShape",
    "Family",
    "MlpShape",
    "ModelShape",
    "Preset",
    "RopeScaling",
    "Shape",
    "model_named",
]

_PRESETS = (
    Preset(
        name="llama2-7b",
        summary="pre-train Llama-2-7B with AWS's reference hyper-parameters",
        shape=ModelShape(
            vocab_size=32000,
            hidden_size=4096,
            intermediate_size=11008,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=32,
        ),
        seq_len=4096,
        global_batch=1024,
        micro_batch=1,
        tensor_parallel=8,
        learning_rate=3e-4,
        warmup_steps=100,
        max_steps=10000,
        save_every=100,
        log_every=1,
        default_nodes=4,
        time_limit_hours=168.0,
    ),
    Preset(
        name="llama-small",
        summary="pre-train a Llama of 271 million parameters: a first run on real data",
        shape=ModelShape(
            vocab_size=32000,
            hidden_size=1024,
            intermediate_size=2816,
            num_hidden_layers=16,
            num_attention_heads=16,
            num_key_value_heads=16,
        ),
        seq_len=2048,
        global_batch=256,
        micro_batch=1,
        tensor_parallel=8,
        learning_rate=6e-4,
        warmup_steps=100,
        max_steps=5000,
        save_every=250,
        log_every=1,
        default_nodes=1,
        time_limit_hours=24.0,
    ),
    Preset(
        name="llama-tiny",
        summary="pre-train a Llama of 4 million parameters: minutes, also on a CPU",
        shape=ModelShape(
            vocab_size=32000,
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        ),
        seq_len=128,
        global_batch=64,
        micro_batch=1,
        tensor_parallel=2,
        learning_rate=3e-3,
        warmup_steps=5,
        max_steps=60,
        save_every=10,
        log_every=1,
        default_nodes=1,
        time_limit_hours=1.0,
    ),
    Preset(
        name="bert",
        summary="pre-train BERT-large, phase 1, with AWS's reference hyper-parameters",
        shape=BertShape(
            vocab_size=30522,
            hidden_size=1024,
            intermediate_size=4096,
            num_hidden_layers=24,
            num_attention_heads=16,
        ),
        dataset="bert-wikicorpus",
        seq_len=128,
        global_batch=16384,
        micro_batch=16,
        tensor_parallel=1,
        learning_rate=4e-4,
        warmup_steps=2000,
        max_steps=28125,
        save_every=250,
        log_every=1,
        default_nodes=2,
        time_limit_hours=72.0,
    ),
    Preset(
        name="bert-tiny",
        summary="pre-train a BERT of a million parameters: minutes, also on a CPU",
        shape=BertShape(
            vocab_size=4096,
            hidden_size=128,
            intermediate_size=512,
            num_hidden_layers=2,
            num_attention_heads=2,
        ),
        dataset="bert-tiny",
        seq_len=128,
        global_batch=32,
        micro_batch=1,
        tensor_parallel=1,
        learning_rate=1e-3,
        warmup_steps=6,
        max_steps=60,
        save_every=10,
        log_every=1,
        default_nodes=1,
        time_limit_hours=1.0,
    ),
)

PRESETS: Mapping[str, Preset] = MappingProxyType({preset.name: preset for preset in _PRESETS})
"""Every preset, by name; each is a workload of the same name."""

LLAMA_PRESETS: Mapping[str, Preset] = MappingProxyType(
    {name: preset for name, preset in PRESETS.items() if isinstance(preset.shape, ModelShape)}
)
"""The presets of a decoder that are workloads."""

MODELS: Mapping[str, Preset] = MappingProxyType({preset.name: preset for preset in FAMILIES})
"""The models that the workload ``pretrain`` trains, by name (ADR 19)."""

PRETRAIN = "pretrain"
"""The workload that trains any of ``MODELS``."""
DECODERS = (*LLAMA_PRESETS, PRETRAIN)
"""Workloads that train a decoder."""


def model_named(name: str) -> Preset:
    """Look a model of ``pretrain`` up; ``ValueError`` names those there are."""
    try:
        return MODELS[name]
    except KeyError:
        what = f"model={name} is none" if name else "pretrain needs --model"
        raise ValueError(
            f"{what}; there are {', '.join(MODELS)}; a run that continues remembers its own"
        ) from None
