"""The Llama presets, as data: shape of the model and hyper-parameters of its pre-training.

``llama2-7b`` is the configuration of AWS's reference (neuronx-distributed,
``examples/training/llama/tp_zero1_llama_hf_pretrain/7B_config_llama2``): tensor parallel degree 8,
global batch 1024, sequence 4096, AdamW at 3e-4 with 100 warm-up steps, 10,000 steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What decides a Llama model's tensors; the names are those of Hugging Face's LlamaConfig."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int

    def __post_init__(self) -> None:
        """Refuse a shape that no Llama has."""
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden-size={self.hidden_size} is not a multiple of "
                f"num-heads={self.num_attention_heads}; every head takes an equal part"
            )
        if self.head_size % 2:
            raise ValueError(
                f"hidden-size={self.hidden_size} over num-heads={self.num_attention_heads} gives "
                f"heads of {self.head_size}; rotary embeddings need an even number"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num-heads={self.num_attention_heads} is not a multiple of "
                f"num-kv-heads={self.num_key_value_heads}; each key-value head serves equally many"
            )

    @property
    def head_size(self) -> int:
        """Elements of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def num_embedding_parameters(self) -> int:
        """The input embedding; the output projection is a matrix of its own (untied)."""
        return self.vocab_size * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """All parameters of the model."""
        queries_and_output = 2 * self.hidden_size * self.hidden_size
        keys_and_values = 2 * self.hidden_size * self.head_size * self.num_key_value_heads
        feed_forward = 3 * self.hidden_size * self.intermediate_size
        norms = 2 * self.hidden_size
        layer = queries_and_output + keys_and_values + feed_forward + norms
        return (
            2 * self.num_embedding_parameters
            + self.num_hidden_layers * layer
            + self.hidden_size  # final norm
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A model with the settings it is trained with unless the user says otherwise."""

    name: str
    summary: str
    shape: ModelShape
    seq_len: int
    global_batch: int
    """Sequences per optimizer step, over all ranks; the same for any number of nodes."""
    micro_batch: int
    tensor_parallel: int
    learning_rate: float
    warmup_steps: int
    max_steps: int
    save_every: int
    log_every: int
    default_nodes: int
    time_limit_hours: float


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
)

PRESETS: Mapping[str, Preset] = MappingProxyType({preset.name: preset for preset in _PRESETS})
"""Every preset, by name; each is a workload of the same name."""
