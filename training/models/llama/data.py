"""Batches for Llama: tokens by position in a run's data order, with document masks.

With masks, a token in a packed sequence attends only to its own document. Position IDs need no
reset: attention with rotary embeddings depends only on distances, so a packed document gives the
same results as a separate one. In bf16 this holds up to the precision of cosines and sines, which
Hugging Face's Llama rounds to the dtype of the embeddings.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from training.backends.base import WEIGHTS, Batch
from training.datasets.manifest import COUNTED
from training.datasets.samples.order import sequence_indices
from training.datasets.samples.packed import TokenStream

TOKENS, DOCUMENTS = "tokens", "documents"
"""Keys of a micro-batch with document masks or weights; otherwise it is just the tokens."""
_MASKED = torch.finfo(torch.bfloat16).min
"""Added to the score of a masked pair; finite in bf16 and fp32."""
Batches = Callable[[range], Batch]
"""Maps positions to int64 ``[positions, seq_len + 1]``, possibly with their documents."""


def packed_batches(
    dataset: TokenStream,
    *,
    seed: int,
    seq_len: int,
    document_eos_id: int | None = None,
    group: int = 1,
) -> Batches:
    """Return a pure function from positions to batches; any rank may request any position.

    ``document_eos_id`` is the end-of-document id if documents must not attend to each other.
    ``group`` is the number of positions of a step or of an evaluation: for prompts and responses,
    all tokens in its loss have the same weight.
    """
    num_sequences = dataset.num_sequences(seq_len)

    def rows_at(positions: range) -> NDArray[np.int64]:
        indices = sequence_indices(
            seed=seed, positions=np.array(positions, np.uint64), num_sequences=num_sequences
        )
        return np.stack([dataset.sequence(int(i), seq_len) for i in indices])

    @lru_cache(maxsize=1)
    def weight(number: int) -> float:
        """Return the weight of each token in a group's loss."""
        first = number * group
        # Row by row, since the rows of all ranks would take too much memory.
        num_counted = sum(
            int((rows_at(range(position, position + 1)) >= COUNTED).sum())
            for position in range(first, first + group)
        )
        return group * seq_len / num_counted

    def batch(positions: range) -> Batch:
        rows = rows_at(positions)
        if not dataset.has_responses:
            return _micro_batch(rows, document_eos_id)
        counts = torch.from_numpy((rows[:, 1:] >= COUNTED).astype(np.float32))
        weights = counts * weight(positions.start // group)
        return _with_weights(_micro_batch(rows, document_eos_id, has_responses=True), weights)

    return batch


def random_batches(
    *,
    vocab_size: int,
    seed: int,
    seq_len: int,
    document_eos_id: int | None = None,
    has_weights: bool = False,
) -> Batches:
    """Return a function that makes random batches, for compiling graphs and comparing models."""

    def batch(positions: range) -> Batch:
        rows = [
            np.random.default_rng((seed, position)).integers(vocab_size, size=seq_len + 1)
            for position in positions
        ]
        micro_batch = _micro_batch(np.stack(rows).astype(np.int64), document_eos_id)
        if not has_weights:
            return micro_batch
        return _with_weights(micro_batch, torch.ones(len(positions), seq_len))

    return batch


def _with_weights(micro_batch: Batch, weights: torch.Tensor) -> Batch:
    if isinstance(micro_batch, torch.Tensor):
        micro_batch = {TOKENS: micro_batch}
    return {**micro_batch, WEIGHTS: weights}


def _micro_batch(
    rows: NDArray[np.int64], document_eos_id: int | None, *, has_responses: bool = False
) -> Batch:
    if document_eos_id is None:
        return torch.from_numpy(rows & (COUNTED - 1))
    return with_documents(rows, eos_id=document_eos_id, has_responses=has_responses)


def with_documents(
    rows: NDArray[np.int64], *, eos_id: int, has_responses: bool = False
) -> dict[str, torch.Tensor]:
    """Combine ``[micro_batch, seq_len + 1]`` tokens with the document number of each input.

    Documents are numbered from 0 in each sequence, int32 ``[micro_batch, seq_len]``; the token that
    ends a document belongs to it. A prompt and its response are one document, which ends at an EOS
    that contributes to the loss and is followed by a token that does not; any other EOS ends a turn
    of the dialogue. The numbers are computed on the host, so that no graph contains ``eos_id``.
    """
    counts = rows >= COUNTED
    tokens = rows & (COUNTED - 1)
    ends = tokens[:, :-1] == eos_id
    if has_responses:
        ends &= counts[:, :-1] & ~counts[:, 1:]
    documents = np.cumsum(ends, axis=1, dtype=np.int32) - ends
    return {
        TOKENS: torch.from_numpy(tokens),
        DOCUMENTS: torch.from_numpy(documents.astype(np.int32)),
    }


def attention_mask(documents: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the additive attention mask, ``[micro_batch, 1, seq_len, seq_len]``.

    Hugging Face's Llama uses four-dimensional masks unchanged (transformers 4.56,
    ``masking_utils._preprocess_mask_arguments``): eager attention adds them, and so does
    ``scaled_dot_product_attention`` if they are not boolean.
    """
    seq_len = documents.shape[1]
    positions = torch.arange(seq_len, device=documents.device)
    is_causal = positions[None, :] <= positions[:, None]
    is_same = documents[:, :, None] == documents[:, None, :]
    return torch.where(is_same & is_causal, 0.0, _MASKED).to(dtype)[:, None]


def model_inputs(batch: Batch, dtype: torch.dtype) -> tuple[dict[str, Any], torch.Tensor]:
    """Convert a micro-batch on the device to the model's keyword arguments and labels.

    ``dtype`` is the dtype of attention scores.
    """
    if isinstance(batch, torch.Tensor):
        return {"input_ids": batch[:, :-1]}, batch[:, 1:]
    tokens = batch[TOKENS]
    if DOCUMENTS not in batch:
        return {"input_ids": tokens[:, :-1]}, tokens[:, 1:]
    mask = attention_mask(batch[DOCUMENTS], dtype)
    return {"input_ids": tokens[:, :-1], "attention_mask": mask}, tokens[:, 1:]
