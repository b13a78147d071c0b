"""A submission rolls back to an older snapshot: all later attempts resume from there."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import boto3
import pytest

from jobs.bucket.objects import Bucket
from jobs.program.snapshots import choose_snapshot, roll_back
from tests.training.program.snapshots.kept_nodes import Job, checkpoints
from tests.training.s3_server import REGION
from training.program.snapshots.manifest import object_key
from training.storage import StorageAccess

_SERIAL = itertools.count()


@pytest.fixture
def bucket(snapshots_endpoint: str) -> Bucket:
    """Return a separate bucket, as seen by the client."""
    client = boto3.client(
        "s3",
        region_name=REGION,
        endpoint_url=snapshots_endpoint,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
    name = f"deployment-{next(_SERIAL)}"
    client.create_bucket(Bucket=name)
    return Bucket(client=client, name=name)


@pytest.fixture
def job(tmp_path: Path, bucket: Bucket, snapshots_endpoint: str) -> Iterator[Job]:
    """Create a run in that bucket."""
    root = f"s3://{bucket.name}"
    run = Job(tmp_path, StorageAccess(root=root, region=REGION, endpoint_url=snapshots_endpoint))
    yield run
    run.kill()


def given(job: Job) -> Mapping[str, object]:
    """Return the files restored by an attempt that dies without a snapshot."""
    (node,) = job.restored()
    return checkpoints(node)


def test_attempts_resume_from_the_chosen_snapshot_and_then_from_their_own(
    job: Job, bucket: Bucket
) -> None:
    for text in ("one", "two", "three"):
        job.run({"latest.pt": text})

    roll_back(bucket, "run", choose_snapshot(bucket, "run", "1"))
    assert given(job) == {"latest.pt": b"one"}
    job.run({"other.pt": "other"})
    assert given(job) == {"latest.pt": b"one", "other.pt": b"other"}
    # Retention applies as usual: the oldest are deleted.
    assert job.numbers() == [3, 4, 5]


def test_skipped_snapshots_are_not_restored_when_the_chosen_one_is_damaged(
    job: Job, bucket: Bucket
) -> None:
    for number, text in enumerate(("one", "two", "three"), start=1):
        job.put(number, {"latest.pt": text})
    roll_back(bucket, "run", choose_snapshot(bucket, "run", "2"))
    (file,) = job.snapshot(2).files

    job.snapshots.delete([object_key(file.sha256)])

    assert given(job) == {"latest.pt": b"one"}


def test_none_restores_nothing(job: Job, bucket: Bucket) -> None:
    job.put(1, {"latest.pt": "one"})

    roll_back(bucket, "run", choose_snapshot(bucket, "run", "none"))

    assert given(job) == {}
    job.run({"other.pt": "again"})
    assert given(job) == {"other.pt": b"again"}
