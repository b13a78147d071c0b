"""The policy of a submitter: as much as the commands use, and no more."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jobs import aws
from tests.jobs.conftest import Desk
from tests.jobs.permissions import POLICY, action_of, allowed

# Not an operation of a client, or not one by that name.
BESIDE_CLIENTS = {
    "batch:TagResource": "SubmitJob carries tags (AWS Batch User Guide, tag resources)",
    "ssm:StartSession": "`jobs shell` runs the AWS CLI",
    "s3:AbortMultipartUpload": "boto3's transfers, when an upload is interrupted",
    "s3:PutObject": "boto3's transfers",
}
OF_WHO_DEPLOYS = {"CloudFormationClient"}
SERVICES = {
    "AutoScalingClient": "autoscaling",
    "SsmClient": "ssm",
    "ManagedInstancesClient": "ssm",
    "BatchClient": "batch",
    "S3Client": "s3",
    "LogsClient": "logs",
    "EksClient": "eks",
    "EcsClient": "ecs",
    "Ec2Client": "ec2",
}


def operations() -> set[str]:
    """Actions of all that the protocols of jobs/aws.py name."""
    found: set[str] = set()
    for name, service in SERVICES.items():
        for method in vars(getattr(aws, name)):
            if not method.startswith("_"):
                words = method.replace("v2", "V2").split("_")
                found.add(action_of(service, "".join(word[0].upper() + word[1:] for word in words)))
    return found


def test_every_client_is_known_here() -> None:
    assert {name for name in vars(aws) if name.endswith("Client")} == {
        *SERVICES,
        *OF_WHO_DEPLOYS,
    }


def test_the_policy_allows_what_the_commands_use_and_no_more() -> None:
    assert allowed() == operations() | set(BESIDE_CLIENTS)


def test_the_policy_names_resources_wherever_aws_takes_one() -> None:
    statements: list[dict[str, Any]] = json.loads(POLICY.read_text())["Statement"]

    assert [each["Sid"] for each in statements if each["Resource"] == "*"] == ["Look"]


def test_a_call_that_the_policy_does_not_allow_would_be_noticed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.jobs import permissions

    with monkeypatch.context() as patch:
        patch.setattr(permissions, "allowed", lambda: allowed() - {"batch:ListJobs"})
        watched = permissions.calls_are_allowed(patch)
        next(watched)
        desk.run("list")

        with pytest.raises(AssertionError, match="does not allow batch:ListJobs: add it there"):
            next(watched)
