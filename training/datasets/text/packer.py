"""Writes one part of a token stream as shards, each into storage as soon as it is full."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from training.datasets.manifest import Shard
from training.storage import Objects


class ShardWriter:
    """Cuts the ids of a part every ``shard_tokens`` ids; drops none."""

    def __init__(
        self,
        objects: Objects,
        scratch: Path,
        *,
        name: str,
        shard_tokens: int,
        on_upload: Callable[[int], None],
    ) -> None:
        """``name`` is what the names of the shards begin with."""
        self._objects, self._name, self._shard_tokens = objects, name, shard_tokens
        self._path = scratch / f"{name}.bin"
        self._file = self._path.open("wb")
        self._on_upload = on_upload
        self._digest = hashlib.sha256()
        self._tokens = self._bytes = 0
        self.shards: list[Shard] = []

    def add(self, ids: NDArray[Any]) -> None:
        """Append ids, which are in the type of the shards already."""
        while len(ids):
            piece = ids[: self._shard_tokens - self._tokens]
            data = piece.tobytes()
            self._file.write(data)
            self._digest.update(data)
            self._tokens += len(piece)
            self._bytes += len(data)
            ids = ids[len(piece) :]
            if self._tokens == self._shard_tokens:
                self._finish_shard()

    def close(self) -> tuple[Shard, ...]:
        """Put the rest into storage; returns all shards of the part."""
        if self._tokens:
            self._finish_shard()
        self.abandon()
        return tuple(self.shards)

    def abandon(self) -> None:
        """Remove the local file."""
        self._file.close()
        self._path.unlink(missing_ok=True)

    def _finish_shard(self) -> None:
        self._file.close()
        shard = Shard(
            name=f"{self._name}-{len(self.shards):03d}.bin",
            tokens=self._tokens,
            bytes=self._bytes,
            sha256=self._digest.hexdigest(),
        )
        self._objects.put_file(shard.name, self._path, on_bytes=self._on_upload)
        self.shards.append(shard)
        self._file = self._path.open("wb")
        self._digest = hashlib.sha256()
        self._tokens = self._bytes = 0
