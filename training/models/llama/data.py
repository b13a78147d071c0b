"""Batches for Llama: tokens at given positions of a run's data order, with document masks.

With masks a token of a packed sequence attends only to its own document. Positions keep counting
through the sequence: rotary embeddings make attention depend on distances alone, so a document
gives the same results as by itself. In bf16 this holds up to the precision of cosines and sines,
which Hugging Face's Llama rounds to the type of the embeddings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
"""Keys of a micro-batch with document masks; of one with neither masks nor weights, which is just
the tokens, none."""
_MASKED = torch.finfo(torch.bfloat16).min
"""Added to the score of a masked pair; finite in bf16 and fp32."""
Batches = Callable[[range], Batch]
"""Maps positions to int64 ``[positions, seq_len + 1]``, or to those with their documents."""


def packed_batches(
    dataset: TokenStream,
    *,
    seed: int,
    seq_len: int,
    masked_by: int | None = None,
    group: int = 1,
) -> Batches:
    """Return a pure function of positions: there is no state to save, any rank may ask for any.

    ``masked_by`` is the id that ends a document, if documents must not see each other. Of prompts
    and responses the tokens that count have the same weight in all of ``group`` positions: those
    of a step, or of an evaluation.
    """
    num_sequences = dataset.num_sequences(seq_len)

    def rows_at(positions: range) -> NDArray[np.int64]:
        indices = sequence_indices(
            seed=seed, positions=np.array(positions, np.uint64), num_sequences=num_sequences
        )
        return np.stack([dataset.sequence(int(i), seq_len) for i in indices])

    @lru_cache(maxsize=1)
    def weight(number: int) -> float:
        """Weight of a token that counts, in a group."""
        first = number * group
        # Row by row: a step of all ranks together is large.
        counted = sum(
            int((rows_at(range(place, place + 1)) >= COUNTED).sum())
            for place in range(first, first + group)
        )
        return group * seq_len / counted

    def batch(positions: range) -> Batch:
        rows = rows_at(positions)
        if not dataset.has_responses:
            return _micro_batch(rows, masked_by)
        made = _micro_batch(rows, masked_by, has_responses=True)
        counts = torch.from_numpy((rows[:, 1:] >= COUNTED).astype(np.float32))
        of_each = counts * weight(positions.start // group)
        return {**(made if isinstance(made, Mapping) else {TOKENS: made}), WEIGHTS: of_each}

    return batch


def random_batches(
    *,
    vocab_size: int,
    seed: int,
    seq_len: int,
    masked_by: int | None = None,
    has_weights: bool = False,
) -> Batches:
    """Return random tokens, for compiling graphs and comparing models without a dataset."""

    def batch(positions: range) -> Batch:
        rows = [
            np.random.default_rng((seed, position)).integers(vocab_size, size=seq_len + 1)
            for position in positions
        ]
        made = _micro_batch(np.stack(rows).astype(np.int64), masked_by)
        if not has_weights:
            return made
        weights = torch.ones(len(positions), seq_len)
        return {**(made if isinstance(made, Mapping) else {TOKENS: made}), WEIGHTS: weights}

    return batch


def _micro_batch(
    rows: NDArray[np.int64], masked_by: int | None, *, has_responses: bool = False
) -> Batch:
    if masked_by is None:
        return torch.from_numpy(rows & (COUNTED - 1))
    return with_documents(rows, eos_id=masked_by, has_responses=has_responses)


def with_documents(
    rows: NDArray[np.int64], *, eos_id: int, has_responses: bool = False
) -> dict[str, torch.Tensor]:
    """Combine ``[micro_batch, seq_len + 1]`` tokens with the document of each input.

    Documents are numbered from 0 in each sequence, int32 ``[micro_batch, seq_len]``; the token that
    ends a document belongs to it. An example of prompt and response is one document: it ends with
    an EOS that counts before a token that does not, and any other EOS ends a turn of its dialogue.
    Counted here on the host, so that no graph contains ``eos_id``.
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
    """Make the mask to add to attention scores, ``[micro_batch, 1, seq_len, seq_len]``.

    Hugging Face's Llama takes a four-dimensional mask as it is (transformers 4.56,
    ``masking_utils._preprocess_mask_arguments``): eager attention adds it, and
    ``scaled_dot_product_attention`` adds one that is not boolean.
    """
    seq_len = documents.shape[1]
    places = torch.arange(seq_len, device=documents.device)
    is_before = places[None, :] <= places[:, None]
    is_same = documents[:, :, None] == documents[:, None, :]
    return torch.where(is_same & is_before, 0.0, _MASKED).to(dtype)[:, None]


def model_inputs(batch: Batch, dtype: torch.dtype) -> tuple[dict[str, Any], torch.Tensor]:
    """Turn a micro-batch on the device into the model's keyword arguments and labels.

    ``dtype`` is that of the attention scores.
    """
    if isinstance(batch, torch.Tensor):
        return {"input_ids": batch[:, :-1]}, batch[:, 1:]
    tokens = batch[TOKENS]
    if DOCUMENTS not in batch:
        return {"input_ids": tokens[:, :-1]}, tokens[:, 1:]
    mask = attention_mask(batch[DOCUMENTS], dtype)
    return {"input_ids": tokens[:, :-1], "attention_mask": mask}, tokens[:, 1:]
