"""A rank's part of the optimizer under NxD: fp32 master weights and their moments.

Tensor parallelism divides a weight, and ZeRO-1 this rank's part of it once more, by rows, padded
to a multiple of the data-parallel ranks (torch_xla 2.9, distributed/zero_redundancy_optimizer.py).
Each shard is a rectangle of the whole weight all the same, so checkpoints are those of every other
back-end. NxD's own are not: they are bound to the arrangement of ranks that wrote them, they have
no checksums, and they are loaded in turns that wait for each other (ADR 7).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from training.backends.base import WeightPart
from training.backends.optimizers import MOMENTS, TracedAdamW


class Chunk(torch.Tensor):
    """A rectangle of a tensor, on the host: what one rank saves of it, or wants to be filled.

    It shares the memory of ``part``, which may be empty and begins at ``offsets`` in a tensor of
    size ``whole``. Ranks that hold the same rectangle save it once. torch's planner asks tensors
    of other classes for the three methods below (torch/distributed/_checkpointable.py, 2.9 to
    2.13). DTensor has them too, but needs a device mesh with its process groups.
    """

    part: torch.Tensor
    offsets: torch.Size
    whole: torch.Size

    @staticmethod
    def of(part: torch.Tensor, *, offsets: Sequence[int], whole: Sequence[int]) -> Chunk:
        """Make one of ``part``."""
        assert part.dim() == len(offsets) == len(whole), (part.size(), offsets, whole)
        chunk = part.as_subclass(Chunk)
        chunk.part = part
        chunk.offsets, chunk.whole = torch.Size(offsets), torch.Size(whole)
        return chunk

    def size(self, dim: int | None = None) -> Any:
        """Size of the whole tensor: the planner compares it with what was saved."""
        return self.whole if dim is None else self.whole[dim]

    def __create_write_items__(self, fqn: str, object: object) -> list[WriteItem]:
        """The items to save of the tensor ``fqn``."""
        return [
            WriteItem(
                index=MetadataIndex(fqn, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=chunk,
                    properties=TensorProperties.create_from_tensor(self.part),
                    size=self.whole,
                ),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        """The place of the part; none where it is empty."""
        if not self.part.numel():
            return []
        return [ChunkStorageMetadata(offsets=self.offsets, sizes=self.part.size())]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        """The part itself, to read from or to write to."""
        assert index.offset == self.offsets, (index, self.offsets)
        return self.part


@dataclass(frozen=True, slots=True)
class _Shard:
    """This rank's rows of one weight."""

    piece: WeightPart
    master: torch.Tensor
    """``[rows, ...]`` with the rows of padding."""
    first_row: int
    """Its place in the part that tensor parallelism leaves."""

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

    def __init__(self, zero1: Any, pieces: Mapping[torch.Tensor, WeightPart]) -> None:
        self._zero1 = zero1
        self._optimizer: TracedAdamW = zero1.base_optimizer
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
        """A state with memory to be filled; give it to ``restore``."""
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
