"""Batches for BERT: sequences of HDF5 shards at given positions of a run's data order."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from training.datasets.manifest import DatasetError
from training.datasets.prepared.bert_shards import Arrays, read_shard
from training.models.bert.order import ShardOrder

Batch = Mapping[str, torch.Tensor]
"""int64: ``input_ids``, ``attention_mask`` and ``token_type_ids`` ``[batch, seq_len]``,
``positions`` and ``labels`` ``[batch, max_predictions]``, ``next_sentence_label`` ``[batch]``."""

IGNORED = -100
"""Label of a prediction that a sequence does not have: torch's ``ignore_index``."""


class Shards:
    """Shards in memory: those used last, and the ones that a thread reads ahead."""

    def __init__(self, paths: list[Path], *, sizes: Sequence[int], capacity: int) -> None:
        self._paths, self._sizes, self._capacity = paths, sizes, capacity
        self._read: OrderedDict[int, Future[Arrays]] = OrderedDict()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="shards")

    def want(self, shard: int) -> Future[Arrays]:
        """Begin to read a shard that is not there."""
        if shard not in self._read:
            self._read[shard] = self._pool.submit(self._load, shard)
        self._read.move_to_end(shard)
        while len(self._read) > self._capacity:
            self._read.popitem(last=False)
        return self._read[shard]

    def _load(self, shard: int) -> Arrays:
        path, said = self._paths[shard], self._sizes[shard]
        arrays = read_shard(path)
        if (found := len(arrays["input_ids"])) != said:
            raise DatasetError(
                f"{path.name} holds {found} sequences and the dataset's manifest says {said}; "
                "correct the manifest, or submit prepare again"
            )
        return arrays

    def get(self, shard: int) -> Arrays:
        """A shard's arrays; waits until they are read."""
        return self.want(shard).result()


def shard_batches(
    paths: list[Path], order: ShardOrder, *, positions_of_a_step: int
) -> Callable[[range], Batch]:
    """A pure function of the positions; ``positions_of_a_step`` is what one rank computes."""
    # This step's shards, and the next one's, which are read while this one is computed.
    capacity = 2 * order.shards_at_once(positions_of_a_step)
    shards = Shards(paths, sizes=order.sizes, capacity=capacity)

    def batch(positions: range) -> Batch:
        found, rows = order.find(np.array(positions))
        arrays = [shards.get(shard) for shard in found.tolist()]
        following, _ = order.find(np.array(positions) + order.global_batch)
        for shard in dict.fromkeys(following.tolist()):
            shards.want(shard)
        return to_batch(
            {
                key: np.stack([one[key][row] for one, row in zip(arrays, rows, strict=True)])
                for key in arrays[0]
            }
        )

    return batch


def to_batch(arrays: Arrays) -> Batch:
    """Rows of a shard as the model takes them."""
    positions = arrays["masked_lm_positions"].astype(np.int64)
    # Position 0 is [CLS], which is never predicted: there it means that there is none.
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
    """Sequences without a dataset, for graphs that are compiled."""

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
