"""Where the bucket is; outside AWS a folder takes its place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from training.storage import Objects, open_objects

_LOCAL_ROOT = Path("build")
"""Laid out as the bucket; the same folder that holds results without a bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The deployment's bucket, and how S3 is reached; small enough to send to a process."""

    root: str
    """URI of the bucket, without a final slash."""
    region: str | None = None
    endpoint_url: str | None = None
    """Of an emulator."""

    @staticmethod
    def of(bucket: str | None, *, region: str | None, endpoint_url: str | None) -> Place:
        """The bucket, or the local folder when there is none."""
        root = f"s3://{bucket}" if bucket else str(_LOCAL_ROOT.absolute())
        return Place(root=root, region=region, endpoint_url=endpoint_url)

    def open(self, uri: str) -> Objects:
        """Any storage, by its URI."""
        return open_objects(uri, region=self.region, endpoint_url=self.endpoint_url)
