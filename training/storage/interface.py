"""Defines what storage offers, and how it fails."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

OnBytes = Callable[[int], None]
"""Called with the bytes moved since the last call; negative when a part starts again."""


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
    """There is no object under the key."""


class PreconditionFailed(StorageError):
    """Somebody else has written the object meanwhile."""


class StorageRefused(StorageError, ValueError):
    """Storage says no and would say it again: no permission, no such bucket."""


class StorageUnavailable(StorageError, ConnectionError):
    """Storage kept failing until retries ended; a later attempt may succeed."""


class Objects(Protocol):
    """Objects below one root; keys are relative to it and separated by ``/``.

    Every method raises ``StorageRefused`` or ``StorageUnavailable`` where storage fails and
    ``OSError`` where the local disk does. All are safe to call from several threads.
    """

    @property
    def uri(self) -> str:
        """The root, for messages: ``s3://bucket/prefix`` or a path."""

    def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        """Write a small object at once, whole or not at all; returns its etag.

        With ``if_absent`` only if there is none, with ``if_match`` only over the object with that
        etag; ``PreconditionFailed`` otherwise.
        """

    def get(self, key: str) -> bytes:
        """All bytes of an object; ``ObjectMissing`` when there is none."""

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        """All bytes of an object and its etag; ``ObjectMissing`` when there is none."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """``length`` bytes from ``start``, fewer where the object ends; ``ObjectMissing``."""

    def put_file(self, key: str, path: Path, *, on_bytes: OnBytes | None = None) -> None:
        """Upload a file of any size; readers see all of it or nothing."""

    def create(self, key: str) -> AbstractContextManager[io.IOBase]:
        """A stream to write a new object of any size to; nobody sees it before the block ends.

        An exception in the block leaves nothing behind. S3 gets parts while they are written, so
        the object is never whole on the disk or in memory: at most five parts of 16 MiB are.
        """

    def get_file(self, key: str, path: Path, *, on_bytes: OnBytes | None = None) -> None:
        """Download to ``path``, which appears only when complete; ``ObjectMissing``."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List every object whose key begins with ``prefix``, in the order of keys."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; one that is missing is no error."""

    def at(self, prefix: str) -> Objects:
        """The same storage with its root further down."""


def join(prefix: str, key: str) -> str:
    """``key`` below ``prefix``, either of which may be empty."""
    return "/".join(part for part in (prefix.strip("/"), key) if part)
