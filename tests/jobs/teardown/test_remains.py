"""What `jobs down` sees of a deployment: planted leftovers of every kind, and nobody else's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date
from typing import Any

import pytest
from botocore.exceptions import ClientError

from jobs.aws import Aws
from jobs.teardown.receipt import sorted_out
from jobs.teardown.remains import Ownership, RemainingResource, look
from tests.jobs.conftest import ACCOUNT, REGION, Desk
from trainium_catalogue.account_listings import LISTINGS
from trainium_catalogue.contract import TAG_DEPLOYMENT
from trainium_catalogue.prices import HOURS_PER_MONTH, PRICES, PRICES_OF
from trainium_emulators.aws.cloudformation.contributions import AccountRegion
from trainium_emulators.aws.cloudformation.ec2 import PLACEMENT_GROUPS

NAME = "trainium-default-batch-left"
TAG = {"Key": TAG_DEPLOYMENT, "Value": "default"}
TAGS = [TAG]
TRUST = json.dumps({"Version": "2012-10-17", "Statement": []})
OWNER = Ownership(
    deployment="default", other_deployments=frozenset({"default-b"}), physical_ids=frozenset()
)


def _tagged(resource: str) -> list[dict[str, Any]]:
    return [{"ResourceType": resource, "Tags": TAGS}]


def _vpc(desk: Desk) -> str:
    ec2 = desk.client("ec2")
    made = ec2.create_vpc(CidrBlock="10.9.0.0/16", TagSpecifications=_tagged("vpc"))
    return str(made["Vpc"]["VpcId"])


def _subnet(desk: Desk) -> str:
    made = desk.client("ec2").create_subnet(
        VpcId=_vpc(desk), CidrBlock="10.9.1.0/24", TagSpecifications=_tagged("subnet")
    )
    return str(made["Subnet"]["SubnetId"])


def _security_group(desk: Desk) -> str:
    made = desk.client("ec2").create_security_group(
        GroupName=NAME, Description="x", VpcId=_vpc(desk)
    )
    return str(made["GroupId"])


def _interface(desk: Desk) -> str:
    made = desk.client("ec2").create_network_interface(
        SubnetId=_subnet(desk), Description=f"AWS Lambda VPC ENI-{NAME}"
    )
    return str(made["NetworkInterface"]["NetworkInterfaceId"])


def _address(desk: Desk) -> str:
    made = desk.client("ec2").allocate_address(
        Domain="vpc", TagSpecifications=_tagged("elastic-ip")
    )
    return str(made["AllocationId"])


def _nat_gateway(desk: Desk) -> str:
    made = desk.client("ec2").create_nat_gateway(
        SubnetId=_subnet(desk),
        AllocationId=_address(desk),
        TagSpecifications=_tagged("natgateway"),
    )
    return str(made["NatGateway"]["NatGatewayId"])


def _endpoint(desk: Desk) -> str:
    made = desk.client("ec2").create_vpc_endpoint(
        VpcId=_vpc(desk),
        ServiceName=f"com.amazonaws.{REGION}.ecr.api",
        VpcEndpointType="Interface",
        SubnetIds=[_subnet(desk)],
        TagSpecifications=_tagged("vpc-endpoint"),
    )
    return str(made["VpcEndpoint"]["VpcEndpointId"])


def _template(desk: Desk) -> str:
    made = desk.client("ec2").create_launch_template(
        LaunchTemplateName=NAME, LaunchTemplateData={"InstanceType": "t3.micro"}
    )
    return str(made["LaunchTemplate"]["LaunchTemplateId"])


def _placement_group(desk: Desk) -> str:
    PLACEMENT_GROUPS[AccountRegion(account_id=ACCOUNT, region=REGION)] = {NAME: "cluster"}
    return NAME


def _instance(desk: Desk) -> str:
    made = desk.client("ec2").run_instances(
        ImageId="ami-12345678",
        MinCount=1,
        MaxCount=1,
        InstanceType="trn1.2xlarge",
        TagSpecifications=_tagged("instance"),
    )
    return str(made["Instances"][0]["InstanceId"])


def _volume(desk: Desk) -> str:
    made = desk.client("ec2").create_volume(
        AvailabilityZone=f"{REGION}a", Size=100, TagSpecifications=_tagged("volume")
    )
    return str(made["VolumeId"])


def _group(desk: Desk) -> str:
    desk.client("autoscaling").create_auto_scaling_group(
        AutoScalingGroupName="eks-nodes",
        MinSize=0,
        MaxSize=1,
        LaunchTemplate={"LaunchTemplateId": _template(desk)},
        AvailabilityZones=[f"{REGION}a"],
        Tags=[{"Key": "eks:cluster-name", "Value": "trainium-default-eks"}],
    )
    return "eks-nodes"


def _bucket(desk: Desk) -> str:
    place = {"LocationConstraint": REGION}
    desk.client("s3").create_bucket(Bucket=NAME, CreateBucketConfiguration=place)
    return NAME


def _tagged_bucket(desk: Desk) -> str:
    place = {"LocationConstraint": REGION}
    desk.client("s3").create_bucket(Bucket="by-tag", CreateBucketConfiguration=place)
    desk.client("s3").put_bucket_tagging(Bucket="by-tag", Tagging={"TagSet": TAGS})
    return "by-tag"


def _repository(desk: Desk) -> str:
    desk.client("ecr").create_repository(repositoryName="trainium-default")
    return "trainium-default"


def _environment(desk: Desk) -> str:
    role = desk.client("iam").get_role(RoleName="batch")["Role"]["Arn"]
    desk.client("batch").create_compute_environment(
        computeEnvironmentName=NAME, type="UNMANAGED", state="ENABLED", serviceRole=role
    )
    return NAME


def _queue(desk: Desk) -> str:
    _environment(desk)
    order = [{"order": 1, "computeEnvironment": NAME}]
    desk.client("batch").create_job_queue(
        jobQueueName=NAME, state="ENABLED", priority=1, computeEnvironmentOrder=order
    )
    return NAME


def _definition(desk: Desk) -> str:
    made = desk.client("batch").register_job_definition(
        jobDefinitionName=NAME,
        type="container",
        containerProperties={"image": "x", "vcpus": 1, "memory": 128},
    )
    return str(made["jobDefinitionArn"])


def _file_system(desk: Desk) -> str:
    made = desk.client("fsx").create_file_system(
        FileSystemType="LUSTRE",
        StorageCapacity=1200,
        SubnetIds=[_subnet(desk)],
        LustreConfiguration={
            "DeploymentType": "PERSISTENT_2",
            "PerUnitStorageThroughput": 250,
        },
        Tags=TAGS,
    )
    return str(made["FileSystem"]["FileSystemId"])


def _role(desk: Desk) -> str:
    desk.client("iam").create_role(RoleName=NAME, AssumeRolePolicyDocument=TRUST)
    return NAME


def _profile(desk: Desk) -> str:
    desk.client("iam").create_instance_profile(InstanceProfileName=NAME)
    return NAME


def _function(desk: Desk) -> str:
    desk.client("lambda").create_function(
        FunctionName=NAME,
        Runtime="python3.12",
        Role=desk.client("iam").get_role(RoleName="batch")["Role"]["Arn"],
        Handler="x.y",
        Code={"S3Bucket": "bucket", "S3Key": "code"},
    )
    return NAME


def _cluster(desk: Desk) -> str:
    desk.client("eks").create_cluster(
        name="trainium-default-eks",
        roleArn=desk.client("iam").get_role(RoleName="batch")["Role"]["Arn"],
        resourcesVpcConfig={},
    )
    return "trainium-default-eks"


def _key(desk: Desk) -> str:
    tags = [{"TagKey": TAG_DEPLOYMENT, "TagValue": "default"}]
    return str(desk.client("kms").create_key(Tags=tags)["KeyMetadata"]["KeyId"])


def _log_group(desk: Desk) -> str:
    name = "/aws/eks/trainium-default-eks/cluster"
    desk.client("logs").create_log_group(logGroupName=name)
    return name


def _secret(desk: Desk) -> str:
    made = desk.client("secretsmanager").create_secret(Name=NAME, SecretString="x")
    return str(made["ARN"])


def _parameter(desk: Desk) -> str:
    name = "/trainium/default/stray"
    desk.client("ssm").put_parameter(Name=name, Value="x", Type="String")
    return name


def _stack(desk: Desk) -> str:
    body = {"Resources": {"T": {"Type": "AWS::SNS::Topic", "Properties": {}}}}
    desk.client("cloudformation").create_stack(
        StackName="trainium-default-eks", TemplateBody=json.dumps(body)
    )
    return "trainium-default-eks"


def _table(desk: Desk) -> str:
    """Of a kind without a listing: only its tag shows it."""
    made = desk.client("dynamodb").create_table(
        TableName="any",
        KeySchema=[{"AttributeName": "a", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "a", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
        Tags=TAGS,
    )
    return str(made["TableDescription"]["TableArn"])


PLANTED: dict[str, tuple[Callable[[Desk], str], float | None]] = {
    "VPC": (_vpc, 0),
    "subnet": (_subnet, 0),
    "security group": (_security_group, 0),
    "network interface": (_interface, 0),
    "address": (_address, 0.005 * HOURS_PER_MONTH),
    "NAT gateway": (_nat_gateway, 0.045 * HOURS_PER_MONTH),
    "endpoint": (_endpoint, 0.01 * HOURS_PER_MONTH),
    "launch template": (_template, 0),
    "placement group": (_placement_group, 0),
    "instance": (_instance, 1.34 * HOURS_PER_MONTH),
    "volume": (_volume, 8.0),
    "Auto Scaling group": (_group, 0),
    "bucket": (_bucket, 0),
    "tagged bucket": (_tagged_bucket, 0),
    "repository": (_repository, 0),
    "compute environment": (_environment, 0),
    "job queue": (_queue, 0),
    "job definition": (_definition, 0),
    "file system": (_file_system, 252.0),
    "role": (_role, 0),
    "instance profile": (_profile, 0),
    "function": (_function, 0),
    "cluster": (_cluster, 73.0),
    "key": (_key, 1.0),
    "log group": (_log_group, 0),
    "secret": (_secret, 0.4),
    "parameter": (_parameter, 0),
    "stack": (_stack, 0),
    "table": (_table, None),
}


@pytest.fixture
def found(desk: Desk) -> Iterator[Callable[[], dict[str, RemainingResource]]]:
    """Look; by id. The deployment of the fixture `desk` has parameters, which are left out."""
    before = {item.id for item in look(Aws(REGION), OWNER).found}

    def seen() -> dict[str, RemainingResource]:
        remains = look(Aws(REGION), OWNER)
        assert remains.unchecked == ()
        return {item.id: item for item in remains.found if item.id not in before}

    yield seen


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_leftover_is_seen_with_its_price(
    desk: Desk, kind: str, found: Callable[[], dict[str, RemainingResource]]
) -> None:
    plant, usd = PLANTED[kind]
    planted = plant(desk)
    item = found().get(planted)

    assert item is not None
    assert item.usd_per_month == (None if usd is None else pytest.approx(usd))
    if kind in {listing.kind for listing in LISTINGS}:
        assert item.kind == kind
    assert sorted_out([item], kept=[]) == ((), (item,), ())
    assert [len(part) for part in sorted_out([item], kept=[planted])] == [1, 0, 0]


def test_what_belongs_to_another_deployment_is_not_seen(
    desk: Desk, found: Callable[[], dict[str, RemainingResource]]
) -> None:
    desk.client("logs").create_log_group(logGroupName="/aws/lambda/trainium-default-b-eks-x")
    desk.client("logs").create_log_group(logGroupName="/aws/lambda/trainium-defaults-eks-x")
    tags = [{"Key": TAG_DEPLOYMENT, "Value": "other"}]
    desk.client("ec2").create_security_group(
        GroupName="trainium-default-of-another-tag",
        Description="x",
        TagSpecifications=[{"ResourceType": "security-group", "Tags": tags}],
    )

    assert found() == {}


def test_a_key_that_is_scheduled_for_deletion_goes_by_itself(
    desk: Desk, found: Callable[[], dict[str, RemainingResource]]
) -> None:
    key = _key(desk)
    desk.client("kms").schedule_key_deletion(KeyId=key, PendingWindowInDays=7)
    item = found()[key]

    assert (item.state, item.usd_per_month) == ("PendingDeletion", 0)
    assert sorted_out([item], kept=[]) == ((), (), (item,))


def test_what_the_tagging_api_still_lists_and_its_service_does_not_is_gone(
    desk: Desk,
    found: Callable[[], dict[str, RemainingResource]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stale = f"arn:aws:ec2:{REGION}:123456789012:volume/vol-gone"
    monkeypatch.setattr("jobs.teardown.remains._tagged", lambda *_: [stale])

    assert found() == {}


def test_a_missing_right_is_named_and_hides_no_other_kind(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume, key = _volume(desk), _key(desk)
    reading = Aws.reading

    def denied(aws: Aws, service: str) -> Any:
        client = reading(aws, service)
        if service == "kms":
            error = {"Error": {"Code": "AccessDeniedException", "Message": "no"}}

            def refuse(**_: Any) -> None:
                raise ClientError(error, "ListKeys")

            client.meta.events.register("before-call", refuse)
        return client

    monkeypatch.setattr(Aws, "reading", denied)
    remains = look(Aws(REGION), OWNER)
    ids = {item.id for item in remains.found}

    assert volume in ids
    assert [(item.kind, item.right, item.reason) for item in remains.unchecked] == [
        ("key", "kms:ListKeys", "the right is missing"),
        ("alias", "kms:ListAliases", "the right is missing"),
    ]
    # Its tag shows the key all the same.
    assert any(item.id.endswith(key) and item.seen_by == "tag" for item in remains.found)


def test_prices_have_a_source_and_a_month() -> None:
    assert all(price.source.startswith("https://aws.amazon.com/") for price in PRICES.values())
    assert date.fromisoformat(f"{PRICES_OF}-01")
