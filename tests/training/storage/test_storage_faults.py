"""Temporary storage failures are retried; permanent ones are reported once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from tests.training.checkpoint.conftest import BUCKET, PART
from tests.training.checkpoint.faulty import Fault, FaultyProxy, first_time
from tests.training.s3_server import REGION
from training.core.failures import classify
from training.storage import (
    ObjectMissing,
    Objects,
    PreconditionFailed,
    RetryPolicy,
    StorageRefused,
    StorageUnavailable,
    open_objects,
)
from training.storage.retries import explained, is_transient
from trainium_catalogue.exit_codes import ExitCode

PASSING_FAULTS = [fault for fault in Fault if fault is not Fault.ACCESS_DENIED]


@pytest.mark.parametrize("fault", PASSING_FAULTS, ids=lambda fault: fault.name)
def test_every_operation_survives(
    proxy: FaultyProxy, faulty_bucket: Objects, tmp_path: Path, fault: Fault, small_parts: None
) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    source.write_bytes(os.urandom(PART + 10))
    proxy.reset(first_time(fault, fault))

    faulty_bucket.put("small", b"text")
    faulty_bucket.put_file("large", source)
    with back.open("w+b") as file:
        faulty_bucket.get_file("large", file)

    assert faulty_bucket.get("small") == b"text"
    assert faulty_bucket.get_range("small", 1, 2) == b"ex"
    assert [info.key for info in faulty_bucket.list()] == ["large", "small"]
    assert back.read_bytes() == source.read_bytes()
    faulty_bucket.delete(["small", "large"])
    assert list(faulty_bucket.list()) == []
    assert {found for found, _ in proxy.injected} == {fault}


def test_a_conditional_write_whose_response_is_lost_succeeds(
    proxy: FaultyProxy, faulty_bucket: Objects
) -> None:
    proxy.reset(first_time(Fault.LOST_ANSWER))
    etag = faulty_bucket.put("lock", b"mine", if_absent=True)
    proxy.reset(first_time(Fault.LOST_ANSWER))
    etag = faulty_bucket.put("lock", b"mine again", if_match=etag)
    # The refusal of an executed write may be lost in part.
    proxy.reset(first_time(Fault.LOST_ANSWER, Fault.CUT_BODY))
    faulty_bucket.put("marker", b"mine", if_absent=True)

    assert faulty_bucket.get_with_etag("lock") == (b"mine again", etag)


def test_a_conditional_write_won_by_another_writer_fails(
    proxy: FaultyProxy, faulty_bucket: Objects
) -> None:
    faulty_bucket.put("lock", b"theirs")
    proxy.reset(first_time(Fault.SLOW_DOWN))

    with pytest.raises(PreconditionFailed):
        faulty_bucket.put("lock", b"mine", if_absent=True)
    assert faulty_bucket.get("lock") == b"theirs"


@pytest.fixture
def narrow_bucket(proxy: FaultyProxy, faulty_bucket: Objects) -> Objects:
    """The bucket for a role that may list only a prefix: missing objects are denied."""
    faulty_bucket.put("secret/there", b"")
    proxy.reset(
        lambda request: (
            Fault.ACCESS_DENIED
            if request.method in ("GET", "HEAD") and "list-type" not in request.path
            else None
        )
    )
    return faulty_bucket


def test_a_missing_object_is_missing_without_list_permission(
    narrow_bucket: Objects, tmp_path: Path
) -> None:
    for key in ("lock.json", "secret/the"):
        with pytest.raises(ObjectMissing, match=f"there is no {narrow_bucket.uri}/{key}"):
            narrow_bucket.get(key)
        with pytest.raises(ObjectMissing), (tmp_path / "file").open("w+b") as file:
            narrow_bucket.get_file(key, file)


def test_a_denied_object_is_not_missing(narrow_bucket: Objects) -> None:
    with pytest.raises(StorageRefused, match="AccessDenied; allow the job's role to do it"):
        narrow_bucket.get("secret/there")


def test_without_list_permission_access_is_denied(
    proxy: FaultyProxy, faulty_bucket: Objects
) -> None:
    proxy.reset(lambda request: Fault.ACCESS_DENIED)

    with pytest.raises(StorageRefused, match="AccessDenied; allow the job's role to do it"):
        faulty_bucket.get("lock.json")


def test_parts_of_a_failed_stream_are_aborted(
    proxy: FaultyProxy, faulty_bucket: Objects, small_parts: None
) -> None:
    with pytest.raises(RuntimeError), faulty_bucket.create("x") as stream:
        target: Any = stream
        target.write(bytes(2 * PART + 10))
        raise RuntimeError

    client = boto3.client("s3", endpoint_url=proxy.url, region_name=REGION)
    uploads = client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
    assert [u["Key"] for u in uploads if faulty_bucket.uri.endswith(u["Key"][:-2])] == []


def test_the_wait_ends_with_one_message_and_counts_as_a_host_failure(
    proxy: FaultyProxy,
) -> None:
    retry_policy = RetryPolicy(total_s=0.3, first_delay_s=0.02, longest_delay_s=0.05)
    objects = open_objects(
        f"s3://{BUCKET}/x", region=REGION, endpoint_url=proxy.url, retry_policy=retry_policy
    )
    proxy.reset(lambda request: Fault.SLOW_DOWN)

    with pytest.raises(
        StorageUnavailable, match=r"cannot write s3://training-bucket/x/a: .*SlowDown"
    ) as told:
        objects.put("a", b"")
    assert classify(told.value) is ExitCode.HOST


def test_a_failed_part_fails_the_whole_stream(proxy: FaultyProxy, small_parts: None) -> None:
    retry_policy = RetryPolicy(total_s=0.2, first_delay_s=0.02, longest_delay_s=0.05)
    objects = open_objects(
        f"s3://{BUCKET}/y", region=REGION, endpoint_url=proxy.url, retry_policy=retry_policy
    )
    proxy.reset(lambda request: Fault.INTERNAL_ERROR if "partNumber=2" in request.path else None)

    with pytest.raises(StorageUnavailable), objects.create("x") as stream:
        target: Any = stream
        for _ in range(100):
            target.write(bytes(PART // 4))

    assert list(objects.list()) == []


def _client_error(code: str, status: int) -> Exception:
    kind: Callable[..., Exception] = ClientError
    response = {
        "Error": {"Code": code, "Message": "text"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return kind(response, "PutObject")


@pytest.mark.parametrize(
    ("code", "status", "transient"),
    [
        ("Unknown", 500, True),
        ("Unknown", 429, True),
        ("RequestTimeout", 400, True),
        ("ConditionalRequestConflict", 409, True),
        ("InvalidArgument", 400, False),
    ],
)
def test_transient_errors_are_retried(code: str, status: int, transient: bool) -> None:
    assert is_transient(_client_error(code, status)) is transient


@pytest.mark.parametrize(
    ("code", "status", "message"),
    [
        ("InvalidArgument", 400, "cannot write s3://b/k: .*the request itself is refused"),
        ("412", 412, "s3://b/k has since been written by another job"),
    ],
)
def test_failed_checks_are_explained(code: str, status: int, message: str) -> None:
    told = explained(_client_error(code, status), verb="write", name="s3://b/k", bucket="b")

    with pytest.raises(type(told), match=message):
        raise told


def test_an_internal_error_is_not_explained_away() -> None:
    mistake = TypeError("put() takes 2 arguments")

    assert explained(mistake, verb="write", name="s3://b/k", bucket="b") is mistake
