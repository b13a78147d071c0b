"""Batches for BERT: sequences from HDF5 shards by position in a run's data order.

Shards can only be read in full, since their arrays are compressed. So a rank should need few shards
at a time, while a step should mix as many as possible. Each epoch therefore shuffles the shards and
splits the resulting stream into lanes. Every step takes an equal block from each lane, and a rank,
which computes adjacent positions of the step, needs only a few lanes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from training.datasets.manifest import DatasetError
from training.datasets.prepared.bert_shards import Arrays, read_shard
from training.datasets.samples.order import sequence_indices
from trainium_catalogue.wording import counted

Batch = Mapping[str, torch.Tensor]
"""int64: ``input_ids``, ``attention_mask`` and ``token_type_ids`` ``[batch, seq_len]``,
``positions`` and ``labels`` ``[batch, max_predictions]``, ``next_sentence_label`` ``[batch]``."""

IGNORED = -100
"""Label of an absent prediction: torch's ``ignore_index``."""
_MAX_LANES = 64
_SHARD_SEED_FACTOR = 1_000_003
"""Multiplies the seed, for an independent order within each shard."""

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOrder:
    """A data order that visits each sequence once per epoch, independent of ranks and nodes."""

    seed: int
    sizes: tuple[int, ...]
    """Number of sequences in each shard."""
    global_batch: int

    @property
    def num_sequences(self) -> int:
        """Number of sequences per epoch."""
        return sum(self.sizes)

    @property
    def num_lanes(self) -> int:
        """Number of lanes, each of which reads from about one shard per step."""
        return min(len(self.sizes), _MAX_LANES)

    @property
    def block(self) -> int:
        """Number of adjacent positions of a step in the same lane."""
        return max(1, self.global_batch // self.num_lanes)

    def max_shards(self, num_positions: int) -> int:
        """Estimate the maximum number of shards for ``num_positions`` adjacent positions."""
        return min(len(self.sizes), num_positions // self.block + 2)

    def find(self, positions: NDArray[Any]) -> tuple[Indices, Indices]:
        """Return the shard and row of each (0-based) position of the run."""
        epochs, offsets = np.divmod(positions.astype(np.int64), self.num_sequences)
        shards, rows = np.empty_like(offsets), np.empty_like(offsets)
        for epoch in np.unique(epochs).tolist():
            chosen = epochs == epoch
            shards[chosen], rows[chosen] = self._find(epoch, self._stream(offsets[chosen]))
        return shards, rows

    def _stream(self, offsets: Indices) -> Indices:
        """Map each offset to a position in the epoch's stream of shards; a permutation."""
        lanes, block = self.num_lanes, self.block
        number, inside = np.divmod(offsets, block)
        rounds, rest = divmod(self.num_sequences, lanes * block)
        lengths = rounds * block + np.clip(rest - np.arange(lanes) * block, 0, block)
        starts = np.cumsum(lengths) - lengths
        result: Indices = starts[number % lanes] + number // lanes * block + inside
        return result

    def _find(self, epoch: int, stream_positions: Indices) -> tuple[Indices, Indices]:
        count = len(self.sizes)
        order = sequence_indices(
            seed=self.seed, positions=epoch * count + np.arange(count), num_sequences=count
        )
        sizes = np.array(self.sizes)[order]
        starts = np.cumsum(sizes) - sizes
        number = np.searchsorted(starts, stream_positions, side="right") - 1
        shards, inside = order[number], stream_positions - starts[number]
        rows = np.empty_like(stream_positions)
        for shard in np.unique(shards).tolist():
            chosen, size = shards == shard, self.sizes[shard]
            rows[chosen] = sequence_indices(
                seed=self.seed * _SHARD_SEED_FACTOR + shard + 1,
                positions=epoch * size + inside[chosen],
                num_sequences=size,
            )
        return shards, rows


class ShardCache:
    """An LRU cache of shards with read-ahead in a thread."""

    def __init__(self, paths: list[Path], *, sizes: Sequence[int], capacity: int) -> None:
        self._paths, self._sizes, self._capacity = paths, sizes, capacity
        self._futures: OrderedDict[int, Future[Arrays]] = OrderedDict()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="shards")

    def prefetch(self, shard: int) -> Future[Arrays]:
        """Start reading a shard unless it is cached."""
        if shard not in self._futures:
            self._futures[shard] = self._pool.submit(self._load, shard)
        self._futures.move_to_end(shard)
        while len(self._futures) > self._capacity:
            self._futures.popitem(last=False)
        return self._futures[shard]

    def _load(self, shard: int) -> Arrays:
        path, expected = self._paths[shard], self._sizes[shard]
        arrays = read_shard(path)
        if (count := len(arrays["input_ids"])) != expected:
            raise DatasetError(
                f"{path.name} has {counted(count, 'sequence')}, but the dataset's manifest lists "
                f"{expected}; correct the manifest, or submit prepare again"
            )
        return arrays

    def get(self, shard: int) -> Arrays:
        """Return a shard's arrays; wait for them if necessary."""
        return self.prefetch(shard).result()


def shard_batches(
    paths: list[Path], order: ShardOrder, *, positions_per_rank: int
) -> Callable[[range], Batch]:
    """Return a pure function from positions in the data order to their batch."""
    # This step's shards and the next step's, which are prefetched.
    capacity = 2 * order.max_shards(positions_per_rank)
    shards = ShardCache(paths, sizes=order.sizes, capacity=capacity)

    def batch(positions: range) -> Batch:
        numbers, rows = order.find(np.array(positions))
        arrays = [shards.get(shard) for shard in numbers.tolist()]
        following, _ = order.find(np.array(positions) + order.global_batch)
        for shard in dict.fromkeys(following.tolist()):
            shards.prefetch(shard)
        return to_batch(
            {
                key: np.stack([one[key][row] for one, row in zip(arrays, rows, strict=True)])
                for key in arrays[0]
            }
        )

    return batch


def to_batch(arrays: Arrays) -> Batch:
    """Convert rows of a shard to the model's input."""
    positions = arrays["masked_lm_positions"].astype(np.int64)
    # Position 0 marks an absent prediction, since [CLS] is never predicted.
    labels = np.where(positions > 0, arrays["masked_lm_ids"], IGNORED)
    return {
        "input_ids": _tensor(arrays["input_ids"]),
        "attention_mask": _tensor(arrays["input_mask"]),
        "token_type_ids": _tensor(arrays["segment_ids"]),
        "positions": _tensor(positions),
        "labels": _tensor(labels),
        "next_sentence_label": _tensor(arrays["next_sentence_labels"]),
    }


def random_batches(
    *, vocab_size: int, seed: int, seq_len: int, max_predictions: int
) -> Callable[[range], Batch]:
    """Return a function that makes random batches, for compiling graphs without a dataset."""

    def row(position: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng((seed, position))
        count = min(max_predictions, seq_len - 1)
        positions, ids = np.zeros(max_predictions, np.int64), np.zeros(max_predictions, np.int64)
        positions[:count] = np.sort(rng.choice(seq_len - 1, count, replace=False)) + 1
        ids[:count] = rng.integers(vocab_size, size=count)
        return {
            "input_ids": rng.integers(vocab_size, size=seq_len),
            "input_mask": np.ones(seq_len),
            "segment_ids": np.arange(seq_len) >= seq_len // 2,
            "masked_lm_positions": positions,
            "masked_lm_ids": ids,
            "next_sentence_labels": np.array(rng.integers(2)),
        }

    def batch(positions: range) -> Batch:
        rows = [row(position) for position in positions]
        return to_batch({key: np.stack([one[key] for one in rows]) for key in rows[0]})

    return batch


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int64))
