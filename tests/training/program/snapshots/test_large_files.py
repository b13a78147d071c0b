"""Files larger than S3's 10,000 parts of 16 MiB."""

from __future__ import annotations

import hashlib

import pytest

from tests.training.program.snapshots.kept_nodes import Job
from training.program.snapshots.capture import HeldEntry
from training.program.snapshots.folder import scan
from training.program.snapshots.manifest import Root, SnapshotEntry, object_key
from training.program.snapshots.uploader import Bandwidth, Contents
from training.storage import s3


def test_parts_grow_with_the_file_so_that_s3_takes_all_of_them(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "_MAX_PARTS", 2)
    (node,) = job.attempt()
    content = bytes(40_000_000)
    path = node.folder / "model.bin"
    path.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    entry = SnapshotEntry(
        root=Root.CHECKPOINTS, path="model.bin", bytes=len(content), sha256=digest
    )
    held = HeldEntry(entry=entry, seen=scan(node.folder)["model.bin"], source=path)
    Contents(job.snapshots, Bandwidth(1e12), first_share=0).upload([held])
    job.snapshots.put_file("file", path)

    for key in (object_key(digest), "file"):
        (info,) = job.snapshots.list(key)
        # The ETag of a multipart object ends in the number of parts.
        assert info.size == len(content) and info.etag.strip('"').endswith("-2")
    assert job.snapshots.get(object_key(digest)) == content
