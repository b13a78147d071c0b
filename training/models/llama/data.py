"""Batches for the loop: the tokens at given positions of a run's data order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from training.datasets.samples.order import sequence_indices
from training.datasets.samples.packed import TokenStream
from training.models.llama.documents import with_documents
from training.models.network import Batch

Batches = Callable[[range], Batch]
"""Positions to int64 ``[positions, seq_len + 1]``, or to those with their documents."""


def packed_batches(
    dataset: TokenStream, *, seed: int, seq_len: int, masked_by: int | None = None
) -> Batches:
    """A pure function of the positions: nothing has to be saved, any rank may ask for any.

    ``masked_by`` is the id that ends a document, where documents are not to see each other.
    """
    num_sequences = dataset.num_sequences(seq_len)

    def batch(positions: range) -> Batch:
        indices = sequence_indices(
            seed=seed, positions=np.array(positions, np.uint64), num_sequences=num_sequences
        )
        rows = np.stack([dataset.sequence(int(i), seq_len) for i in indices])
        return _micro_batch(rows, masked_by)

    return batch


def random_batches(
    *, vocab_size: int, seed: int, seq_len: int, masked_by: int | None = None
) -> Batches:
    """Tokens without a dataset, for graphs that are compiled and models that are compared."""

    def batch(positions: range) -> Batch:
        rows = [
            np.random.default_rng((seed, position)).integers(vocab_size, size=seq_len + 1)
            for position in positions
        ]
        return _micro_batch(np.stack(rows).astype(np.int64), masked_by)

    return batch


def _micro_batch(rows: NDArray[np.int64], masked_by: int | None) -> Batch:
    if masked_by is None:
        return torch.from_numpy(rows)
    return with_documents(rows, eos_id=masked_by)
