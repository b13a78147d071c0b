"""The emulated AWS refuses requests that no policy of an IAM user allows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto.iam.models import iam_backends

from jobs.aws import Aws
from jobs.eks.cluster import make_token
from tests.emulators.conftest import Client
from trainium_catalogue.kubernetes import SUBMITTERS
from trainium_emulators.aws import permissions
from trainium_emulators.aws.cloudformation.contributions import AccountRegion
from trainium_emulators.aws.cloudformation.eks_members import AccessEntry, members_of
from trainium_emulators.aws.permissions import allows
from trainium_emulators.kubernetes.rbac import ADMIN, Caller

REGION, ACCOUNT = "us-west-2", "123456789012"
ARN = f"arn:aws:{{}}:{REGION}:{ACCOUNT}:{{}}"


def statement(action: str, resource: str, **more: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": action, "Resource": resource, **more}


def policy(*statements: dict[str, Any]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": list(statements)}


@pytest.mark.parametrize(
    ("pattern", "resource", "expected"),
    [
        ("arn:aws:s3:::mine/*", "arn:aws:s3:::mine/a/b", True),
        ("arn:aws:s3:::mi?e", "arn:aws:s3:::mine", True),
        ("arn:aws:s3:::mi?e", "arn:aws:s3:::mie", False),
        ("arn:aws:s3:::a.b", "arn:aws:s3:::axb", False),
    ],
)
def test_wildcards_match_like_iam(pattern: str, resource: str, expected: bool) -> None:
    assert (
        allows([policy(statement("s3:GetObject", pattern))], "s3:GetObject", resource) is expected
    )


def test_unsupported_statement_grants_nothing() -> None:
    for beyond in (
        {**statement("a:B", "*"), "Effect": "Deny"},
        statement("a:B", "*", Condition={"Bool": {"a:C": "true"}}),
        {"Effect": "Allow", "NotAction": "a:B", "Resource": "*"},
    ):
        with pytest.raises(NotImplementedError):
            allows([policy(beyond)], "a:B", "*")


@pytest.fixture(scope="module")
def submitter(client: Client, endpoint: str) -> Iterator[Callable[[str], Any]]:
    """Clients of a user who may read one parameter, one group of logs and one prefix."""
    iam = client("iam")
    iam.create_user(UserName="me")
    key = iam.create_access_key(UserName="me")["AccessKey"]
    iam.put_user_policy(
        UserName="me",
        PolicyName="p",
        PolicyDocument=json.dumps(
            policy(
                statement("ssm:GetParameters", ARN.format("ssm", "parameter/mine/*")),
                statement("logs:*", ARN.format("logs", "log-group:mine-*")),
                statement("s3:PutObject", "arn:aws:s3:::bucket/mine/*"),
                statement("batch:ListJobs", "*"),
                statement("eks:DescribeCluster", ARN.format("eks", "cluster/mine-????")),
            )
        ),
    )
    for name in ("/mine/a", "/other/a"):
        client("ssm").put_parameter(Name=name, Value="x", Type="String")
    client("s3").create_bucket(
        Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": REGION}
    )

    def make(service: str) -> Any:
        return boto3.client(
            service,
            endpoint_url=endpoint,
            region_name=REGION,
            aws_access_key_id=key["AccessKeyId"],
            aws_secret_access_key=key["SecretAccessKey"],
        )

    yield make


def code_of(call: Callable[..., Any], **arguments: Any) -> str:
    """Return the error code of a call, or an empty text."""
    try:
        call(**arguments)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return ""


def test_user_accesses_only_policy_resources(
    submitter: Callable[[str], Any],
) -> None:
    ssm, s3, logs, eks = (submitter(name) for name in ("ssm", "s3", "logs", "eks"))

    assert code_of(ssm.get_parameters, Names=["/mine/a"]) == ""
    assert code_of(ssm.get_parameters, Names=["/mine/a", "/other/a"]) == "AccessDeniedException"
    assert code_of(s3.put_object, Bucket="bucket", Key="mine/a", Body=b"") == ""
    assert code_of(s3.put_object, Bucket="bucket", Key="a", Body=b"") == "AccessDenied"
    assert code_of(s3.head_object, Bucket="bucket", Key="mine/a") == "403"
    # Allowed, but missing.
    stream = {"logStreamName": "s"}
    assert code_of(logs.get_log_events, logGroupName="mine-1", **stream) == (
        "ResourceNotFoundException"
    )
    assert code_of(logs.get_log_events, logGroupName="x", **stream) == "AccessDeniedException"
    assert code_of(logs.describe_log_streams, logGroupName="mine-1") == (
        "ResourceNotFoundException"
    )
    assert code_of(logs.describe_log_streams, logGroupName="x") == "AccessDeniedException"
    assert code_of(eks.describe_cluster, name="mine-1234") == "ResourceNotFoundException"
    assert code_of(eks.describe_cluster, name="mine-12345") == "AccessDeniedException"


def test_action_without_resources_needs_a_statement_for_all_of_them(
    submitter: Callable[[str], Any],
) -> None:
    batch, autoscaling = submitter("batch"), submitter("autoscaling")

    assert code_of(batch.list_jobs, jobQueue="q") != "AccessDeniedException"
    assert code_of(batch.describe_jobs, jobs=["j"]) == "AccessDeniedException"
    assert code_of(autoscaling.describe_auto_scaling_groups) == "AccessDenied"


def test_caller_identity_is_always_allowed(submitter: Callable[[str], Any]) -> None:
    assert submitter("sts").get_caller_identity()["Arn"].endswith(":user/me")


def test_submission_needs_definition_queue_and_tags() -> None:
    def arn(service: str, rest: str) -> str:
        return f"{service}|{rest}"

    asked = {"jobDefinition": "d:1", "jobQueue": "q", "tags": {"a": "b"}}

    assert list(permissions.needed("batch:SubmitJob", asked, arn)) == [
        ("batch:SubmitJob", "batch|job-definition/d:1"),
        ("batch:SubmitJob", "batch|job-queue/q"),
        ("batch:TagResource", "batch|job/new"),
    ]


def test_cluster_identifies_user_by_access_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    iam = iam_backends[ACCOUNT]["aws"]
    iam.create_user(REGION, user_name="tokens")
    try:
        key = iam.create_access_key("tokens")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key.access_key_id)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key.secret_access_key)
        aws = Aws(REGION)
        make_token(aws, "another")
        token = make_token(aws, "cluster")
        arn = f"arn:aws:iam::{ACCOUNT}:user/tokens"

        without = permissions.caller_of(token)
        place = AccountRegion(account_id=ACCOUNT, region=REGION)
        entries = members_of(place, "cluster", AccessEntry.type_name)
        monkeypatch.setitem(entries, arn, {"KubernetesGroups": [SUBMITTERS]})

        assert without is None
        assert permissions.caller_of(token) == Caller(name=arn, groups=frozenset({SUBMITTERS}))
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "rehearsal")
        assert permissions.caller_of(make_token(Aws(REGION), "cluster")) == ADMIN
    finally:
        iam.reset()
