"""Conditional writes to the emulated storage, with boto3."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import botocore.exceptions
import pytest
from botocore.config import Config

from tests.emulators.conftest import client_of


@pytest.fixture(scope="module")
def s3(endpoint: str) -> Any:
    made = client_of(endpoint, "s3", config=Config(retries={"total_max_attempts": 1}))
    made.create_bucket(
        Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
    )
    return made


def test_concurrent_creation_of_key_has_one_winner(s3: Any) -> None:
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


def test_object_is_replaced_only_if_unchanged(s3: Any) -> None:
    etag = s3.put_object(Bucket="bucket", Key="lock", Body=b"1")["ETag"]
    s3.put_object(Bucket="bucket", Key="lock", Body=b"2", IfMatch=etag)

    with pytest.raises(botocore.exceptions.ClientError) as error:
        s3.put_object(Bucket="bucket", Key="lock", Body=b"3", IfMatch=etag)

    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 412
