"""Models that moto lacks: real stacks against the real server."""

import json
from pathlib import Path
from typing import Any

import botocore.exceptions
import pytest
from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER

from tests.emulators.conftest import Client
from trainium_emulators.aws.cloudformation.registry import (
    REPLACED_BY,
)

ROOT = Path(__file__).resolve().parents[2]
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


def test_security_group_has_only_template_egress_rules(client: Client) -> None:
    https = {"CidrIp": "0.0.0.0/0", "FromPort": 443, "ToPort": 443, "IpProtocol": "tcp"}
    resources = {
        "Vpc": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.1.0.0/16"}},
        "Group": {
            "Type": "AWS::EC2::SecurityGroup",
            "Properties": {
                "GroupDescription": "x", "VpcId": {"Ref": "Vpc"}, "SecurityGroupEgress": [https],
            },
        },
    }  # fmt: skip

    made = create(client, "egress", resources)

    groups = client("ec2").describe_security_groups(
        Filters=[{"Name": "vpc-id", "Values": [made["Vpc"]]}]
    )
    (group,) = [g for g in groups["SecurityGroups"] if g["GroupName"] != "default"]
    assert [rule.get("ToPort") for rule in group["IpPermissionsEgress"]] == [443]


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


def default_group_rule(direction: str, **rule: Any) -> dict[str, Any]:
    """A rule of the default security group of the VPC "Vpc"."""
    group = {"Fn::GetAtt": ["Vpc", "DefaultSecurityGroup"]}
    itself = {key: group if value == "itself" else value for key, value in rule.items()}
    kind = f"AWS::EC2::SecurityGroup{direction}"
    return {"Type": kind, "Properties": {"GroupId": group, **itself}}


def test_existing_default_group_rule_is_duplicate(client: Client) -> None:
    resources = {
        "Vpc": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.4.0.0/16"}},
        "In": default_group_rule("Ingress", IpProtocol="-1", SourceSecurityGroupId="itself"),
    }

    with pytest.raises(botocore.exceptions.ClientError, match="Duplicate"):
        create(client, "duplicate", resources)


def test_explicit_egress_rule_removes_default_rule(client: Client) -> None:
    resources = {
        "Vpc": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.5.0.0/16"}},
        "Out": default_group_rule("Egress", IpProtocol="-1", DestinationSecurityGroupId="itself"),
    }

    made = create(client, "stated-egress", resources)

    group = default_group(client, made["Vpc"])
    (outside,) = group["IpPermissionsEgress"]
    assert [pair["GroupId"] for pair in outside["UserIdGroupPairs"]] == [group["GroupId"]]
    assert outside.get("IpRanges", []) == []


def test_environment_without_groups_is_described_without_groups(client: Client) -> None:
    # Batch uses the groups of the launch template's interfaces, and describes none.
    ec2, iam, batch = client("ec2"), client("iam"), client("batch")
    group = ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]
    iam.create_instance_profile(InstanceProfileName="nodes")
    profile = iam.get_instance_profile(InstanceProfileName="nodes")["InstanceProfile"]["Arn"]
    nic = {"DeviceIndex": 0, "InterfaceType": "efa", "Groups": [group]}
    compute = {
        "Type": "EC2", "InstanceRole": profile, "InstanceTypes": ["trn1.32xlarge"],
        "MinvCpus": 0, "MaxvCpus": 256,
        "Subnets": [ec2.describe_subnets()["Subnets"][0]["SubnetId"]],
        "LaunchTemplate": {
            "LaunchTemplateId": {"Ref": "Node"},
            "Version": {"Fn::GetAtt": ["Node", "LatestVersionNumber"]},
        },
    }  # fmt: skip
    resources = {
        "Node": {
            "Type": "AWS::EC2::LaunchTemplate",
            "Properties": {"LaunchTemplateData": {"NetworkInterfaces": [nic]}},
        },
        "Environment": {
            "Type": "AWS::Batch::ComputeEnvironment",
            "Properties": {"Type": "MANAGED", "ComputeResources": compute},
        },
    }
    described = []

    create(client, "efa", resources)
    described += batch.describe_compute_environments()["computeEnvironments"]
    compute["MaxvCpus"] = 512
    client("cloudformation").update_stack(
        StackName="efa", TemplateBody=json.dumps({"Resources": resources})
    )
    described += batch.describe_compute_environments()["computeEnvironments"]
    client("cloudformation").delete_stack(StackName="efa")

    shown = [environment["computeResources"] for environment in described]
    assert [each["maxvCpus"] for each in shown] == [256, 512]
    assert all("securityGroupIds" not in each for each in shown)
    assert batch.describe_compute_environments()["computeEnvironments"] == []


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
