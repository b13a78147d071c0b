"""Handlers of the Lambda functions, each invoked by a schedule every few minutes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, Protocol

import boto3
from botocore.config import Config

from jobs.aws import Aws
from jobs.bucket.objects import Bucket
from jobs.deployment import read_deployment
from notifier.moves import ZoneMoves
from notifier.notifications import NotificationRules
from notifier.rounds import NotificationRound, Topic
from notifier.snapshot import services_in
from trainium_catalogue import contract


class LambdaContext(Protocol):
    """Subset of Lambda's context."""

    def get_remaining_time_in_millis(self) -> int: ...


class CachedClients(Aws):
    """Caches clients: creating one is slow, and an invocation uses the same few for all jobs."""

    def __init__(self, region: str) -> None:
        super().__init__(region)
        self._kept: dict[tuple[object, ...], Any] = {}

    def _client(self, service: str, **settings: Any) -> Any:
        key = (service, *sorted(settings.items()))
        if key not in self._kept:
            self._kept[key] = super()._client(service, **settings)
        return self._kept[key]


def handler(event: Mapping[str, object], context: LambdaContext) -> None:
    """Publish notifications about all runs; the event is ignored."""
    environment = os.environ
    region = environment[contract.ENV_REGION]
    aws = CachedClients(region)
    target = read_deployment(aws.ssm(), environment[contract.ENV_DEPLOYMENT], region=region)
    bucket = Bucket(client=aws.s3(), name=target.bucket)
    # No retries, which could publish twice; a later invocation retries failed notifications.
    once = Config(
        region_name=region,
        connect_timeout=5,
        read_timeout=30,
        retries={"total_max_attempts": 1},
    )
    topic = Topic(
        client=boto3.client("sns", config=once), arn=environment[contract.ENV_NOTIFY_TOPIC]
    )
    NotificationRound(
        aws=aws,
        target=target,
        bucket=bucket,
        topic=topic,
        rules=NotificationRules(
            wait_s=60.0 * int(environment[contract.ENV_NOTIFY_WAIT_MINUTES]),
            now_ms=int(time.time() * 1000),
        ),
        remaining_s=lambda: context.get_remaining_time_in_millis() / 1000,
    ).run(services_in(aws, target, bucket))


def move_handler(event: Mapping[str, object], context: LambdaContext) -> None:
    """Move jobs whose zone has no capacity to the next zone; the event is ignored."""
    environment = os.environ
    region, name = environment[contract.ENV_REGION], environment[contract.ENV_DEPLOYMENT]
    aws = CachedClients(region)
    target = read_deployment(aws.ssm(), name, region=region)

    def definition(workload: str) -> str | None:
        return read_deployment(aws.ssm(), name, region=region, workload=workload).job_definition

    ZoneMoves(
        aws=aws,
        target=target,
        bucket=Bucket(client=aws.s3(), name=target.bucket),
        definition=definition,
        now_ms=int(time.time() * 1000),
        sleep=time.sleep,
        remaining_s=lambda: context.get_remaining_time_in_millis() / 1000,
    ).run()
