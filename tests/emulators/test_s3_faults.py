"""The storage that fails on request, and the conditions that it must keep: with boto3."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import botocore.exceptions
import pytest
from botocore.config import Config

from tests.emulators.conftest import client_of

Arm = Callable[..., Any]


def client(endpoint: str, *, attempts: int = 1) -> Any:
    return client_of(endpoint, "s3", config=Config(retries={"total_max_attempts": attempts}))


@pytest.fixture(scope="module")
def s3(endpoint: str) -> Any:
    made = client(endpoint)
    made.create_bucket(
        Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
    )
    return made


@pytest.fixture
def arm(endpoint: str) -> Iterator[Arm]:
    """Arms a fault, or asks with nothing; all are gone after the test."""

    def send(method: str = "GET", **fault: Any) -> Any:
        request = urllib.request.Request(
            f"{endpoint}/rehearsal/s3-faults", json.dumps(fault).encode(), method=method
        )
        with urllib.request.urlopen(request) as answer:
            return json.loads(answer.read())

    yield send
    send("DELETE")


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [("slow-down", 503, "SlowDown"), ("internal-error", 500, "InternalError")],
)
def test_an_armed_error_looks_like_that_of_s3(
    s3: Any, arm: Arm, kind: str, status: int, code: str
) -> None:
    arm("POST", kind=kind, keys="runs/*/checkpoints/*")

    with pytest.raises(botocore.exceptions.ClientError) as error:
        s3.put_object(Bucket="bucket", Key="runs/a/checkpoints/b", Body=b"x" * (1 << 21))

    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
    assert error.value.response["Error"]["Code"] == code


def test_other_keys_are_spared(s3: Any, arm: Arm) -> None:
    arm("POST", kind="slow-down", keys="runs/*/checkpoints/*")

    s3.put_object(Bucket="bucket", Key="datasets/a", Body=b"1")

    assert arm()[0]["hits"] == 0


def test_botocore_gets_over_a_few_errors(s3: Any, endpoint: str, arm: Arm) -> None:
    arm("POST", kind="internal-error", limit=2, methods="PUT")

    client(endpoint, attempts=5).put_object(Bucket="bucket", Key="a", Body=b"1")

    assert arm()[0]["hits"] == 2


def test_a_slow_answer_comes_in_the_end(s3: Any, arm: Arm) -> None:
    s3.put_object(Bucket="bucket", Key="slow", Body=b"1")
    arm("POST", kind="slow", delay_s=0.2, keys="slow")

    assert s3.get_object(Bucket="bucket", Key="slow")["Body"].read() == b"1"
    assert arm()[0]["hits"] == 1


@pytest.mark.parametrize(
    ("fault", "named"), [({"kind": "fire"}, "fire"), ({"kind": "slow", "shre": 1}, "shre")]
)
def test_a_wrong_fault_is_refused_and_named(arm: Arm, fault: dict[str, Any], named: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as error:
        arm("POST", **fault)

    assert (error.value.code, named in error.value.read().decode()) == (400, True)


def test_of_many_that_create_the_same_key_one_wins(s3: Any, endpoint: str) -> None:
    def create(number: int) -> int:
        try:
            s3.put_object(Bucket="bucket", Key="once", Body=str(number), IfNoneMatch="*")
        except botocore.exceptions.ClientError as error:
            return int(error.response["ResponseMetadata"]["HTTPStatusCode"])
        return 200

    with ThreadPoolExecutor(8) as pool:
        codes = sorted(pool.map(create, range(8)))

    assert codes[0] == 200
    assert set(codes[1:]) <= {409, 412}


def test_an_object_is_only_replaced_while_it_is_as_it_was(s3: Any) -> None:
    etag = s3.put_object(Bucket="bucket", Key="lock", Body=b"1")["ETag"]
    s3.put_object(Bucket="bucket", Key="lock", Body=b"2", IfMatch=etag)

    with pytest.raises(botocore.exceptions.ClientError) as error:
        s3.put_object(Bucket="bucket", Key="lock", Body=b"3", IfMatch=etag)

    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 412
