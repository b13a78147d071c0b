"""Batches for the loop: the tokens at given positions of a run's data order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from training.data.order import sequence_indices
from training.data.packed import TokenStream

Batch = Callable[[range], torch.Tensor]
"""Positions to int64 ``[positions, seq_len + 1]``."""


def packed_batches(dataset: TokenStream, *, seed: int, seq_len: int) -> Batch:
    """A pure function of the positions: nothing has to be saved, any rank may ask for any."""
    num_sequences = dataset.num_sequences(seq_len)

    def batch(positions: range) -> torch.Tensor:
        indices = sequence_indices(
            seed=seed, positions=np.array(positions, np.uint64), num_sequences=num_sequences
        )
        return torch.from_numpy(np.stack([dataset.sequence(int(i), seq_len) for i in indices]))

    return batch


def random_batches(*, vocab_size: int, seed: int, seq_len: int) -> Batch:
    """Tokens without a dataset, for graphs that are compiled and models that are compared."""

    def batch(positions: range) -> torch.Tensor:
        rows = [
            np.random.default_rng((seed, position)).integers(vocab_size, size=seq_len + 1)
            for position in positions
        ]
        return torch.from_numpy(np.stack(rows).astype(np.int64))

    return batch
