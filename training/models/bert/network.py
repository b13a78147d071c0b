"""BERT as a ``Network`` for the backends, built from its shape without access to the Hub.

The modules are Hugging Face's, with this project's initial weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

# Importing only transformers.models.bert's two modules halves the import time.
from transformers.models.bert.configuration_bert import BertConfig
from transformers.models.bert.modeling_bert import BertForPreTraining

from training.models.bert.data import IGNORED
from training.models.initial import INITIAL_STD, normal_weight
from trainium_catalogue.models.presets import BERT_POSITIONS, BertShape

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from training.backends.base import WeightPart
    from training.core.config import TrainConfig
    from training.models.bert.data import Batch


def bert_config(shape: BertShape, *, dropout: float) -> BertConfig:
    """Build Hugging Face's configuration, with bert-large-uncased's values for everything else."""
    return BertConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        max_position_embeddings=BERT_POSITIONS,
        type_vocab_size=2,
        hidden_act="gelu",
        initializer_range=INITIAL_STD,
        layer_norm_eps=1e-12,
        pad_token_id=0,
        # With sdpa, torch_xla compiles a third graph and checks the mask on the host in every step.
        attn_implementation="eager",
    )


class Bert(BertForPreTraining):  # type: ignore[misc]
    """The model with both losses: masked words and next sentence."""

    def forward(self, batch: Batch) -> torch.Tensor:
        """Compute a micro-batch's loss: the mean over predictions plus the mean over sequences."""
        hidden, pooled = self.bert(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            token_type_ids=batch["token_type_ids"],
            return_dict=False,
        )[:2]
        # Project only the predicted positions, one in six, because the vocabulary is large. Select
        # them with a matrix product: the gradient of indexing would be a scatter, which maps
        # poorly to a systolic array.
        positions = torch.arange(hidden.size(1), device=hidden.device)
        chosen = (batch["positions"].unsqueeze(-1) == positions).to(hidden.dtype) @ hidden
        words = self.cls.predictions(chosen)
        follows = self.cls.seq_relationship(pooled)
        entropy = torch.nn.functional.cross_entropy
        return entropy(
            words.flatten(0, 1).float(), batch["labels"].flatten(), ignore_index=IGNORED
        ) + entropy(follows.float(), batch["next_sentence_label"])


def initial_weight(name: str, size: torch.Size, *, seed: int) -> torch.Tensor:
    """Create the initial value of a whole parameter, fp32 on the host."""
    if name.endswith("LayerNorm.weight"):
        return torch.ones(size)
    if name.endswith("bias"):
        return torch.zeros(size)
    weight = normal_weight(name, size, seed=seed)
    if name.endswith("word_embeddings.weight"):
        weight[0] = 0  # padding
    return weight


class BertNetwork:
    """BERT as a ``Network``."""

    def __init__(self, config: TrainConfig) -> None:
        self._config = config

    def build(self, mesh: DeviceMesh | None) -> nn.Module:
        """Build the model on the meta device, to be replicated on every rank."""
        shape = self._config.shape
        assert mesh is None and isinstance(shape, BertShape), shape
        with torch.device("meta"):
            model: nn.Module = Bert(bert_config(shape, dropout=self._config.dropout))
        return model.train()

    def initial_part(self, part: WeightPart) -> torch.Tensor:
        """Create the initial value of part of a parameter."""
        return part.of(initial_weight(part.name, part.whole, seed=self._config.seed))

    def restore(self, model: Any, device: torch.device) -> None:
        """Restore tied weights and buffers.

        The output projection shares the word embedding and the head's bias. If they are tied before
        the move from the meta device, torch_xla computes different losses.
        """
        model.tie_weights()
        model.cls.predictions.decoder.bias = model.cls.predictions.bias
        embeddings = model.bert.embeddings
        embeddings.position_ids = torch.arange(BERT_POSITIONS, device=device).unsqueeze(0)
        embeddings.token_type_ids = torch.zeros_like(embeddings.position_ids)

    def layers(self, model: Any) -> Iterable[nn.Module]:
        """List the encoder's layers."""
        layers: Iterable[nn.Module] = model.bert.encoder.layer
        return layers

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        """Compute the sum of both losses."""
        loss: torch.Tensor = model(batch)
        return loss
