"""An S3 emulator on loopback, direct and through a fault-injecting proxy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.checkpoint.faulty import FaultyProxy, faulty_proxy
from tests.training.s3_server import REGION, s3_server
from training.storage import Objects, RetryPolicy, open_objects

BUCKET = "training-bucket"
QUICK = RetryPolicy(total_s=20, first_delay_s=0.01, longest_delay_s=0.05)
PART = 2**16
"""Size of the parts of an upload with ``small_parts``, in bytes."""
_SERIAL = itertools.count()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Return the address of an emulator with a bucket."""
    with s3_server(BUCKET) as url:
        yield url


@pytest.fixture(scope="module")
def shared_proxy(endpoint: str) -> Iterator[FaultyProxy]:
    with faulty_proxy(endpoint) as proxy:
        yield proxy


@pytest.fixture
def proxy(shared_proxy: FaultyProxy) -> FaultyProxy:
    """Return the emulator behind a proxy, at first without faults."""
    shared_proxy.reset(lambda request: None)
    return shared_proxy


@pytest.fixture
def bucket(endpoint: str) -> Objects:
    """Return an empty prefix in the emulator's bucket."""
    uri = f"s3://{BUCKET}/{next(_SERIAL)}"
    return open_objects(uri, region=REGION, endpoint_url=endpoint, retry_policy=QUICK)


@pytest.fixture
def faulty_bucket(proxy: FaultyProxy) -> Objects:
    """Return an empty prefix in the bucket, through the proxy."""
    uri = f"s3://{BUCKET}/{next(_SERIAL)}"
    return open_objects(uri, region=REGION, endpoint_url=proxy.url, retry_policy=QUICK)


@pytest.fixture
def folder(tmp_path: Path) -> Objects:
    """Return an empty folder."""
    return open_objects(str(tmp_path / "root"), region=None, endpoint_url=None)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transfer in small parts, which S3 and the emulator would refuse."""
    monkeypatch.setattr("training.storage.s3._PART_BYTES", PART)
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)


@pytest.fixture(params=["bucket", "folder"])
def objects(request: pytest.FixtureRequest) -> Objects:
    """Return either kind of storage: they behave alike."""
    storage: Objects = request.getfixturevalue(request.param)
    return storage
