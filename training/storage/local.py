"""Objects as files below a local folder, on a laptop's disk or FSx for Lustre."""

from __future__ import annotations

import fcntl
import io
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from training.storage.interface import (
    ObjectInfo,
    ObjectMissing,
    Objects,
    OnBytes,
    PreconditionFailed,
    StorageRefused,
    StorageUnavailable,
)
from trainium_catalogue.safe_folder import PART_PREFIX, UnsafeName, path_parts

_COPY_BYTES = 8 * 1024 * 1024
_LOCK_S = 30.0
"""Timeout for a lock that is normally held for microseconds."""


class LocalObjects:
    """Files below ``root``, which is created on the first write."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def uri(self) -> str:
        """Path of the folder, for messages."""
        return str(self._root)

    def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        path = self._path(key)
        with self._new_file(path) as part:
            part.write_bytes(data)
            _sync(part)
            etag = _replace(part, path, if_absent=if_absent, if_match=if_match)
        return etag

    def get(self, key: str) -> bytes:
        return self.get_with_etag(key)[0]

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        with self._convert_missing(key), self._path(key).open("rb") as file:
            return file.read(), _etag(os.fstat(file.fileno()))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._convert_missing(key), self._path(key).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def put_file(self, key: str, path: Path, *, on_bytes: OnBytes | None = None) -> None:
        """Copy a file into storage atomically."""
        with self.create(key) as copy, path.open("rb") as source:
            _copy(source, copy, on_bytes)

    @contextmanager
    def create(
        self, key: str, *, size: int = 0, if_absent: bool = False, if_match: str | None = None
    ) -> Iterator[io.IOBase]:
        """Open a stream for a new object, invisible until the block ends."""
        target = self._path(key)
        with self._new_file(target) as part:
            with part.open("wb") as file:
                yield file
            _sync(part)
            _replace(part, target, if_absent=if_absent, if_match=if_match)

    def get_file(self, key: str, file: BinaryIO, *, on_bytes: OnBytes | None = None) -> None:
        """Copy an object to a new, empty file; raise ``ObjectMissing`` if there is none."""
        with self._convert_missing(key), self._path(key).open("rb") as source:
            _copy(source, file, on_bytes)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        # Walk only the folder that can contain matching keys.
        start = self._path(prefix.rpartition("/")[0])
        found = []
        for folder, _, names in os.walk(start):
            for name in names:
                path = Path(folder) / name
                key = path.relative_to(self._root).as_posix()
                if name.startswith(PART_PREFIX) or not key.startswith(prefix):
                    continue
                try:
                    status = path.stat()
                except FileNotFoundError:
                    continue  # it has been deleted
                found.append(
                    ObjectInfo(
                        key=key,
                        size=status.st_size,
                        etag=_etag(status),
                        modified=datetime.fromtimestamp(status.st_mtime, UTC),
                    )
                )
        yield from sorted(found, key=lambda info: info.key)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete files, ignoring missing ones, and folders that become empty."""
        for key in keys:
            path = self._path(key)
            path.unlink(missing_ok=True)
            for folder in path.parents:
                if folder == self._root or not _remove_empty(folder):
                    break

    def at(self, prefix: str) -> Objects:
        return LocalObjects(self._path(prefix.strip("/")))

    def _path(self, key: str) -> Path:
        # Follow links, since the user may keep a corpus on a different disk.
        try:
            return self._root.joinpath(*path_parts(key)) if key else self._root
        except UnsafeName as error:
            raise StorageRefused(f"no object in {self._root} can have this key: {error}") from None

    @contextmanager
    def _convert_missing(self, key: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise ObjectMissing(f"there is no {self._path(key)}") from None

    @contextmanager
    def _new_file(self, target: Path) -> Iterator[Path]:
        """Create a temporary file next to ``target``; remove it unless the caller renames it."""
        while True:
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                handle, name = tempfile.mkstemp(prefix=PART_PREFIX, dir=target.parent)
                break
            except FileNotFoundError:
                continue  # a different process has just deleted the empty folder
        os.close(handle)
        part = Path(name)
        part.chmod(0o644)
        try:
            yield part
        finally:
            part.unlink(missing_ok=True)


def _etag(status: os.stat_result) -> str:
    # Every write creates a new file, so inode and time differ even if sizes are equal.
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"


def _replace(part: Path, target: Path, *, if_absent: bool, if_match: str | None) -> str:
    """Move a new file into place if the conditions hold; return its ETag."""
    with _lock_folder(target.parent):
        current = _etag(target.stat()) if target.exists() else None
        if if_absent and current is not None:
            raise PreconditionFailed(f"{target} already exists")
        if if_match is not None and current != if_match:
            raise PreconditionFailed(f"{target} was changed by another writer")
        etag = _etag(part.stat())
        part.replace(target)
    return etag


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Hold an advisory lock (flock(2)) to compare and write atomically."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        deadline = time.monotonic() + _LOCK_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StorageUnavailable(
                        f"{folder} has been locked for {_LOCK_S:g} s by a frozen process; "
                        "kill it (lslocks shows its PID)"
                    ) from None
            time.sleep(0.01)
        yield
    finally:
        os.close(handle)


def _copy(source: BinaryIO, target: Any, on_bytes: OnBytes | None) -> None:
    while block := source.read(_COPY_BYTES):
        target.write(block)
        if on_bytes is not None:
            on_bytes(len(block))


def _sync(path: Path) -> None:
    """Flush to disk before renaming, so that a power loss leaves no partial file."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _remove_empty(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return False
    return True
