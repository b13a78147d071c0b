"""Shared parts of the readers: contents, names, and a bucket with arbitrary keys."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from jobs.bucket.objects import Bucket, ListedObject
from tests.untrusted import mutations
from training.storage import ObjectInfo
from trainium_catalogue.typed_json import read_object

CONTENT = b"theirs"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@dataclass(frozen=True)
class Case:
    """One reader and the exceptions it may raise."""

    run: Callable[[Path, random.Random], object]
    refusals: tuple[type[BaseException], ...]


def quiet(text: str) -> None:
    """Receives what is reported."""


class Keys:
    """A bucket with objects under any keys, for the commands and for the nodes."""

    name, uri = "bucket", "s3://bucket/x"

    def __init__(self, contents: Mapping[str, bytes]) -> None:
        self._contents = dict(contents)

    def list(self, prefix: str = "") -> Sequence[ObjectInfo]:
        now = datetime.now(UTC)
        return [
            ObjectInfo(key=key, size=len(data), etag="e", modified=now)
            for key, data in self._contents.items()
        ]

    def get_file(self, key: str, file: BinaryIO, *, on_bytes: object = None) -> None:
        file.write(self._contents[key])

    def objects(self, prefix: str) -> Sequence[ListedObject]:
        return [
            ListedObject(key=key, size=len(data))
            for key, data in self._contents.items()
            if key.startswith(prefix)
        ]

    def read(self, key: str) -> bytes | None:
        return self._contents.get(key)

    def document(self, key: str) -> dict[str, Any] | None:
        try:
            return read_object(self._contents[key])
        except (KeyError, ValueError):
            return None

    def head(self, key: str, **kwargs: Any) -> dict[str, Any] | None:
        return {} if key in self._contents else None

    def has(self, prefix: str) -> bool:
        return any(key.startswith(prefix) for key in self._contents)

    names = Bucket.names

    def _pages(self, **kwargs: Any) -> Sequence[dict[str, Any]]:
        return [{"Contents": [{"Key": key} for key in self._contents]}]


def odd_names(rng: random.Random) -> list[str]:
    names = rng.choices([*mutations.NAMES, "a", "b", "a/b", "link/a"], k=rng.randint(1, 4))
    return [rng.choice(["", "", "deep/"]) + name for name in names]


def trap(folder: Path, inside: Path) -> Path:
    """A user's folder with a link that leads out of it."""
    folder.mkdir(parents=True)
    (folder / "link").symlink_to(inside.parent / "outside")
    return folder


def snapshot_manifest() -> dict[str, Any]:
    common = {"root": "checkpoints", "nodes": [0]}
    file = {**common, "bytes": len(CONTENT), "sha256": DIGEST, "mode": 0o644, "mtime_ns": 10**18}
    return {
        "format": 1, "number": 2, "at": "2026-01-01T00:00:00", "nodes": 1, "main": 0, "bytes": 12,
        "files": [{**file, "path": path} for path in ("a/b", "c", "events.tfevents")],
        "links": [{**common, "path": "last", "target": "a"}],
        "folders": [{**common, "path": "a", "mode": 0o755}, {**common, "path": "e", "mode": 0o755}],
    }  # fmt: skip
