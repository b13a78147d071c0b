"""The models to pre-train, as data: their shapes and hyperparameters.

``llama2-7b`` is the configuration of AWS's reference (neuronx-distributed,
``examples/training/llama/tp_zero1_llama_hf_pretrain/7B_config_llama2``): tensor parallel degree 8,
global batch 1024, sequence 4096, AdamW at 3e-4 with 100 warm-up steps, 10,000 steps. ``bert`` is
phase 1 of AWS's BERT-large (aws-neuron-samples, ``torch-neuronx/training/dp_bert_hf_pretrain``):
data parallel, global batch 16,384 on any number of nodes, sequence 128, AdamW at 4e-4 with 2,000
warm-up steps, 28,125 steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a Llama model's tensors, named as in Hugging Face's LlamaConfig."""

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
        """Parameters of the input embedding; the output projection is separate (untied)."""
        return self.vocab_size * self.hidden_size

    @property
    def num_multiplied_parameters(self) -> int:
        """Parameters that every token is multiplied with, for counting FLOPs."""
        return self.num_parameters - self.num_embedding_parameters

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


BERT_POSITIONS = 512
"""Tokens of the longest sequence that a BERT takes (bert-large-uncased)."""
_BERT_SEGMENTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BertShape:
    """The sizes of a BERT's tensors, named as in Hugging Face's BertConfig."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int

    def __post_init__(self) -> None:
        """Refuse a shape that no BERT has."""
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden-size={self.hidden_size} is not a multiple of "
                f"num-heads={self.num_attention_heads}; every head takes an equal part"
            )

    @property
    def num_key_value_heads(self) -> int:
        """All heads: each has its own keys and values."""
        return self.num_attention_heads

    @property
    def num_multiplied_parameters(self) -> int:
        """Parameters of the layers, as AWS counts: 3,530 sequences/s on a trn1.32xlarge are 27.5 %.

        (aws-neuron-sdk, ``about-neuron/benchmarks/trn1/trn1_trn1n_nlp_data.csv``.) Words are
        predicted at only one position in six.
        """
        hidden, inner = self.hidden_size, self.intermediate_size
        attention = 4 * hidden * (hidden + 1)
        feed_forward = 2 * hidden * inner + hidden + inner
        norms = 4 * hidden
        return self.num_hidden_layers * (attention + feed_forward + norms)

    @property
    def num_parameters(self) -> int:
        """All parameters; the word embedding is also the output projection (tied)."""
        hidden = self.hidden_size
        embeddings = (self.vocab_size + BERT_POSITIONS + _BERT_SEGMENTS + 2) * hidden
        pooler = hidden * (hidden + 1)
        word_head = hidden * (hidden + 1) + 2 * hidden + self.vocab_size
        next_sentence_head = 2 * (hidden + 1)
        return embeddings + self.num_multiplied_parameters + pooler + word_head + next_sentence_head


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpShape:
    """The reference's network for MNIST (aws-neuron-samples, ``mnist_mlp/model.py``)."""

    vocab_size: int = 10
    """Classes."""
    hidden_size: int = 120
    """Outputs of the first layer."""
    intermediate_size: int = 84
    """Outputs of the second layer."""
    num_inputs: int = 784
    num_hidden_layers: int = 0
    """Always 0: it has no transformer layers."""
    num_attention_heads: int = 1

    @property
    def num_key_value_heads(self) -> int:
        """Always 1: no layer is split."""
        return self.num_attention_heads

    @property
    def num_parameters(self) -> int:
        """All parameters."""
        sizes = (self.num_inputs, self.hidden_size, self.intermediate_size, self.vocab_size)
        return sum((before + 1) * after for before, after in pairwise(sizes))

    @property
    def num_multiplied_parameters(self) -> int:
        """All parameters."""
        return self.num_parameters


Shape = ModelShape | BertShape | MlpShape
"""The shape of any model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A model and its default training settings."""

    name: str
    summary: str
    shape: Shape
    dataset: str = ""
    """Default dataset; empty if the user must name one."""
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
"""The Llama presets."""
