"""Clients of AWS."""

from __future__ import annotations

from typing import Any

from jobs.aws import Aws
from tests.jobs.conftest import REGION, Cli


def test_calls_share_a_client_only_with_the_same_settings(cli: Cli) -> None:
    aws = Aws(REGION)
    images: list[Any] = [aws.ecr(region) for region in ("us-east-1", REGION)]

    assert aws.batch() is aws.batch()
    assert aws.batch_once() is not aws.batch()
    assert [client.meta.region_name for client in images] == ["us-east-1", REGION]
