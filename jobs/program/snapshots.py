"""Complete snapshots of a run, as the nodes left them in the bucket."""

from __future__ import annotations

import re
from dataclasses import dataclass

from jobs.bucket.objects import Bucket
from trainium_catalogue import contract

CHECKPOINTS_ROOT = "checkpoints"
"""Files of the folder that the program writes; others are the compile cache."""
_NAME = re.compile(r"(\d{8})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFile:
    """A file of a snapshot."""

    root: str
    path: str
    bytes: int
    sha256: str
    mode: int
    node: int = 0
    """The first of the nodes that have exactly this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A complete snapshot."""

    number: int
    at: str
    nodes: int
    bytes: int
    files: tuple[SnapshotFile, ...]

    @property
    def checkpoints(self) -> tuple[SnapshotFile, ...]:
        """Files that the program wrote."""
        return tuple(file for file in self.files if file.root == CHECKPOINTS_ROOT)


def newest_snapshot(bucket: Bucket, run: str) -> Snapshot | None:
    """Read the newest complete snapshot; None before there is one."""
    for number in reversed(snapshot_numbers(bucket, run)):
        found = read_snapshot(bucket, run, number)
        if found is not None:  # a node may remove old ones meanwhile
            return found
    return None


def snapshot_numbers(bucket: Bucket, run: str) -> list[int]:
    """List the numbers of the complete snapshots, oldest first."""
    names = bucket.names(contract.run_prefix(run, "snapshots"))
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


def read_snapshot(bucket: Bucket, run: str, number: int) -> Snapshot | None:
    """Read one snapshot; None if there is none of that number."""
    document = bucket.document(f"{contract.run_prefix(run, 'snapshots')}{number:08d}.json")
    if document is None:
        return None
    files = tuple(
        SnapshotFile(
            root=str(item["root"]),
            path=str(item["path"]),
            bytes=int(item["bytes"]),
            sha256=str(item["sha256"]),
            mode=int(item.get("mode") or 0o644),
            node=min((int(node) for node in item.get("nodes") or ()), default=0),
        )
        for item in document.get("files", ())
    )
    return Snapshot(
        number=number,
        at=str(document.get("at", "")),
        nodes=int(document.get("nodes") or 0),
        bytes=int(document.get("bytes") or 0),
        files=files,
    )


def object_key(run: str, sha256: str) -> str:
    """Key of the contents of a snapshot's file."""
    return f"{contract.run_prefix(run, 'snapshots')}objects/{sha256}"
