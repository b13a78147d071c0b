"""The models to pre-train, as data: their shapes and hyperparameters.

``llama2-7b`` is the configuration of AWS's reference (neuronx-distributed,
``examples/training/llama/tp_zero1_llama_hf_pretrain/7B_config_llama2``): tensor parallel degree 8,
global batch 1024, sequence 4096, AdamW at 3e-4 with 100 warm-up steps, 10,000 steps. ``bert`` is
phase 1 of AWS's BERT-large (aws-neuron-samples, ``torch-neuronx/training/dp_bert_hf_pretrain``):
data parallel, global batch 16,384 on any number of nodes, sequence 128, AdamW at 4e-4 with 2,000
warm-up steps, 28,125 steps.

The shapes of current decoders, for ``pretrain --model``, come from the ``config.json`` in the
Hugging Face repository named with each model. For Qwen3 these are the base models, whose documents
end with ``<|endoftext|>``, except for 32B, which has no published base model. The widths are also
in public code: pytorch/torchtitan, ``torchtitan/models/{llama3,qwen3}/__init__.py``.

Their recipe is AWS's only public one for such a model, Llama-3.1-8B (neuronx-distributed,
``examples/training/llama/tp_zero1_llama_hf_pretrain/tp_zero1_llama31_8B_hf_pretrain.sh``): global
batch 1024, 10,000 steps with 100 of warm-up, 1.5e-4, sequences of 8192. Qwen3 starts with 4096
(arXiv 2505.09388, section 3.2). AWS splits the 8B over 32 ranks, with copies of key-value heads;
here the degree divides them. Each degree is the smallest at which a rank of one trn1 node stays
below its 16 GiB, according to plans whose attention keeps its scores, as document masks need: the
fewer ranks share a layer, the less they communicate. The models of 32 and 70 billion parameters are
for trn2.48xlarge with TorchNeuron: their degree is the smallest routed by its torus at which
weights and gradients fit a rank; ranks share key-value heads.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

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
    "find_model",
]

_LLAMA_3_1 = RopeScaling(
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=8192,
)
_LLAMA_3_2 = replace(_LLAMA_3_1, factor=32.0)


def _llama3(
    *,
    hidden: int,
    inner: int,
    layers: int,
    heads: int,
    scaling: RopeScaling,
    tied: bool,
) -> ModelShape:
    """Build the shape of a text-only Llama 3.1 or 3.2 model."""
    return ModelShape(
        vocab_size=128256,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=hidden // heads,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        rope_scaling=scaling,
        tie_word_embeddings=tied,
        bos_token_id=128000,
        eos_token_id=128001,
    )


def _qwen3(*, hidden: int, inner: int, layers: int, heads: int, tied: bool) -> ModelShape:
    """Build the shape of a dense Qwen3 base model."""
    return ModelShape(
        family=Family.QWEN3,
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=32768,
        rms_norm_eps=1e-6,
        rope_theta=1000000.0,
        tie_word_embeddings=tied,
        bos_token_id=151643,
        eos_token_id=151643,
    )


def _decoder(
    name: str, shape: ModelShape, *, source: str, seq_len: int, degree: int, nodes: int
) -> Preset:
    return Preset(
        name=name,
        summary=f"the shape of {source}",
        shape=shape,
        seq_len=seq_len,
        global_batch=1024,
        micro_batch=1,
        tensor_parallel=degree,
        learning_rate=1.5e-4,
        warmup_steps=100,
        max_steps=10000,
        save_every=100,
        log_every=1,
        default_nodes=nodes,
        time_limit_hours=168.0,
    )


def _tiny(name: str, shape: ModelShape, *, summary: str) -> Preset:
    """Build a decoder of a few million parameters that learns within minutes, even on a CPU."""
    return Preset(
        name=name,
        summary=summary,
        shape=shape,
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
    )


_PRESETS = (
    Preset(
        name="llama2-7b",
        summary="pre-train Llama-2-7B with AWS's reference hyperparameters",
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
    _tiny(
        "llama-tiny",
        ModelShape(
            vocab_size=32000,
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        ),
        summary="pre-train a Llama of 4 million parameters, in minutes, even on a CPU",
    ),
    Preset(
        name="bert",
        summary="pre-train BERT-large, phase 1, with AWS's reference hyperparameters",
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
        summary="pre-train a BERT of a million parameters, in minutes, even on a CPU",
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

_MODELS = (
    _decoder(
        "llama3.1-8b",
        _llama3(hidden=4096, inner=14336, layers=32, heads=32, scaling=_LLAMA_3_1, tied=False),
        source="meta-llama/Llama-3.1-8B",
        seq_len=8192,
        degree=8,
        nodes=4,
    ),
    _decoder(
        "llama3.1-70b",
        _llama3(hidden=8192, inner=28672, layers=80, heads=64, scaling=_LLAMA_3_1, tied=False),
        source="meta-llama/Llama-3.1-70B",
        seq_len=8192,
        degree=64,
        nodes=4,
    ),
    _decoder(
        "llama3.2-1b",
        _llama3(hidden=2048, inner=8192, layers=16, heads=32, scaling=_LLAMA_3_2, tied=True),
        source="meta-llama/Llama-3.2-1B",
        seq_len=8192,
        degree=4,
        nodes=1,
    ),
    _decoder(
        "llama3.2-3b",
        _llama3(hidden=3072, inner=8192, layers=28, heads=24, scaling=_LLAMA_3_2, tied=True),
        source="meta-llama/Llama-3.2-3B",
        seq_len=8192,
        degree=4,
        nodes=2,
    ),
    _decoder(
        "qwen3-0.6b",
        _qwen3(hidden=1024, inner=3072, layers=28, heads=16, tied=True),
        source="Qwen/Qwen3-0.6B-Base",
        seq_len=4096,
        degree=1,
        nodes=1,
    ),
    _decoder(
        "qwen3-1.7b",
        _qwen3(hidden=2048, inner=6144, layers=28, heads=16, tied=True),
        source="Qwen/Qwen3-1.7B-Base",
        seq_len=4096,
        degree=2,
        nodes=1,
    ),
    _decoder(
        "qwen3-4b",
        _qwen3(hidden=2560, inner=9728, layers=36, heads=32, tied=True),
        source="Qwen/Qwen3-4B-Base",
        seq_len=4096,
        degree=4,
        nodes=2,
    ),
    _decoder(
        "qwen3-8b",
        _qwen3(hidden=4096, inner=12288, layers=36, heads=32, tied=False),
        source="Qwen/Qwen3-8B-Base",
        seq_len=4096,
        degree=8,
        nodes=4,
    ),
    _decoder(
        "qwen3-32b",
        replace(
            _qwen3(hidden=5120, inner=25600, layers=64, heads=64, tied=False),
            max_position_embeddings=40960,
            eos_token_id=151645,
        ),
        source="Qwen/Qwen3-32B",
        seq_len=4096,
        degree=16,
        nodes=2,
    ),
    _tiny(
        "llama3-tiny",
        ModelShape(
            vocab_size=32000,
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=1024,
            rope_theta=500000.0,
            # Small enough that scaling affects its sequences.
            rope_scaling=replace(_LLAMA_3_2, original_max_position_embeddings=32),
            tie_word_embeddings=True,
        ),
        summary="tiny Llama 3.2 with every feature; trains in minutes on a CPU",
    ),
    _tiny(
        "qwen3-tiny",
        ModelShape(
            family=Family.QWEN3,
            vocab_size=32000,
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=1024,
            rms_norm_eps=1e-6,
            rope_theta=1000000.0,
            tie_word_embeddings=True,
        ),
        summary="tiny Qwen3 with every feature; trains in minutes on a CPU",
    ),
)

PRESETS: Mapping[str, Preset] = MappingProxyType({preset.name: preset for preset in _PRESETS})
"""Every preset, by name; each is a workload of the same name."""

LLAMA_PRESETS: Mapping[str, Preset] = MappingProxyType(
    {name: preset for name, preset in PRESETS.items() if isinstance(preset.shape, ModelShape)}
)
"""The decoder presets that are workloads."""

MODELS: Mapping[str, Preset] = MappingProxyType({preset.name: preset for preset in _MODELS})
"""The models that the workload ``pretrain`` trains, by name (ADR 19)."""

PRETRAIN = "pretrain"
"""The workload that trains any of ``MODELS``."""
DECODERS = (*LLAMA_PRESETS, PRETRAIN)
"""Workloads that train a decoder."""


def find_model(name: str) -> Preset:
    """Look up a model of ``pretrain``; ``ValueError`` lists the known ones."""
    try:
        return MODELS[name]
    except KeyError:
        what = f"model={name} is unknown" if name else "pretrain needs --model"
        raise ValueError(
            f"{what}; known models: {', '.join(MODELS)}; a resumed run keeps its own"
        ) from None
