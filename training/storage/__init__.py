"""Objects by key, in an S3 bucket or a local folder, behind one small interface."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
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
from training.storage.retries import RetryPolicy
from training.storage.s3 import S3Objects

if TYPE_CHECKING:
    from training.core.contract import NodeContract

__all__ = [
    "LocalObjects",
    "ObjectInfo",
    "ObjectMissing",
    "Objects",
    "OnBytes",
    "PreconditionFailed",
    "RetryPolicy",
    "S3Objects",
    "StorageError",
    "StorageRefused",
    "StorageUnavailable",
    "open_objects",
]
_LOCAL_ROOT = Path("build")
"""Local folder with the bucket's layout, used if there is no bucket."""


def open_objects(
    uri: str,
    *,
    region: str | None,
    endpoint_url: str | None,
    retry_policy: RetryPolicy | None = None,
) -> Objects:
    """Open the storage at ``s3://bucket/prefix`` or a path; raise ``ValueError`` for anything else.

    Does not access the storage yet. ``endpoint_url`` is set only with emulators; ``retry_policy``
    bounds the retries of each operation.
    """
    parts = urlsplit(uri)
    if parts.scheme == "s3" and parts.netloc:
        return S3Objects(
            bucket=parts.netloc,
            prefix=parts.path.strip("/"),
            region=region,
            endpoint_url=endpoint_url,
            retry_policy=retry_policy or RetryPolicy(),
        )
    if parts.scheme == "" and uri:
        return LocalObjects(Path(uri).absolute())
    raise ValueError(
        f"{uri!r} is not a storage location; use s3://bucket/prefix or the path of a folder"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageAccess:
    """Access to the deployment's bucket; small enough to send to another process."""

    root: str
    """URI of the bucket, without a trailing slash."""
    region: str | None = None
    endpoint_url: str | None = None
    """Set only with emulators."""

    @staticmethod
    def of(node: NodeContract, *, local: Path = _LOCAL_ROOT) -> StorageAccess:
        """Return a node's access to the bucket, or to the local folder if it has none."""
        root = f"s3://{node.bucket}" if node.bucket else str(local.absolute())
        return StorageAccess(root=root, region=node.region, endpoint_url=node.endpoint_url)

    def open_root(self, *, retry_policy: RetryPolicy | None = None) -> Objects:
        """Open the bucket itself."""
        return self.open(self.root, retry_policy=retry_policy)

    def open(self, uri: str, *, retry_policy: RetryPolicy | None = None) -> Objects:
        """Open any storage by its URI."""
        return open_objects(
            uri, region=self.region, endpoint_url=self.endpoint_url, retry_policy=retry_policy
        )
