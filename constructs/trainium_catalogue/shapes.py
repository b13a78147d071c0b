"""What decides the tensors of a model, and how many parameters follow from it."""

from dataclasses import dataclass
from itertools import pairwise


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
    def num_multiplied_parameters(self) -> int:
        """Those that every token is multiplied with, as FLOPs are counted."""
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
"""Tokens of the longest sequence that a BERT has positions for (bert-large-uncased)."""
_BERT_SEGMENTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BertShape:
    """What decides a BERT's tensors; the names are those of Hugging Face's BertConfig."""

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
        """Every head has keys and values of its own."""
        return self.num_attention_heads

    @property
    def num_multiplied_parameters(self) -> int:
        """The layers', as AWS counts: 3,530 sequences a second on a trn1.32xlarge are 27.5 %.

        (aws-neuron-sdk, ``about-neuron/benchmarks/trn1/trn1_trn1n_nlp_data.csv``.) Words are
        predicted at one position in six only.
        """
        hidden, inner = self.hidden_size, self.intermediate_size
        attention = 4 * hidden * (hidden + 1)
        feed_forward = 2 * hidden * inner + hidden + inner
        norms = 4 * hidden
        return self.num_hidden_layers * (attention + feed_forward + norms)

    @property
    def num_parameters(self) -> int:
        """All parameters; the word embedding is the output projection too (tied)."""
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
    """Of the first layer."""
    intermediate_size: int = 84
    """Of the second."""
    num_inputs: int = 784
    num_hidden_layers: int = 0
    """None of them is a transformer's."""
    num_attention_heads: int = 1

    @property
    def num_key_value_heads(self) -> int:
        """None is split."""
        return self.num_attention_heads

    @property
    def num_parameters(self) -> int:
        """All parameters."""
        sizes = (self.num_inputs, self.hidden_size, self.intermediate_size, self.vocab_size)
        return sum((before + 1) * after for before, after in pairwise(sizes))

    @property
    def num_multiplied_parameters(self) -> int:
        """All of them."""
        return self.num_parameters


Shape = ModelShape | BertShape | MlpShape
"""Of any model."""
