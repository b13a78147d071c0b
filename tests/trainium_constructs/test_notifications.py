"""The notification function in a separate stack: its topic, schedule and permissions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk.assertions import Template

from notifier.function import handler
from trainium_catalogue.contract import CLUSTER_SNAPSHOT, NOTIFICATIONS_SENT
from trainium_constructs import ExpiringLogGroup, TrainingBucket
from trainium_constructs.notifications import RunNotifications
from trainium_constructs.scheduled import PACKAGES, CheckedDeployment, copy_packages

ROOT = Path(__file__).resolve().parents[2]
TOPIC = "arn:aws:sns:us-west-2:111122223333:runs"


def synthesized(**given: Any) -> dict[str, Any]:
    stack = cdk.Stack(cdk.App(), "stack", env=cdk.Environment(region="us-west-2"))
    RunNotifications(
        stack,
        "Notifications",
        deployment=CheckedDeployment(
            name="default",
            sources=ROOT,
            bucket=TrainingBucket(stack, "Data"),
            job_logs=ExpiringLogGroup(stack, "Logs", retention_days=30).log_group,
            log_retention_days=30,
        ),
        **{"email": None, "topic_arn": None, "wait_minutes": 45, **given},
    )
    template: dict[str, Any] = Template.from_stack(stack).to_json()["Resources"]
    return template


@pytest.fixture(scope="module")
def with_email() -> dict[str, Any]:
    return synthesized(email="team@example.com")


@pytest.fixture(scope="module")
def with_topic() -> dict[str, Any]:
    return synthesized(topic_arn=TOPIC)


def of_type(template: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [each.get("Properties", {}) for each in template.values() if each["Type"] == kind]


def statements(template: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Actions of the function's role, each with its statement."""
    for policy in of_type(template, "AWS::IAM::Policy"):
        for statement in policy["PolicyDocument"]["Statement"]:
            assert statement["Effect"] == "Allow"
            actions = statement["Action"]
            for action in [actions] if isinstance(actions, str) else actions:
                yield action, statement


def test_email_address_is_subscribed_to_encrypted_tls_only_topic(
    with_email: dict[str, Any],
) -> None:
    (topic,) = of_type(with_email, "AWS::SNS::Topic")
    (policy,) = of_type(with_email, "AWS::SNS::TopicPolicy")
    (subscription,) = of_type(with_email, "AWS::SNS::Subscription")
    (denied,) = policy["PolicyDocument"]["Statement"]

    assert "alias/aws/sns" in str(topic["KmsMasterKeyId"])
    assert (denied["Effect"], denied["Principal"]) == ("Deny", "*")
    assert denied["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert (subscription["Protocol"], subscription["Endpoint"]) == ("email", "team@example.com")


def test_existing_topic_is_used_unchanged(with_topic: dict[str, Any]) -> None:
    (function,) = of_type(with_topic, "AWS::Lambda::Function")
    (publishing,) = [each for action, each in statements(with_topic) if action == "sns:Publish"]
    (key,) = [each for action, each in statements(with_topic) if action == "kms:GenerateDataKey"]

    assert [each["Type"] for each in with_topic.values() if "::SNS::" in each["Type"]] == []
    assert function["Environment"]["Variables"]["TRAINIUM_NOTIFY_TOPIC"] == TOPIC
    assert publishing["Resource"] == TOPIC
    context = {"kms:EncryptionContext:aws:sns:topicArn": TOPIC}
    assert key["Condition"] == {"StringEquals": context}


def test_schedule_invokes_function_without_retries(with_email: dict[str, Any]) -> None:
    (rule,) = of_type(with_email, "AWS::Events::Rule")
    (function,) = of_type(with_email, "AWS::Lambda::Function")
    (target,) = rule["Targets"]
    (calls,) = of_type(with_email, "AWS::Lambda::EventInvokeConfig")

    assert rule["ScheduleExpression"] == "rate(5 minutes)"
    assert (calls["Qualifier"], calls["MaximumRetryAttempts"]) == ("$LATEST", 0)
    assert target["RetryPolicy"] == {"MaximumRetryAttempts": 0}
    assert function["Handler"] == f"{handler.__module__}.{handler.__name__}"
    assert function["Environment"]["Variables"]["TRAINIUM_NOTIFY_WAIT_MINUTES"] == "45"


def test_lambda_code_is_readable_despite_strict_umask(tmp_path: Path) -> None:
    for name in PACKAGES:
        (tmp_path / name).mkdir(mode=0o700)
        (tmp_path / name / "module.py").touch(mode=0o600)

    paths = sorted(Path(copy_packages(tmp_path)).rglob("*"))

    modes = {oct(path.stat().st_mode & 0o777) for path in paths if path.is_file()}
    assert len(paths) == 2 * len(PACKAGES)
    assert modes == {"0o644"}
    assert {oct(path.stat().st_mode & 0o777) for path in paths if path.is_dir()} == {"0o755"}


def test_function_may_write_only_one_object_and_its_log(with_email: dict[str, Any]) -> None:
    reads = ("Describe", "Get", "List")
    changing = {
        action: statement
        for action, statement in statements(with_email)
        if not action.partition(":")[2].startswith(reads)
    }

    assert set(changing) == {
        "logs:CreateLogStream", "logs:PutLogEvents", "s3:PutObject", "sns:Publish"
    }  # fmt: skip
    assert str(changing["s3:PutObject"]["Resource"]).endswith(f"/{NOTIFICATIONS_SENT}']]}}")
    (reading,) = [each for action, each in statements(with_email) if action == "s3:GetObject"]
    objects = {each["Fn::Join"][1][-1] for each in reading["Resource"]}
    assert objects == {
        f"/{CLUSTER_SNAPSHOT}", f"/{NOTIFICATIONS_SENT}", "/runs/*/results/attempts/*",
        "/runs/*/submission.json",
    }  # fmt: skip


def test_log_group_is_deleted_with_stack_and_created_only_by_it(with_email: dict[str, Any]) -> None:
    groups = [each for each in with_email.values() if each["Type"] == "AWS::Logs::LogGroup"]
    (function,) = of_type(with_email, "AWS::Lambda::Function")
    (role,) = of_type(with_email, "AWS::IAM::Role")

    assert {each["DeletionPolicy"] for each in groups} == {"Delete"}
    assert "LogGroup" in function["LoggingConfig"]
    assert "logs:CreateLogGroup" not in [action for action, _ in statements(with_email)]
    assert "ManagedPolicyArns" not in role
