"""The storage interface and its errors."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Protocol

OnBytes = Callable[[int], None]
"""Called with the bytes transferred since the last call; negative when a part is restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """An object in a listing."""

    key: str
    size: int
    """Size in bytes."""
    etag: str
    modified: datetime


class StorageError(Exception):
    """An operation on storage failed; the message names the object."""


class ObjectMissing(StorageError, LookupError):
    """There is no object with this key."""


class PreconditionFailed(StorageError):
    """Another writer has changed the object."""


class StorageRefused(StorageError, ValueError):
    """A permanent refusal, such as a missing permission or bucket."""


class StorageUnavailable(StorageError, ConnectionError):
    """Retries were exhausted; a later attempt may succeed."""


class Objects(Protocol):
    """Objects below one root; keys are relative to it and separated by ``/``.

    Every method raises ``StorageRefused`` or ``StorageUnavailable`` if storage fails, and
    ``OSError`` if the local disk fails. All methods are thread-safe.
    """

    @property
    def uri(self) -> str:
        """The root, for messages: ``s3://bucket/prefix`` or a path."""

    def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        """Write a small object atomically; return its ETag.

        Raises ``PreconditionFailed`` if ``if_absent`` is True and the object exists, or if
        ``if_match`` is not its ETag.
        """

    def get(self, key: str) -> bytes:
        """Read a whole object; raise ``ObjectMissing`` if there is none."""

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        """Read a whole object and its ETag; raise ``ObjectMissing`` if there is none."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read ``length`` bytes from ``start``, fewer at the end; raise ``ObjectMissing``."""

    def put_file(self, key: str, path: Path, *, on_bytes: OnBytes | None = None) -> None:
        """Upload a file of any size atomically."""

    def create(
        self, key: str, *, size: int = 0, if_absent: bool = False, if_match: str | None = None
    ) -> AbstractContextManager[io.IOBase]:
        """Open a stream for a new object, invisible until the block ends.

        The conditions are as for ``put``, evaluated when the block ends.

        Beyond 150 GB, S3 needs larger parts, so pass the approximate number of bytes as ``size``
        (0: below 150 GB).

        An exception in the block leaves nothing behind. Parts are uploaded as they are written, so
        at most five are in memory, of 16 MiB each for objects below 150 GB, and none on disk.
        """

    def get_file(self, key: str, file: BinaryIO, *, on_bytes: OnBytes | None = None) -> None:
        """Download to a new, empty file; raise ``ObjectMissing`` if there is no object.

        ``SafeFolder.create`` opens a file that becomes visible only when complete.
        """

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List every object whose key starts with ``prefix``, in key order."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, ignoring missing ones."""

    def at(self, prefix: str) -> Objects:
        """Return the same storage with its root at ``prefix``."""


def join(prefix: str, key: str) -> str:
    """Join ``prefix`` and ``key``, either of which may be empty."""
    return "/".join(part for part in (prefix.strip("/"), key) if part)
