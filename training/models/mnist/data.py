"""Batches of handwritten digits, for training and the final test."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from training.datasets.prepared.images import Pixels
from training.datasets.samples.order import sequence_indices


@dataclass(frozen=True, slots=True, kw_only=True)
class Digits:
    """Images ``[n, 784]`` with their labels ``[n]``."""

    images: Pixels
    labels: Pixels

    def batch(self, indices: Any) -> dict[str, torch.Tensor]:
        """Return a batch, with pixels scaled to 0-1."""
        return {
            "images": torch.from_numpy(self.images[indices].astype(np.float32) / 255),
            "labels": torch.from_numpy(self.labels[indices].astype(np.int64)),
        }


def training_batches(digits: Digits, *, seed: int) -> Callable[[range], dict[str, torch.Tensor]]:
    """Return a pure function from positions in the data order to a micro-batch."""

    def batch(positions: range) -> dict[str, torch.Tensor]:
        return digits.batch(
            sequence_indices(
                seed=seed, positions=np.array(positions), num_sequences=len(digits.images)
            )
        )

    return batch


def evaluation_batches(
    digits: Digits, *, rank: int, num_ranks: int, size: int
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield a rank's share of the test set in batches of equal size.

    The graph is therefore compiled only once. ``mask`` is 1 for an image, and 0 for padding in the
    last batches.
    """
    total = len(digits.images)
    mine = np.arange(rank, total, num_ranks)
    for number in range(math.ceil(total / (num_ranks * size))):
        chosen = mine[number * size : (number + 1) * size]
        indices = np.zeros(size, np.int64)
        indices[: len(chosen)] = chosen
        mask = torch.zeros(size)
        mask[: len(chosen)] = 1
        yield {**digits.batch(indices), "mask": mask}
