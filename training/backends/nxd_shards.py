"""What one rank holds of the optimizer under NxD: fp32 master weights and their moments.

Tensor parallelism divides a weight, and ZeRO-1 this rank's part of it once more, by rows, padded
to a multiple of the data-parallel ranks (torch_xla 2.9, distributed/zero_redundancy_optimizer.py).
Each shard is a rectangle of the whole weight all the same, so checkpoints are those of every other
back-end. NxD's own are not: they are bound to the arrangement of ranks that wrote them, they have
no checksums, and they are loaded in turns that wait for each other (ADR 7).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from training.backends.optimizer import MOMENTS
from training.backends.traced import AdamW
from training.checkpoint.chunks import Chunk
from training.models.llama.nxd_model import Piece


@dataclass(frozen=True, slots=True)
class _Shard:
    """Of one weight."""

    piece: Piece
    master: torch.Tensor
    """``[rows, ...]`` with the rows of padding."""
    first_row: int
    """Of this rank, in the part that tensor parallelism leaves."""

    @property
    def rows(self) -> int:
        """Without padding; 0 where others have them all."""
        return max(0, min(self.master.size(0), self.piece.size[0] - self.first_row))

    def chunk(self, padded: torch.Tensor) -> Chunk:
        """The rows of ``padded``, which is like ``master`` and on the host, in the whole weight."""
        offsets = list(self.piece.offsets)
        offsets[0] += self.first_row
        return Chunk.of(padded[: self.rows], offsets=offsets, whole=self.piece.whole)


class Shards:
    """A rank's shards, by the names of the weights, as they are saved and restored."""

    def __init__(self, zero1: Any, pieces: Mapping[torch.Tensor, Piece]) -> None:
        self._zero1 = zero1
        self._optimizer: AdamW = zero1.base_optimizer
        self._shards = [
            _Shard(pieces[weight], master, zero1.local_rank * master.size(0))
            for weight, master in self._pairs()
        ]

    def _pairs(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for weights, masters in zip(
            self._zero1.param_groups, self._optimizer.param_groups, strict=True
        ):
            yield from zip(weights["params"], masters["params"], strict=True)

    def make_gradients(self) -> None:
        """Make the fp32 gradients that the backward pass adds to.

        torch_xla would make them in the first micro-batch, which would be a graph of its own.
        """
        for weight, master in self._pairs():
            gradient = torch.zeros(weight.size(), dtype=torch.float32, device=weight.device)
            weight.main_grad = master.main_grad = gradient  # type: ignore[attr-defined]

    def publish(self) -> None:
        """Gather the master weights of all data-parallel ranks into the weights computed with."""
        self._zero1.allgather_weights_and_update_full_parameter()

    def copy(self) -> dict[str, Any]:
        """A copy on the host, as a checkpoint's state."""
        return self._state(lambda tensor: tensor.detach().cpu())

    def empty(self) -> dict[str, Any]:
        """The same with memory to be filled; give it to ``restore``."""
        return self._state(lambda tensor: torch.empty(tensor.size()))

    def _state(self, convert: Any) -> dict[str, Any]:
        states = self._optimizer.state
        return {
            "model": {
                shard.piece.name: shard.chunk(convert(shard.master)) for shard in self._shards
            },
            "optimizer": {
                moment: {
                    shard.piece.name: shard.chunk(convert(states[shard.master][moment]))
                    for shard in self._shards
                }
                for moment in MOMENTS
            },
        }

    @torch.no_grad()
    def restore(self, state: Mapping[str, Any], *, step: int) -> None:
        """Take over what ``empty`` has been filled with: the state after ``step`` updates."""
        for shard in self._shards:
            _fill(shard.master, state["model"][shard.piece.name])
            for moment in MOMENTS:
                kept = self._optimizer.state[shard.master][moment]
                _fill(kept, state["optimizer"][moment][shard.piece.name])
        self._optimizer.updates = step


def _fill(tensor: torch.Tensor, chunk: Chunk) -> None:
    """A copy alone: to take a part of a tensor on the device would be a graph."""
    padded = torch.zeros(tensor.size())
    padded[: chunk.part.size(0)] = chunk.part
    tensor.copy_(padded)
