"""Invokes the deployment's notifier, whose schedule is not emulated, and reads its messages."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rehearsal.deployment.aws import EmulatedAccount
from rehearsal.deployment.cdk import StepFailed
from rehearsal.deployment.state import DEPLOYMENT
from rehearsal.receipt import RunRecord

_PAUSE_S = 1.0


@dataclass(slots=True)
class NotificationQueue:
    """A queue subscribed to the deployment's topic."""

    aws: EmulatedAccount
    function: str
    url: str
    _kinds: dict[str, list[str]] = field(default_factory=dict)

    def check(self, record: RunRecord, *, limit_s: float = 0.0) -> None:
        """Invoke the function; record missing or unexpected notifications of a finished run."""
        ended = "succeeded" if record.status == "SUCCEEDED" else "failed"
        expected = ["attempt-failed"] * (len(record.attempts) - 1) + [ended]
        deadline = time.monotonic() + limit_s
        while (kinds := self._read(record.run)) != expected and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
        if kinds != expected:
            reported = ", ".join(kinds) or "nothing"
            record.differences.append(
                f"notifications reported {reported} instead of {', '.join(expected)}"
            )

    def _read(self, run: str) -> list[str]:
        """Invoke the function; return the kinds of all notifications about a run so far."""
        response = self.aws.client("lambda").invoke(FunctionName=self.function, Payload=b"{}")
        if "FunctionError" in response:
            error = response["Payload"].read().decode()
            raise StepFailed(f"the notifier function failed: {error}")
        sqs = self.aws.client("sqs")
        while page := sqs.receive_message(QueueUrl=self.url, MaxNumberOfMessages=10).get(
            "Messages"
        ):
            for message in page:
                attributes = json.loads(message["Body"])["MessageAttributes"]
                run_name = attributes["run"]["Value"]
                self._kinds.setdefault(run_name, []).append(attributes["kind"]["Value"])
                sqs.delete_message(QueueUrl=self.url, ReceiptHandle=message["ReceiptHandle"])
        return self._kinds.get(run, [])


@contextmanager
def subscribed(aws: EmulatedAccount) -> Iterator[NotificationQueue]:
    """Subscribe a queue to the deployment's topic, and delete it afterwards."""
    stack = f"trainium-{DEPLOYMENT}-data"
    listed = aws.client("cloudformation").describe_stack_resources(StackName=stack)
    ids = {
        each["ResourceType"]: each.get("PhysicalResourceId", "")
        for each in listed["StackResources"]
        if each["LogicalResourceId"].startswith("Notifications")
    }
    sqs, sns = aws.client("sqs"), aws.client("sns")
    url = sqs.create_queue(QueueName="rehearsal")["QueueUrl"]
    queue = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    subscription = sns.subscribe(
        TopicArn=ids["AWS::SNS::Topic"],
        Protocol="sqs",
        Endpoint=queue["Attributes"]["QueueArn"],
    )
    try:
        yield NotificationQueue(aws, ids["AWS::Lambda::Function"], url)
    finally:
        sns.unsubscribe(SubscriptionArn=subscription["SubscriptionArn"])
        sqs.delete_queue(QueueUrl=url)
