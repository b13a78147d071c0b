"""The data order: which sequence a step reads, as a pure function of seed and position."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]

_ROUNDS = 6
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
"""Multipliers of splitmix64's finalizer (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
Generators, OOPSLA 2014), which turns a counter into numbers that pass statistical tests."""


def sequence_indices(
    *, seed: int, positions: NDArray[Any], num_sequences: int
) -> NDArray[np.int64]:
    """Return the indices in [0, num_sequences) of the sequences at these positions of the run.

    A position is step * global_batch + index in the batch, 0-based, independent of ranks and nodes.
    Every epoch of ``num_sequences`` positions visits each sequence once, in a different order. The
    result has the shape of ``positions``. Raises ``ValueError`` if there are no sequences.
    """
    if num_sequences < 1:
        raise ValueError(
            f"the dataset has {num_sequences} sequences of this length; "
            "use a shorter sequence length or more text"
        )
    epochs, places = np.divmod(positions.astype(np.uint64), np.uint64(num_sequences))
    keys = _mix(_mix(np.full_like(epochs, seed % 2**64)) ^ epochs)
    return _permute(places, keys, num_sequences).astype(np.int64)


def _permute(places: U64, keys: U64, size: int) -> U64:
    """Apply a keyed permutation of [0, size) without a table.

    A Feistel network permutes [0, 2^(2h)), the smallest such range that covers ``size``. Results
    outside [0, size) are fed back until they fall inside, which preserves the permutation (cycle
    walking: Black and Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002). The range is at
    most four times as large, so this takes at most four passes on average.
    """
    half = max(1, -(-(size - 1).bit_length() // 2))
    result = _feistel(places, keys, half)
    while (outside := result >= size).any():
        result[outside] = _feistel(result[outside], keys[outside], half)
    return result


def _feistel(values: U64, keys: U64, half: int) -> U64:
    shift, mask = np.uint64(half), np.uint64(2**half - 1)
    left, right = values >> shift, values & mask
    for number in range(_ROUNDS):
        # Round keys form a Weyl sequence.
        round_keys = keys + np.uint64(number * 0x9E3779B97F4A7C15 % 2**64)
        left, right = right, left ^ (_mix(right ^ round_keys) & mask)
    return (left << shift) | right


def _mix(values: U64) -> U64:
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        values = (values ^ (values >> np.uint64(shift))) * multiplier
    return values ^ (values >> np.uint64(31))
