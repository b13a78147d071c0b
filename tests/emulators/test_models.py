"""Models that moto lacks: real stacks against the real server."""

import json
from typing import Any

import botocore.exceptions
import pytest
from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER

from tests.emulators.conftest import Client
from trainium_emulators.aws.cloudformation.registry import REPLACED_BY

MANIFEST = json.dumps(
    {
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": {},
        "layers": [],
    }
)


def create(client: Client, name: str, resources: dict[str, Any]) -> dict[str, str]:
    """Create a stack; physical ids by logical id."""
    cloudformation = client("cloudformation")
    template = json.dumps({"Resources": resources})
    cloudformation.create_stack(StackName=name, TemplateBody=template)
    described = cloudformation.describe_stack_resources(StackName=name)["StackResources"]
    return {entry["LogicalResourceId"]: entry["PhysicalResourceId"] for entry in described}


@pytest.mark.parametrize(
    ("kind", "properties", "named"),
    [
        ("AWS::Batch::JobQeue", {}, "AWS::Batch::JobQeue"),
        ("AWS::Batch::JobQueue", {"Priority": 1, "Colour": "red"}, "Colour"),
    ],
)
def test_unsupported_property_fails_deployment(
    client: Client, kind: str, properties: dict[str, Any], named: str
) -> None:
    with pytest.raises(botocore.exceptions.ClientError, match=f"Wrong: .*{named}"):
        create(client, "wrong", {"Wrong": {"Type": kind, "Properties": properties}})


def test_refused_template_creates_nothing(client: Client) -> None:
    before = len(client("ec2").describe_vpcs()["Vpcs"])
    resources = {
        "Vpc": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.0.0.0/16"}},
        "Wrong": {"Type": "AWS::Nothing::AtAll"},
    }

    with pytest.raises(botocore.exceptions.ClientError):
        create(client, "half", resources)

    assert len(client("ec2").describe_vpcs()["Vpcs"]) == before


def test_replacement_here_implies_replacement_on_aws() -> None:
    """The reference is CloudFormation's registry, as included in cfn-lint."""
    wrong = {
        (kind, name)
        for kind, names in REPLACED_BY.items()
        for name in names
        if f"/properties/{name}"
        not in PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-west-2", kind).schema[
            "createOnlyProperties"
        ]
    }

    assert REPLACED_BY
    assert wrong == set()


