"""A rank's shards of the optimizer state under NxD: fp32 master weights and their moments.

Tensor parallelism splits a weight, and ZeRO-1 splits this rank's part again by rows, padded to a
multiple of the number of data-parallel ranks (torch_xla 2.9,
distributed/zero_redundancy_optimizer.py). Each shard is still a rectangle of the whole weight, so
all backends write the same checkpoints. NxD's own checkpoints are tied to the topology that wrote
them, have no checksums, and are loaded by one rank after another (ADR 7).
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
    """A rectangle of a tensor on the host, saved or loaded by one rank.

    It shares the memory of ``part``, which may be empty and starts at ``offsets`` in a tensor of
    size ``whole``. A rectangle held by several ranks is saved once. torch's planner requires the
    three dunder methods of custom tensor classes (torch/distributed/_checkpointable.py, 2.9 to
    2.13). DTensor has them too, but needs a device mesh with its process groups.
    """

    part: torch.Tensor
    offsets: torch.Size
    whole: torch.Size

    @staticmethod
    def of(part: torch.Tensor, *, offsets: Sequence[int], whole: Sequence[int]) -> Chunk:
        """Create a chunk of ``part``."""
        assert part.dim() == len(offsets) == len(whole), (part.size(), offsets, whole)
        chunk = part.as_subclass(Chunk)
        chunk.part = part
        chunk.offsets, chunk.whole = torch.Size(offsets), torch.Size(whole)
        return chunk

    def size(self, dim: int | None = None) -> Any:
        """Return the size of the whole tensor, which the planner compares with the saved one."""
        return self.whole if dim is None else self.whole[dim]

    def __create_write_items__(self, fqn: str, object: object) -> list[WriteItem]:
        """List the items to save for the tensor ``fqn``."""
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
        """List the part's location, or nothing if the part is empty."""
        if not self.part.numel():
            return []
        return [ChunkStorageMetadata(offsets=self.offsets, sizes=self.part.size())]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        """Return the part itself, for reading or writing."""
        assert index.offset == self.offsets, (index, self.offsets)
        return self.part


@dataclass(frozen=True, slots=True)
class _Shard:
    """This rank's rows of one parameter, which may fuse parts of several weights."""

    pieces: tuple[WeightPart, ...]
    """In order, from the top row down."""
    master: torch.Tensor
    """``[rows, ...]``, padding included."""
    first_row: int
    """Offset in this rank's tensor-parallel part."""

    def chunks(self, padded: torch.Tensor) -> Iterator[tuple[str, Chunk]]:
        """Split ``padded``, a host tensor shaped like ``master``, into chunks of the weights.

        Yields every weight's name; the chunk is empty if only other ranks have rows of it.
        """
        top = -self.first_row
        for piece in self.pieces:
            begin, end = (max(0, min(row, padded.size(0))) for row in (top, top + piece.size[0]))
            offsets = list(piece.offsets)
            offsets[0] += begin - top if begin < end else 0
            yield piece.name, Chunk.of(padded[begin:end], offsets=offsets, whole=piece.whole)
            top += piece.size[0]


class Shards:
    """A rank's shards, saved and restored by weight name."""

    def __init__(self, zero1: Any, pieces: Mapping[torch.Tensor, tuple[WeightPart, ...]]) -> None:
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
        """Create the fp32 gradients that the backward pass accumulates into.

        Otherwise torch_xla would create them in the first micro-batch, which needs another graph.
        """
        for weight, master in self._pairs():
            gradient = torch.zeros(weight.size(), dtype=torch.float32, device=weight.device)
            weight.main_grad = master.main_grad = gradient  # type: ignore[attr-defined]

    def publish(self) -> None:
        """Gather the master weights of all data-parallel ranks into the model's weights."""
        self._zero1.allgather_weights_and_update_full_parameter()

    def copy(self) -> dict[str, Any]:
        """Copy the state to the host for a checkpoint."""
        return self._state(lambda tensor: tensor.detach().to("cpu", copy=True))

    def empty(self) -> dict[str, Any]:
        """Allocate a state to fill and pass to ``restore``."""
        return self._state(lambda tensor: torch.empty(tensor.size()))

    def _state(self, convert: Any) -> dict[str, Any]:
        states = self._optimizer.state
        return {
            "model": {
                name: chunk
                for shard in self._shards
                for name, chunk in shard.chunks(convert(shard.master))
            },
            "optimizer": {
                moment: {
                    name: chunk
                    for shard in self._shards
                    for name, chunk in shard.chunks(convert(states[shard.master][moment]))
                }
                for moment in MOMENTS
            },
        }

    @torch.no_grad()
    def restore(self, state: Mapping[str, Any], *, step: int) -> None:
        """Restore a filled state from ``empty``, saved after ``step`` optimizer steps."""
        for shard in self._shards:
            _fill(shard, shard.master, state["model"])
            for moment in MOMENTS:
                tensor = self._optimizer.state[shard.master][moment]
                _fill(shard, tensor, state["optimizer"][moment])
        self._optimizer.updates = step


def _fill(shard: _Shard, tensor: torch.Tensor, chunks: Mapping[str, Chunk]) -> None:
    """Fill a tensor without slicing on the device, which would add a graph."""
    padded = torch.zeros(tensor.size())
    for name, place in shard.chunks(padded):
        place.part.copy_(chunks[name].part)
    tensor.copy_(padded)
