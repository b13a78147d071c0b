"""The data order over shards: which sequence of which shard, from epoch and position alone.

A shard can only be read as a whole (its arrays are compressed), so a rank must not need many at
once, while a step should mix as many as there are. An epoch therefore puts the shards in an order
of its own and cuts that stream into lanes; every step takes an equal block of each lane, and a
rank, which computes neighbouring positions of the step, needs only the few lanes that they are in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.datasets.samples.order import sequence_indices

_MOST_LANES = 64
_ANOTHER_SEED = 1_000_003
"""So that no shard's order is another one's, or that of the shards."""

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOrder:
    """Every epoch visits each sequence once; neither ranks nor nodes matter."""

    seed: int
    sizes: tuple[int, ...]
    """Sequences of each shard."""
    global_batch: int

    @property
    def num_sequences(self) -> int:
        """Of an epoch."""
        return sum(self.sizes)

    @property
    def num_lanes(self) -> int:
        """Shards that a step takes from."""
        return min(len(self.sizes), _MOST_LANES)

    @property
    def block(self) -> int:
        """Neighbouring positions of a step that are in one lane."""
        return max(1, self.global_batch // self.num_lanes)

    def shards_at_once(self, num_positions: int) -> int:
        """Shards that so many neighbouring positions may need."""
        return min(len(self.sizes), num_positions // self.block + 2)

    def find(self, positions: NDArray[Any]) -> tuple[Indices, Indices]:
        """Shard and row of each position of the run, counted from 0."""
        epochs, offsets = np.divmod(positions.astype(np.int64), self.num_sequences)
        shards, rows = np.empty_like(offsets), np.empty_like(offsets)
        for epoch in np.unique(epochs).tolist():
            chosen = epochs == epoch
            shards[chosen], rows[chosen] = self._find(epoch, self._stream(offsets[chosen]))
        return shards, rows

    def _stream(self, offsets: Indices) -> Indices:
        """Place of each offset in the epoch's stream of shards; a permutation."""
        lanes, block = self.num_lanes, self.block
        number, inside = np.divmod(offsets, block)
        rounds, rest = divmod(self.num_sequences, lanes * block)
        lengths = rounds * block + np.clip(rest - np.arange(lanes) * block, 0, block)
        starts = np.cumsum(lengths) - lengths
        found: Indices = starts[number % lanes] + number // lanes * block + inside
        return found

    def _find(self, epoch: int, places: Indices) -> tuple[Indices, Indices]:
        count = len(self.sizes)
        order = sequence_indices(
            seed=self.seed, positions=epoch * count + np.arange(count), num_sequences=count
        )
        sizes = np.array(self.sizes)[order]
        starts = np.cumsum(sizes) - sizes
        number = np.searchsorted(starts, places, side="right") - 1
        shards, inside = order[number], places - starts[number]
        rows = np.empty_like(places)
        for shard in np.unique(shards).tolist():
            chosen, size = shards == shard, self.sizes[shard]
            rows[chosen] = sequence_indices(
                seed=self.seed * _ANOTHER_SEED + shard + 1,
                positions=epoch * size + inside[chosen],
                num_sequences=size,
            )
        return shards, rows
