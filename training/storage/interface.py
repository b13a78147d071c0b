"""The interface of storage, and its errors."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Protocol

OnBytes = Callable[[int], None]
"""Called with the bytes moved since the last call; negative when a part is restarted."""


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
    """Somebody else has written the object meanwhile."""


class StorageRefused(StorageError, ValueError):
    """Storage refused, and would again: no permission, no such bucket."""


class StorageUnavailable(StorageError, ConnectionError):
    """Storage kept failing until retries ended; a later attempt may succeed."""


class Objects(Protocol):
    """Objects below one root; keys are relative to it and separated by ``/``.

    Every method raises ``StorageRefused`` or ``StorageUnavailable`` if storage fails and
    ``OSError`` if the local disk does. All may be called from several threads.
    """

    @property
    def uri(self) -> str:
        """The root, for messages: ``s3://bucket/prefix`` or a path."""

    def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        """Write a small object atomically; returns its etag.

        ``if_absent`` demands that there is none, ``if_match`` that the present one has that etag;
        otherwise raises ``PreconditionFailed``.
        """

    def get(self, key: str) -> bytes:
        """Read a whole object; ``ObjectMissing`` if there is none."""

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        """Read a whole object and its etag; ``ObjectMissing`` if there is none."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read ``length`` bytes from ``start``, fewer at the object's end; ``ObjectMissing``."""

    def put_file(self, key: str, path: Path, *, on_bytes: OnBytes | None = None) -> None:
        """Upload a file of any size; readers see all of it or nothing."""

    def create(
        self, key: str, *, size: int = 0, if_absent: bool = False, if_match: str | None = None
    ) -> AbstractContextManager[io.IOBase]:
        """Open a stream for a new object, invisible until the block ends.

        The conditions are those of ``put``, judged when the block ends.

        Beyond 150 GB, S3 needs larger parts, so ``size`` tells about how many bytes will come.

        An exception in the block leaves nothing behind. Parts go to S3 as they are written, so
        the object is never whole on disk or in memory: at most five parts are, of 16 MiB each if
        it has less than 150 GB.
        """

    def get_file(self, key: str, file: BinaryIO, *, on_bytes: OnBytes | None = None) -> None:
        """Download to a new, empty file; ``ObjectMissing``.

        ``SafeFolder.create`` opens one that appears only when complete.
        """

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List every object whose key begins with ``prefix``, in key order."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, ignoring missing ones."""

    def at(self, prefix: str) -> Objects:
        """Return the same storage with its root at ``prefix``."""


def join(prefix: str, key: str) -> str:
    """Join ``prefix`` and ``key``, either of which may be empty."""
    return "/".join(part for part in (prefix.strip("/"), key) if part)
