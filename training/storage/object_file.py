"""Read a stored object as a seekable file, fetching blocks on demand."""

from __future__ import annotations

import io
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

_BLOCK_BYTES = 8 * 1024 * 1024


class Ranges(Protocol):
    """A source of byte ranges: ``Objects``, or a file on the web."""

    @property
    def uri(self) -> str:
        """Address for messages."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Fetch at most ``length`` bytes from ``start``."""


class ObjectFile(io.RawIOBase):
    """A read-only file that prefetches the next block while this one is read."""

    def __init__(self, objects: Ranges, key: str, size: int) -> None:
        self._objects, self._key, self._size = objects, key, size
        self._position = 0
        self._block = b""
        self._block_start = 0
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._ahead: tuple[int, Future[bytes]] | None = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Seek without fetching anything until the next read."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: object) -> int:
        """Fill ``buffer`` from the current or the next block."""
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        if self._position >= self._size or not len(view):
            return 0
        offset = self._position - self._block_start
        if not 0 <= offset < len(self._block):
            self._block = self._fetch(self._position)
            self._block_start, offset = self._position, 0
        data = self._block[offset : offset + len(view)]
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        """Abandon the block being fetched."""
        if not self.closed:
            self._pool.shutdown(wait=False, cancel_futures=True)
        super().close()

    def _fetch(self, start: int) -> bytes:
        if self._ahead is not None and self._ahead[0] == start:
            block = self._ahead[1].result()
        else:
            block = self._objects.get_range(self._key, start, _BLOCK_BYTES)
        if not block:
            raise EOFError(
                f"{self._objects.uri}/{self._key} ends at byte {start}, not {self._size}: "
                "it was changed while being read"
            )
        following = start + len(block)
        self._ahead = None
        if following < self._size:
            future = self._pool.submit(self._objects.get_range, self._key, following, _BLOCK_BYTES)
            self._ahead = (following, future)
        return block


def open_object(objects: Ranges, key: str, size: int) -> io.BufferedReader:
    """Open an object as a buffered, seekable file."""
    return io.BufferedReader(ObjectFile(objects, key, size), buffer_size=1024 * 1024)
