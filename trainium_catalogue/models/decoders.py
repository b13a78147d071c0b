"""Decoders of today, as data: the models that ``pretrain --model`` trains.

Shapes are those of the ``config.json`` that each model's makers publish on Hugging Face, in the
repository named beside it; of Qwen3 those of the base models, whose documents end with
``<|endoftext|>``. The widths are in public code too: pytorch/torchtitan,
``torchtitan/models/{llama3,qwen3}/__init__.py``.

The recipe is that of AWS's only public one for such a model, Llama-3.1-8B (neuronx-distributed,
``examples/training/llama/tp_zero1_llama_hf_pretrain/tp_zero1_llama31_8B_hf_pretrain.sh``): global
batch 1024, 10,000 steps with 100 of warm-up, 1.5e-4, sequences of 8192. Qwen3 begins with 4096
(arXiv 2505.09388, section 3.2). AWS splits the 8B over 32 ranks, which keeps copies of key-value
heads; here the degree divides them. Each is the least with which a rank of a trn1 stays below its
16 GiB on one node, by the arithmetic of plans and with attention that keeps its scores, which
document masks need: the fewer share a layer, the less they send.
"""

from dataclasses import replace

from trainium_catalogue.models.shapes import Family, ModelShape, Preset, RopeScaling

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
    """What all models of Llama 3.1 and 3.2 that read text alone have in common."""
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
    """What all dense Qwen3 of up to 8 billion parameters have in common."""
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


def _preset(
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


def _tiny(name: str, shape: ModelShape, *, like: str) -> Preset:
    """The recipe of ``llama-tiny``."""
    return Preset(
        name=name,
        summary=f"all that is special about {like} in a few million parameters: minutes on a CPU",
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


FAMILIES = (
    _preset(
        "llama3.1-8b",
        _llama3(hidden=4096, inner=14336, layers=32, heads=32, scaling=_LLAMA_3_1, tied=False),
        source="meta-llama/Llama-3.1-8B",
        seq_len=8192,
        degree=8,
        nodes=4,
    ),
    _preset(
        "llama3.2-1b",
        _llama3(hidden=2048, inner=8192, layers=16, heads=32, scaling=_LLAMA_3_2, tied=True),
        source="meta-llama/Llama-3.2-1B",
        seq_len=8192,
        degree=4,
        nodes=1,
    ),
    _preset(
        "llama3.2-3b",
        _llama3(hidden=3072, inner=8192, layers=28, heads=24, scaling=_LLAMA_3_2, tied=True),
        source="meta-llama/Llama-3.2-3B",
        seq_len=8192,
        degree=4,
        nodes=2,
    ),
    _preset(
        "qwen3-0.6b",
        _qwen3(hidden=1024, inner=3072, layers=28, heads=16, tied=True),
        source="Qwen/Qwen3-0.6B-Base",
        seq_len=4096,
        degree=1,
        nodes=1,
    ),
    _preset(
        "qwen3-1.7b",
        _qwen3(hidden=2048, inner=6144, layers=28, heads=16, tied=True),
        source="Qwen/Qwen3-1.7B-Base",
        seq_len=4096,
        degree=2,
        nodes=1,
    ),
    _preset(
        "qwen3-4b",
        _qwen3(hidden=2560, inner=9728, layers=36, heads=32, tied=True),
        source="Qwen/Qwen3-4B-Base",
        seq_len=4096,
        degree=4,
        nodes=2,
    ),
    _preset(
        "qwen3-8b",
        _qwen3(hidden=4096, inner=12288, layers=36, heads=32, tied=False),
        source="Qwen/Qwen3-8B-Base",
        seq_len=4096,
        degree=8,
        nodes=4,
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
            # So few that its sequences reach where the scaling shows.
            rope_scaling=replace(_LLAMA_3_2, original_max_position_embeddings=32),
            tie_word_embeddings=True,
        ),
        like="Llama 3.2",
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
        like="Qwen3",
    ),
)
"""Presets of ``pretrain``, in the order in which they are shown."""
