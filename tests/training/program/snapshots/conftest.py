"""Runs whose nodes persist their folders to an emulated bucket or a local folder."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.checkpoint.faulty import FaultyProxy, faulty_proxy
from tests.training.program.snapshots.kept_nodes import Job
from tests.training.s3_server import REGION, s3_server
from training.storage import StorageAccess

_BUCKET = "snapshots-bucket"
_SERIAL = itertools.count()


@pytest.fixture(scope="module")
def snapshots_endpoint() -> Iterator[str]:
    """Return the address of an emulator with a bucket."""
    with s3_server(_BUCKET) as url:
        yield url


@pytest.fixture
def job(tmp_path: Path, snapshots_endpoint: str) -> Iterator[Job]:
    """Create a run in the emulator's bucket; kill leftover processes after the test."""
    root = f"s3://{_BUCKET}/{next(_SERIAL)}"
    storage = StorageAccess(root=root, region=REGION, endpoint_url=snapshots_endpoint)
    run = Job(tmp_path, storage)
    yield run
    run.kill()


@pytest.fixture
def proxied(job: Job, snapshots_endpoint: str) -> Iterator[tuple[Job, FaultyProxy]]:
    """Create a run whose bucket is reached through a proxy."""
    with faulty_proxy(snapshots_endpoint) as proxy:
        job.storage = replace(job.storage, endpoint_url=proxy.url)
        yield job, proxy


@pytest.fixture
def local_job(tmp_path: Path) -> Iterator[Job]:
    """Create a run below a local folder."""
    run = Job(tmp_path, StorageAccess(root=str(tmp_path / "bucket")))
    yield run
    run.kill()
