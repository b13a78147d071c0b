"""Files by key, in an S3 bucket or below a local folder, behind one small interface."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from training.storage.interface import (
    ObjectInfo,
    ObjectMissing,
    Objects,
    OnBytes,
    PreconditionFailed,
    StorageError,
    StorageRefused,
    StorageUnavailable,
)
from training.storage.local import LocalObjects
from training.storage.retries import Patience
from training.storage.s3 import S3Objects

__all__ = [
    "LocalObjects",
    "ObjectInfo",
    "ObjectMissing",
    "Objects",
    "OnBytes",
    "Patience",
    "PreconditionFailed",
    "S3Objects",
    "StorageError",
    "StorageRefused",
    "StorageUnavailable",
    "open_objects",
]


def open_objects(
    uri: str,
    *,
    region: str | None,
    endpoint_url: str | None,
    patience: Patience | None = None,
) -> Objects:
    """The storage at ``s3://bucket/prefix`` or at a path; ``ValueError`` for anything else.

    Nothing is read or created yet. ``endpoint_url`` is set on emulators only; ``patience`` bounds
    how long one operation is retried.
    """
    parts = urlsplit(uri)
    if parts.scheme == "s3" and parts.netloc:
        return S3Objects(
            bucket=parts.netloc,
            prefix=parts.path.strip("/"),
            region=region,
            endpoint_url=endpoint_url,
            patience=patience or Patience(),
        )
    if parts.scheme == "" and uri:
        return LocalObjects(Path(uri).absolute())
    raise ValueError(f"{uri!r} is no storage; write s3://bucket/prefix or the path of a folder")
