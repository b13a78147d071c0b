"""torch.distributed.checkpoint on ``Objects``, with a checksum for every chunk.

Files, names and metadata match torch's own ``FileSystemWriter``: a folder copied to disk can be
read by ``torch.distributed.checkpoint.FileSystemReader`` and torch's conversion tools.
"""

from __future__ import annotations

import io
import os
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from torch.distributed.checkpoint.filesystem import (
    FileSystemBase,
    FileSystemReader,
    FileSystemWriter,
)
from torch.distributed.checkpoint.metadata import (
    Metadata,
    StorageMeta,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.checkpoint.storage import WriteResult

from training.checkpoint.marker import CHUNK_BYTES, CheckpointDamaged, MarkedFile
from training.storage import ObjectMissing, Objects

METADATA = ".metadata"
"""The file that maps tensors to files."""
_CACHED_CHUNKS = 4
"""Cached chunks of the file being read: 32 MiB per rank, 1 GiB on a node with 32 ranks."""

Path = str | os.PathLike[str]


class SummingStream(io.RawIOBase):
    """A stream that forwards bytes to ``target`` and computes their checksums."""

    def __init__(self, target: io.IOBase, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        super().__init__()
        self._target: Any = target
        self._chunk_bytes = chunk_bytes
        self.failure: Exception | None = None
        """The error of a failed write."""
        self._finished: list[int] = []
        self._crc32 = 0
        self._size = 0

    def writable(self) -> bool:
        """Return True: the stream is always writable."""
        return True

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._size

    def write(self, data: Any) -> int:
        """Write all of ``data``."""
        view = memoryview(data).cast("B")
        at = 0
        try:
            while at < len(view):
                # A raw target may write less than requested.
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

    def sum(self) -> MarkedFile:
        """Return the checksums of everything written so far."""
        last = [self._crc32] if self._size % self._chunk_bytes else []
        return MarkedFile(
            bytes=self._size,
            chunk_bytes=self._chunk_bytes,
            crc32=(*self._finished, *last),
        )


def checksums(data: bytes) -> MarkedFile:
    """Compute the checksums of a small file."""
    stream = SummingStream(io.BytesIO())
    stream.write(data)
    return stream.sum()


class VerifiedStream(io.RawIOBase):
    """A stream that reads an object in whole chunks, and rejects any with a wrong checksum."""

    def __init__(
        self,
        objects: Objects,
        key: str,
        known: MarkedFile,
        *,
        on_bytes: Callable[[int], None] = lambda count: None,
    ) -> None:
        super().__init__()
        self._objects, self._key, self._known, self._on_bytes = objects, key, known, on_bytes
        self._chunks: OrderedDict[int, bytes] = OrderedDict()
        self._at = 0

    def readable(self) -> bool:
        """Return True: the stream is always readable."""
        return True

    def seekable(self) -> bool:
        """Return True: any position can be read."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Seek to ``offset`` bytes from the start, the current position or the end."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._known.bytes}
        self._at = max(0, origin[whence] + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer``, up to the end of the file; raise ``CheckpointDamaged`` if corrupt."""
        view = memoryview(buffer).cast("B")
        filled = 0
        end = min(len(view), self._known.bytes - self._at)
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
        length = min(self._known.chunk_bytes, self._known.bytes - start)
        try:
            chunk = self._objects.get_range(self._key, start, length)
        except ObjectMissing:
            raise CheckpointDamaged(f"{self._key} is missing") from None
        if len(chunk) != length:
            raise CheckpointDamaged(
                f"{self._key} ends after {start + len(chunk)} of {self._known.bytes} bytes"
            )
        if self._known.crc32 and zlib.crc32(chunk) != self._known.crc32[index]:
            raise CheckpointDamaged(
                f"{self._key} has changed since it was written, between bytes {start} and "
                f"{start + length}: the checksum differs"
            )
        self._on_bytes(length)
        self._chunks[index] = chunk
        if len(self._chunks) > _CACHED_CHUNKS:
            self._chunks.popitem(last=False)
        return chunk


class _Folder(FileSystemBase):
    """One checkpoint's files, for torch's writer and reader.

    Subclassing is how fsspec and s3torchconnector attach their storage; the class has the same
    methods in torch 2.9 and 2.13 (torch/distributed/checkpoint/filesystem.py).
    """

    def __init__(
        self,
        objects: Objects,
        known: Mapping[str, MarkedFile] | None,
        on_bytes: Callable[[int], None],
        replaced: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._objects, self._known, self._on_bytes = objects, known, on_bytes
        self._replaced = replaced
        self.sums: dict[str, MarkedFile] = {}
        """Checksums of the files written."""

    @contextmanager
    def create_stream(self, path: Path, mode: str) -> Iterator[Any]:
        """Open a new file to write, or a known one to read."""
        name = str(path)
        if mode == "wb":
            # Any other version belongs to a job that has since taken over.
            etag = self._replaced.get(name)
            with self._objects.create(name, if_absent=etag is None, if_match=etag) as target:
                stream = SummingStream(target)
                try:
                    yield stream
                except Exception:
                    # torch.save reports a failed write as an unexpected position in its archive.
                    if stream.failure is not None:
                        raise stream.failure from None
                    raise
            self.sums[name] = stream.sum()
            return
        assert mode == "rb" and self._known is not None, mode
        if name not in self._known:
            raise CheckpointDamaged(f"{name} is not listed in the marker")
        yield VerifiedStream(self._objects, name, self._known[name], on_bytes=self._on_bytes)

    def concat_path(self, path: Path, suffix: str) -> str:
        """Return the name of a file, never a temporary one: objects appear atomically."""
        return suffix.removesuffix(".tmp")

    def rename(self, path: Path, new_path: Path) -> None:
        """Do nothing: see ``concat_path``."""
        assert path == new_path, (path, new_path)

    def init_path(self, path: Path) -> str:
        """Return the folder itself."""
        return str(path)

    def mkdir(self, path: Path) -> None:
        """Do nothing: a folder exists once it has a file."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Path) -> bool:
        """Return False: checkpoints are passed explicitly, never found by name."""
        return False

    def exists(self, path: Path) -> bool:
        """Return False: files of an earlier save are always replaced."""
        return False

    def rm_file(self, path: Path) -> None:
        """Never called, since ``exists`` returns False."""
        self._objects.delete([str(path)])


class Writer(FileSystemWriter):
    """Writes this rank's file and, on the coordinator, ``.metadata``.

    Its files must be absent or have the ETags in ``replaced``.
    """

    def __init__(self, objects: Objects, replaced: Mapping[str, str]) -> None:
        # An upload is durable when it completes and has no file descriptor to sync.
        super().__init__(objects.uri, sync_files=False)
        self._folder = _Folder(objects, None, lambda count: None, replaced)
        self.fs: Any = self._folder
        self.named: set[str] = set()
        """All files reported to the coordinator, once every rank has written."""

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write ``.metadata``, which maps tensors to files."""
        # Any other entry would be a pickle, which ``read_metadata`` refuses.
        entries = metadata.state_dict_metadata.items()
        others = [name for name, entry in entries if not isinstance(entry, TensorStorageMetadata)]
        assert not others, f"checkpoints hold tensors only, not {others}"
        super().finish(metadata, results)
        # Not from ``metadata``: torch 2.9 adds locations only to the copy that it writes.
        written = (result for of_a_rank in results for result in of_a_rank)
        self.named = {METADATA, *(result.storage_data.relative_path for result in written)}

    @property
    def sums(self) -> dict[str, MarkedFile]:
        """Checksums of the files this rank has written."""
        return self._folder.sums


class Reader(FileSystemReader):
    """Reads the data this rank needs, in file order, and verifies every byte."""

    def __init__(
        self,
        objects: Objects,
        known: Mapping[str, MarkedFile],
        on_bytes: Callable[[int], None] = lambda count: None,
    ) -> None:
        super().__init__(objects.uri)
        self._metadata: Metadata | None = None
        self._folder = _Folder(objects, known, on_bytes)
        self.fs: Any = self._folder

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the metadata set by ``use_metadata``.

        The method that this one overrides would unpickle the file (``FileSystemReader`` in
        torch/distributed/checkpoint/filesystem.py).
        """
        assert self._metadata is not None
        return replace(self._metadata, storage_meta=StorageMeta(load_id=self.load_id))

    def fetch(self, name: str) -> bytes:
        """Read an entire file; raise ``CheckpointDamaged`` if it was altered."""
        with self._folder.create_stream(name, "rb") as stream:
            data: bytes = stream.read()
        return data

    def use_metadata(self, metadata: Metadata) -> None:
        """Set the parsed content of the metadata file.

        One rank fetches and parses it for all: 17 MB for Llama-2-7B on 128 ranks.

        The file is read before loading. If reading it failed during loading, torch would look for
        per-rank metadata and report only that it is missing (state_dict_loader.py, ``local_step``).
        """
        self._metadata = metadata

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Sort reads by position, so that each chunk is fetched once."""

        def place(item: Any) -> tuple[str, int]:
            stored = self.storage_data[item.storage_index]
            return stored.relative_path, stored.offset

        return replace(plan, items=sorted(plan.items, key=place))