def test_new_vpc_has_default_group_like_ec2(client: Client) -> None:
    vpc = {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.3.0.0/16"}}

    made = create(client, "default-group", {"Vpc": vpc})

    group = default_group(client, made["Vpc"])
    (inside,), (outside,) = group["IpPermissions"], group["IpPermissionsEgress"]
    assert [pair["GroupId"] for pair in inside["UserIdGroupPairs"]] == [group["GroupId"]]
    assert (inside["IpProtocol"], outside["IpProtocol"]) == ("-1", "-1")
    assert [entry["CidrIp"] for entry in outside["IpRanges"]] == ["0.0.0.0/0"]


def default_group(client: Client, vpc_id: str) -> dict[str, Any]:
    """The default security group of a VPC."""
    named = [
        {"Name": "vpc-id", "Values": [vpc_id]},
        {"Name": "group-name", "Values": ["default"]},
    ]
    (group,) = client("ec2").describe_security_groups(Filters=named)["SecurityGroups"]
    found: dict[str, Any] = group
    return found


def test_explicit_egress_rule_removes_default_rule(client: Client) -> None:
    itself = {"Fn::GetAtt": ["Vpc", "DefaultSecurityGroup"]}
    resources = {
        "Vpc": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.5.0.0/16"}},
        "Out": {
            "Type": "AWS::EC2::SecurityGroupEgress",
            "Properties": {
                "GroupId": itself, "IpProtocol": "-1", "DestinationSecurityGroupId": itself,
            },
        },
    }  # fmt: skip

    made = create(client, "stated-egress", resources)

    group = default_group(client, made["Vpc"])
    (outside,) = group["IpPermissionsEgress"]
    assert [pair["GroupId"] for pair in outside["UserIdGroupPairs"]] == [group["GroupId"]]
    assert outside.get("IpRanges", []) == []


def test_auto_delete_really_empties_the_bucket(client: Client) -> None:
    bucket = {"VersioningConfiguration": {"Status": "Enabled"}}
    empties = {"ServiceToken": "arn", "BucketName": {"Ref": "Bucket"}}
    made = create(
        client,
        "bucket",
        {
            "Bucket": {"Type": "AWS::S3::Bucket", "Properties": bucket},
            "Empties": {"Type": "Custom::S3AutoDeleteObjects", "Properties": empties},
        },
    )
    client("s3").put_object(Bucket=made["Bucket"], Key="a", Body=b"1")
    client("s3").put_object(Bucket=made["Bucket"], Key="a", Body=b"2")

    client("cloudformation").delete_stack(StackName="bucket")

    assert client("s3").list_buckets()["Buckets"] == []


def test_budget_is_deleted_with_stack(client: Client) -> None:
    subscriber = {"SubscriptionType": "EMAIL", "Address": "team@example.com"}
    notification = {
        "NotificationType": "ACTUAL",
        "ComparisonOperator": "GREATER_THAN",
        "Threshold": 80,
        "ThresholdType": "PERCENTAGE",
    }

    def resources(usd: int) -> dict[str, Any]:
        limit = {"Amount": usd, "Unit": "USD"}
        types = {"IncludeCredit": False, "IncludeRefund": False}
        budget = {
            "BudgetType": "COST",
            "TimeUnit": "MONTHLY",
            "BudgetLimit": limit,
            "CostTypes": types,
        }
        informs = {"Notification": notification, "Subscribers": [subscriber]}
        properties = {"Budget": budget, "NotificationsWithSubscribers": [informs]}
        return {"B": {"Type": "AWS::Budgets::Budget", "Properties": properties}}

    def limits() -> list[str]:
        described = client("budgets").describe_budgets(AccountId="123456789012")
        return [each["BudgetLimit"]["Amount"] for each in described["Budgets"]]

    create(client, "budget", resources(10))
    before = limits()
    changed = json.dumps({"Resources": resources(20)})
    client("cloudformation").update_stack(StackName="budget", TemplateBody=changed)

    assert [*map(float, before)] == [10] and [*map(float, limits())] == [20]

    client("cloudformation").delete_stack(StackName="budget")

    assert limits() == []


@pytest.mark.parametrize(("empties", "left"), [(True, 0), (False, 1)])
def test_repository_with_images_is_deleted_only_with_empty_on_delete(
    client: Client, empties: bool, left: int
) -> None:
    name = f"images-{empties}".lower()
    properties = {"RepositoryName": name, "EmptyOnDelete": empties}
    create(client, name, {"R": {"Type": "AWS::ECR::Repository", "Properties": properties}})
    client("ecr").put_image(repositoryName=name, imageManifest=MANIFEST, imageTag="1")

    try:
        client("cloudformation").delete_stack(StackName=name)
    except botocore.exceptions.ClientError as error:
        assert "images" in str(error)

    repositories = client("ecr").describe_repositories()["repositories"]
    assert len([r for r in repositories if r["repositoryName"] == name]) == left


def test_function_runs_in_process_and_returns_its_error(client: Client) -> None:
    code = (
        "import os\n"
        "def handler(event, context):\n"
        "    return [os.environ['NAME'], os.environ['AWS_REGION'], 1 / event['divisor']]\n"
    )
    trust = {"Action": "sts:AssumeRole", "Effect": "Allow", "Principal": {"Service": "lambda"}}
    resources = {
        "Role": {
            "Type": "AWS::IAM::Role",
            "Properties": {"AssumeRolePolicyDocument": {"Statement": [trust]}},
        },
        "Function": {
            "Type": "AWS::Lambda::Function",
            "Properties": {
                "Code": {"ZipFile": code},
                "Environment": {"Variables": {"NAME": "mine"}},
                "Handler": "index.handler",
                "Role": {"Fn::GetAtt": ["Role", "Arn"]},
                "Runtime": "python3.14",
                "Timeout": 60,
            },
        },
        "Calls": {
            "Type": "AWS::Lambda::EventInvokeConfig",
            "Properties": {
                "FunctionName": {"Ref": "Function"},
                "MaximumRetryAttempts": 0,
                "Qualifier": "$LATEST",
            },
        },
    }
    name = create(client, "functions", resources)["Function"]
    calls = client("lambda").get_function_event_invoke_config(FunctionName=name)
    assert calls["MaximumRetryAttempts"] == 0

    def call(divisor: int) -> dict[str, Any]:
        event = json.dumps({"divisor": divisor})
        answer: dict[str, Any] = client("lambda").invoke(FunctionName=name, Payload=event)
        return answer

    assert json.load(call(2)["Payload"]) == ["mine", "us-west-2", 0.5]
    failed = call(0)
    assert failed["FunctionError"] == "Unhandled"
    assert "ZeroDivisionError" in json.load(failed["Payload"])["errorMessage"]
