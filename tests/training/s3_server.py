"""An emulated S3 for tests: moto's server in a thread of the test process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

REGION = "us-east-1"


@contextmanager
def s3_server(bucket: str) -> Iterator[str]:
    """Return the address of a server with an empty bucket; credentials are in the environment.

    Servers of one process share one account, so the bucket is deleted after the test.
    """
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        client = s3_client(url)
        client.create_bucket(Bucket=bucket)
        try:
            yield url
        finally:
            for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
                for item in page.get("Contents", []):
                    client.delete_object(Bucket=bucket, Key=item["Key"])
            client.delete_bucket(Bucket=bucket)
            server.stop()


@contextmanager
def bucket_environment(bucket: str) -> Iterator[dict[str, str]]:
    """Return the environment of nodes with an empty bucket."""
    with s3_server(bucket) as url:
        yield {
            "TRAINIUM_BUCKET": bucket,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
        }


def s3_client(url: str) -> Any:
    """Return a client of such a server."""
    return boto3.client("s3", endpoint_url=url, region_name=REGION)
