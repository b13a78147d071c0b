"""Files with a checksum for every chunk: written through one stream, verified through the other."""

from __future__ import annotations

import io
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from training.checkpoint.errors import CheckpointDamaged
from training.storage import ObjectMissing, Objects

CHUNK_BYTES = 8 * 1024 * 1024
"""Smallest part that can be verified by itself, and so the least that is read."""
_CACHED_CHUNKS = 4
"""Of one file that is being read: 32 MiB a rank, 1 GiB on a node of 32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSum:
    """Size of a file and the CRC-32 of each of its chunks; none when it was never computed."""

    num_bytes: int
    chunk_bytes: int = CHUNK_BYTES
    crc32: tuple[int, ...] = ()


class SummingStream(io.RawIOBase):
    """Passes bytes on to ``target`` and sums them up on the way."""

    def __init__(self, target: io.IOBase, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        super().__init__()
        self._target: Any = target
        self._chunk_bytes = chunk_bytes
        self.failure: Exception | None = None
        """Why a write has failed."""
        self._finished: list[int] = []
        self._crc32 = 0
        self._size = 0

    def writable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Bytes written so far."""
        return self._size

    def write(self, data: Any) -> int:
        """Write all of ``data``."""
        view = memoryview(data).cast("B")
        at = 0
        try:
            while at < len(view):
                # A raw target may take less than it is given.
                at += self._target.write(view[at:])
        except Exception as error:
            self.failure = error
            raise
        rest = view
        while len(rest):
            piece = rest[: self._chunk_bytes - self._size % self._chunk_bytes]
            self._crc32 = zlib.crc32(piece, self._crc32)
            self._size += len(piece)
            if self._size % self._chunk_bytes == 0:
                self._finished.append(self._crc32)
                self._crc32 = 0
            rest = rest[len(piece) :]
        return len(view)

    def sum(self) -> FileSum:
        """Of everything written so far."""
        last = [self._crc32] if self._size % self._chunk_bytes else []
        return FileSum(
            num_bytes=self._size,
            chunk_bytes=self._chunk_bytes,
            crc32=(*self._finished, *last),
        )


class VerifiedStream(io.RawIOBase):
    """Reads an object by whole chunks and gives out nothing whose checksum is wrong."""

    def __init__(
        self,
        objects: Objects,
        key: str,
        known: FileSum,
        *,
        on_bytes: Callable[[int], None] = lambda count: None,
    ) -> None:
        super().__init__()
        self._objects, self._key, self._known, self._on_bytes = objects, key, known, on_bytes
        self._chunks: OrderedDict[int, bytes] = OrderedDict()
        self._at = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Where the next byte is read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to ``offset`` bytes from the start, from here, or from the end."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._known.num_bytes}
        self._at = max(0, origin[whence] + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` as far as the file goes; ``CheckpointDamaged`` for a wrong chunk."""
        view = memoryview(buffer).cast("B")
        filled = 0
        end = min(len(view), self._known.num_bytes - self._at)
        while filled < end:
            index, skip = divmod(self._at, self._known.chunk_bytes)
            piece = memoryview(self._chunk(index))[skip : skip + end - filled]
            view[filled : filled + len(piece)] = piece
            filled += len(piece)
            self._at += len(piece)
        return filled

    def _chunk(self, index: int) -> bytes:
        if index in self._chunks:
            self._chunks.move_to_end(index)
            return self._chunks[index]
        start = index * self._known.chunk_bytes
        length = min(self._known.chunk_bytes, self._known.num_bytes - start)
        try:
            chunk = self._objects.get_range(self._key, start, length)
        except ObjectMissing:
            raise CheckpointDamaged(f"{self._key} is missing") from None
        if len(chunk) != length:
            raise CheckpointDamaged(
                f"{self._key} ends after {start + len(chunk)} of {self._known.num_bytes} bytes"
            )
        if self._known.crc32 and zlib.crc32(chunk) != self._known.crc32[index]:
            raise CheckpointDamaged(
                f"{self._key} has other bytes than were written between {start} and "
                f"{start + length}: the checksum differs"
            )
        self._on_bytes(length)
        self._chunks[index] = chunk
        if len(self._chunks) > _CACHED_CHUNKS:
            self._chunks.popitem(last=False)
        return chunk
