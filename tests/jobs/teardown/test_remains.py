"""Resources that `jobs down` finds: planted leftovers of every kind, and no others."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import date
from typing import Any

import pytest
from botocore.exceptions import ClientError
from botocore.session import Session

from jobs.aws import Aws
from jobs.teardown.receipt import split
from jobs.teardown.remains import Ownership, RemainingResource, find_remains
from tests.jobs.conftest import ACCOUNT, REGION, Cli
from trainium_catalogue.account_listings import LISTINGS, Listing
from trainium_catalogue.contract import TAG_DEPLOYMENT
from trainium_catalogue.prices import HOURS_PER_MONTH, PRICES, PRICES_OF

NAME = "trainium-default-batch-left"
TAG = {"Key": TAG_DEPLOYMENT, "Value": "default"}
TAGS = [TAG]
TRUST = json.dumps({"Version": "2012-10-17", "Statement": []})
OWNER = Ownership(
    deployment="default", other_deployments=frozenset({"default-b"}), physical_ids=frozenset()
)


def _tagged(resource: str) -> list[dict[str, Any]]:
    return [{"ResourceType": resource, "Tags": TAGS}]


def _vpc(cli: Cli) -> str:
    ec2 = cli.client("ec2")
    made = ec2.create_vpc(CidrBlock="10.9.0.0/16", TagSpecifications=_tagged("vpc"))
    return str(made["Vpc"]["VpcId"])


def _subnet(cli: Cli) -> str:
    made = cli.client("ec2").create_subnet(
        VpcId=_vpc(cli), CidrBlock="10.9.1.0/24", TagSpecifications=_tagged("subnet")
    )
    return str(made["Subnet"]["SubnetId"])


def _security_group(cli: Cli) -> str:
    made = cli.client("ec2").create_security_group(GroupName=NAME, Description="x", VpcId=_vpc(cli))
    return str(made["GroupId"])


def _interface(cli: Cli) -> str:
    made = cli.client("ec2").create_network_interface(
        SubnetId=_subnet(cli), Description=f"AWS Lambda VPC ENI-{NAME}"
    )
    return str(made["NetworkInterface"]["NetworkInterfaceId"])


def _address(cli: Cli) -> str:
    made = cli.client("ec2").allocate_address(Domain="vpc", TagSpecifications=_tagged("elastic-ip"))
    return str(made["AllocationId"])


def _nat_gateway(cli: Cli) -> str:
    made = cli.client("ec2").create_nat_gateway(
        SubnetId=_subnet(cli),
        AllocationId=_address(cli),
        TagSpecifications=_tagged("natgateway"),
    )
    return str(made["NatGateway"]["NatGatewayId"])


def _endpoint(cli: Cli) -> str:
    made = cli.client("ec2").create_vpc_endpoint(
        VpcId=_vpc(cli),
        ServiceName=f"com.amazonaws.{REGION}.ecr.api",
        VpcEndpointType="Interface",
        SubnetIds=[_subnet(cli)],
        TagSpecifications=_tagged("vpc-endpoint"),
    )
    return str(made["VpcEndpoint"]["VpcEndpointId"])


def _template(cli: Cli, name: str) -> str:
    made = cli.client("ec2").create_launch_template(
        LaunchTemplateName=name, LaunchTemplateData={"InstanceType": "t3.micro"}
    )
    return str(made["LaunchTemplate"]["LaunchTemplateId"])


def _instance(cli: Cli) -> str:
    made = cli.client("ec2").run_instances(
        ImageId="ami-12345678",
        MinCount=1,
        MaxCount=1,
        InstanceType="trn1.2xlarge",
        TagSpecifications=_tagged("instance"),
    )
    return str(made["Instances"][0]["InstanceId"])


def _volume(cli: Cli) -> str:
    made = cli.client("ec2").create_volume(
        AvailabilityZone=f"{REGION}a", Size=100, TagSpecifications=_tagged("volume")
    )
    return str(made["VolumeId"])


def _group(cli: Cli) -> str:
    cli.client("autoscaling").create_auto_scaling_group(
        AutoScalingGroupName="eks-nodes",
        MinSize=0,
        MaxSize=1,
        LaunchTemplate={"LaunchTemplateId": _template(cli, "of-the-group")},
        AvailabilityZones=[f"{REGION}a"],
        Tags=[{"Key": "eks:cluster-name", "Value": "trainium-default-eks"}],
    )
    return "eks-nodes"


def _bucket(cli: Cli) -> str:
    place = {"LocationConstraint": REGION}
    cli.client("s3").create_bucket(Bucket=NAME, CreateBucketConfiguration=place)
    return NAME


def _tagged_bucket(cli: Cli) -> str:
    place = {"LocationConstraint": REGION}
    cli.client("s3").create_bucket(Bucket="by-tag", CreateBucketConfiguration=place)
    cli.client("s3").put_bucket_tagging(Bucket="by-tag", Tagging={"TagSet": TAGS})
    return "by-tag"


def _repository(cli: Cli) -> str:
    cli.client("ecr").create_repository(repositoryName="trainium-default")
    return "trainium-default"


def _file_system(cli: Cli) -> str:
    made = cli.client("fsx").create_file_system(
        FileSystemType="LUSTRE",
        StorageCapacity=1200,
        SubnetIds=[_subnet(cli)],
        LustreConfiguration={
            "DeploymentType": "PERSISTENT_2",
            "PerUnitStorageThroughput": 250,
        },
        Tags=TAGS,
    )
    return str(made["FileSystem"]["FileSystemId"])


def _cluster(cli: Cli) -> str:
    cli.client("eks").create_cluster(
        name="trainium-default-eks",
        roleArn=cli.client("iam").get_role(RoleName="batch")["Role"]["Arn"],
        resourcesVpcConfig={},
    )
    return "trainium-default-eks"


def _key(cli: Cli) -> str:
    tags = [{"TagKey": TAG_DEPLOYMENT, "TagValue": "default"}]
    return str(cli.client("kms").create_key(Tags=tags)["KeyMetadata"]["KeyId"])


def _log_group(cli: Cli) -> str:
    name = "/aws/eks/trainium-default-eks/cluster"
    cli.client("logs").create_log_group(logGroupName=name)
    return name


def _secret(cli: Cli) -> str:
    made = cli.client("secretsmanager").create_secret(Name=NAME, SecretString="x")
    return str(made["ARN"])


def _budget(cli: Cli) -> str:
    limit = {"Amount": "1", "Unit": "USD"}
    budget = {"BudgetName": NAME, "BudgetType": "COST", "TimeUnit": "MONTHLY", "BudgetLimit": limit}
    cli.client("budgets").create_budget(AccountId=ACCOUNT, Budget=budget)
    return NAME


def _table(cli: Cli) -> str:
    """Create a resource of a kind without a listing, found only by its tag."""
    made = cli.client("dynamodb").create_table(
        TableName="any",
        KeySchema=[{"AttributeName": "a", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "a", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
        Tags=TAGS,
    )
    return str(made["TableDescription"]["TableArn"])


PLANTED: dict[str, tuple[Callable[[Cli], str], float | None]] = {
    "security group": (_security_group, 0),
    "network interface": (_interface, 0),
    "address": (_address, 0.005 * HOURS_PER_MONTH),
    "NAT gateway": (_nat_gateway, 0.045 * HOURS_PER_MONTH),
    "endpoint": (_endpoint, 0.01 * HOURS_PER_MONTH),
    "instance": (_instance, 1.34375 * HOURS_PER_MONTH),
    "volume": (_volume, 8.0),
    "Auto Scaling group": (_group, 0),
    "bucket": (_bucket, 0),
    "tagged bucket": (_tagged_bucket, 0),
    "repository": (_repository, 0),
    "file system": (_file_system, 252.0),
    "cluster": (_cluster, 73.0),
    "key": (_key, 1.0),
    "log group": (_log_group, 0),
    "secret": (_secret, 0.4),
    "budget": (_budget, 0),
    "table": (_table, None),
}


LISTED = {listing.kind for listing in LISTINGS}


@pytest.fixture
def found(cli: Cli) -> Iterator[Callable[[], list[RemainingResource]]]:
    """Return the findings without the parameters of the fixture `cli`."""
    before = {item.id for item in find_remains(Aws(REGION), OWNER).found}

    def seen() -> list[RemainingResource]:
        remains = find_remains(Aws(REGION), OWNER)
        assert remains.unchecked == ()
        return [item for item in remains.found if item.id not in before]

    yield seen


@pytest.mark.parametrize("listing", LISTINGS, ids=lambda listing: listing.kind)
def test_listing_matches_service_model(listing: Listing) -> None:
    client = Session().create_client(listing.service, region_name=REGION)
    operation = client.meta.method_to_api_mapping[listing.operation]
    item: Any = client.meta.service_model.operation_model(operation).output_shape
    for name in re.sub(r"\[[^]]*\]", "", listing.items).split("."):
        item = item.members[name].member

    assert listing.id in item.members if listing.id else item.type_name == "string"


def test_planted_leftovers_are_found_with_price(
    cli: Cli, found: Callable[[], list[RemainingResource]]
) -> None:
    planted = {kind: plant(cli) for kind, (plant, _) in PLANTED.items()}
    items = {
        kind: item
        for item in found()
        for kind, id in planted.items()
        if item.id == id and (item.kind == kind or kind not in LISTED)
    }

    assert {kind: item.usd_per_month for kind, item in items.items()} == {
        kind: usd if usd is None else pytest.approx(usd) for kind, (_, usd) in PLANTED.items()
    }
    for item in items.values():
        assert split([item], kept=[]) == ((), (item,), ())
        assert [len(part) for part in split([item], kept=[item.id])] == [1, 0, 0]


def test_resources_of_other_deployments_are_ignored(
    cli: Cli, found: Callable[[], list[RemainingResource]]
) -> None:
    cli.client("logs").create_log_group(logGroupName="/aws/lambda/trainium-default-b-eks-x")
    cli.client("logs").create_log_group(logGroupName="/aws/lambda/trainium-defaults-eks-x")
    tags = [{"Key": TAG_DEPLOYMENT, "Value": "other"}]
    cli.client("ec2").create_security_group(
        GroupName="trainium-default-of-another-tag",
        Description="x",
        TagSpecifications=[{"ResourceType": "security-group", "Tags": tags}],
    )

    assert found() == []


def test_key_scheduled_for_deletion_needs_no_action(
    cli: Cli, found: Callable[[], list[RemainingResource]]
) -> None:
    key = _key(cli)
    cli.client("kms").schedule_key_deletion(KeyId=key, PendingWindowInDays=7)
    (item,) = (each for each in found() if each.id == key)

    assert (item.state, item.usd_per_month) == ("PendingDeletion", 0)
    assert split([item], kept=[]) == ((), (), (item,))


def test_stale_tagging_entry_is_ignored(
    cli: Cli,
    found: Callable[[], list[RemainingResource]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stale = f"arn:aws:ec2:{REGION}:123456789012:volume/vol-gone"
    monkeypatch.setattr("jobs.teardown.remains._tagged", lambda *_: [stale])

    assert found() == []


def test_missing_permission_is_named_and_hides_no_other_kind(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume, key = _volume(cli), _key(cli)
    make = Aws.client

    def denied(aws: Aws, service: str) -> Any:
        client = make(aws, service)
        if service == "kms":
            error = {"Error": {"Code": "AccessDeniedException", "Message": "no"}}

            def refuse(**_: Any) -> None:
                raise ClientError(error, "ListKeys")

            client.meta.events.register("before-call", refuse)
        return client

    monkeypatch.setattr(Aws, "client", denied)
    remains = find_remains(Aws(REGION), OWNER)
    ids = {item.id for item in remains.found}

    assert volume in ids
    assert [(item.kind, item.permission, item.reason) for item in remains.unchecked] == [
        ("key", "kms:ListKeys", "the permission is missing"),
        ("alias", "kms:ListAliases", "the permission is missing"),
    ]
    # The key is still found by its tag.
    assert any(item.id.endswith(key) and item.seen_by == "tag" for item in remains.found)


def test_prices_have_source_and_month() -> None:
    assert all(price.source.startswith("https://aws.amazon.com/") for price in PRICES.values())
    assert date.fromisoformat(f"{PRICES_OF}-01")
