"""Parts of tensors that lie on several ranks, as torch.distributed.checkpoint takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType


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
        """Of the whole tensor: the planner compares it with what was saved."""
        return self.whole if dim is None else self.whole[dim]

    def __create_write_items__(self, fqn: str, object: object) -> list[WriteItem]:
        """What there is to save of the tensor ``fqn``."""
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
        """Where the part lies; nothing where it is empty."""
        if not self.part.numel():
            return []
        return [ChunkStorageMetadata(offsets=self.offsets, sizes=self.part.size())]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        """The part itself, to read from or to write to."""
        assert index.offset == self.offsets, (index, self.offsets)
        return self.part
