"""The shapes of models: tensor sizes and other properties that affect the computation."""

from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from itertools import pairwise


class Family(StrEnum):
    """A family of decoders, named as Hugging Face's ``model_type``."""

    LLAMA = "llama"
    """Llama 2, 3, 3.1 and 3.2."""
    QWEN3 = "qwen3"
    """Like Llama, with per-head norms of queries and keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Llama 3.1's scaling of low rotary frequencies (``rope_type`` llama3)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder's sizes and constants, named as in Hugging Face's LlamaConfig and Qwen3Config.

    The defaults are Llama 2's.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    family: Family = Family.LLAMA
    head_dim: int = 0
    """Elements per attention head; 0: ``hidden_size`` over ``num_attention_heads``."""
    max_position_embeddings: int = 0
    """Tokens of the longest sequence; 0: the training sequence length."""
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    """True if the input embedding is also the output projection."""
    bos_token_id: int = 1
    eos_token_id: int = 2

    def __post_init__(self) -> None:
        """Refuse an invalid shape."""
        if not self.head_dim and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden-size={self.hidden_size} is not a multiple of "
                f"num-heads={self.num_attention_heads}; all heads have the same size"
            )
        if self.head_size % 2:
            cause = f"head-dim={self.head_dim}"
            if not self.head_dim:
                cause = f"hidden-size={self.hidden_size} over num-heads={self.num_attention_heads}"
            raise ValueError(
                f"{cause} gives a head size of {self.head_size}; rotary embeddings need an even one"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num-heads={self.num_attention_heads} is not a multiple of "
                f"num-kv-heads={self.num_key_value_heads}; every key-value head serves the same "
                "number of query heads"
            )

    @property
    def head_size(self) -> int:
        """Elements per attention head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def attention_size(self) -> int:
        """Elements of all heads' queries per token."""
        return self.num_attention_heads * self.head_size

    @property
    def num_embedding_parameters(self) -> int:
        """Parameters of the input embedding."""
        return self.vocab_size * self.hidden_size

    @property
    def num_end_parameters(self) -> int:
        """Parameters of input embedding and output projection; tied ones count once."""
        return self.num_embedding_parameters * (1 if self.tie_word_embeddings else 2)

    @property
    def num_norm_parameters(self) -> int:
        """Parameters of all norms, which tensor parallelism does not split."""
        head_norms = 2 * self.head_size if self.family is Family.QWEN3 else 0
        return self.num_hidden_layers * (2 * self.hidden_size + head_norms) + self.hidden_size

    @property
    def num_multiplied_parameters(self) -> int:
        """Parameters that multiply every token, for counting FLOPs."""
        lookup_only = 0 if self.tie_word_embeddings else self.num_embedding_parameters
        return self.num_parameters - lookup_only

    @property
    def num_parameters(self) -> int:
        """All parameters of the model; tied ones count once."""
        queries_and_output = 2 * self.hidden_size * self.attention_size
        keys_and_values = 2 * self.hidden_size * self.head_size * self.num_key_value_heads
        feed_forward = 3 * self.hidden_size * self.intermediate_size
        layer = queries_and_output + keys_and_values + feed_forward
        return self.num_end_parameters + self.num_hidden_layers * layer + self.num_norm_parameters


BERT_POSITIONS = 512
"""Maximum sequence length of BERT (bert-large-uncased)."""
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
        """Refuse an invalid shape."""
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden-size={self.hidden_size} is not a multiple of "
                f"num-heads={self.num_attention_heads}; all heads have the same size"
            )

    @property
    def num_key_value_heads(self) -> int:
        """All heads, because each has its own keys and values."""
        return self.num_attention_heads

    @property
    def attention_size(self) -> int:
        """Elements of all heads' queries per token."""
        return self.hidden_size

    @property
    def num_multiplied_parameters(self) -> int:
        """Parameters of the layers, as counted by AWS's MFU.

        On trn1.32xlarge, 3,530 sequences/s are 27.5% (aws-neuron-sdk,
        ``about-neuron/benchmarks/trn1/trn1_trn1n_nlp_data.csv``). It leaves out the
        output head, because only one position in six is predicted.
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
    def attention_size(self) -> int:
        """Always 0: it has no attention."""
        return 0

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


def defaults_of(shape: Shape) -> dict[str, object]:
    """Return the defaults of a shape's fields, for runs that predate the fields."""
    return {each.name: each.default for each in fields(shape) if each.default is not MISSING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A model and its default training settings."""

    name: str
    summary: str
    shape: Shape
    dataset: str = ""
    """Default dataset; empty if the user must specify one."""
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
