"""The configuration's values, and those derived from them."""

from __future__ import annotations

import re
from datetime import date, timedelta
from typing import Any

import aws_cdk as cdk
import botocore.session
import pytest
from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER

from stacks.config import AppConfig, ConfigError
from stacks.config.keys import keys_of
from stacks.config.names import LOG_RETENTION_DAYS
from trainium_catalogue.eks import OLD_IMAGE_DAYS, STANDARD_SUPPORT_ENDS, SUPPORT_WARNING_DAYS
from trainium_catalogue.instances import INSTANCE_TYPES, EfaLayout
from trainium_catalogue.zones import REGIONS_WITHOUT_BUDGETS, ZONES
from trainium_constructs.network import plan_subnets

EXISTING = {
    "vpc_id": "vpc-0123456789abcdef0",
    "subnet_id": "subnet-0123456789abcdef0",
    "subnet_cidr": "10.1.0.0/24",
}

EKS = {
    "orchestrators": "eks",
    "eks_admin_arns": "arn:aws:iam::111122223333:role/admin",
    "eks_private": "true",
}
BUDGET = {"monthly_budget_usd": 5000, "notify_email": "team@example.com"}
TOPIC = "arn:aws:sns:us-west-2:111122223333:runs"
KEY = "arn:aws:kms:us-west-2:111122223333:key/1234abcd"


def configured(**keys: object) -> AppConfig:
    return AppConfig.from_mapping({f"trainium:{name}": value for name, value in keys.items()})


def test_context_of_an_app_is_read_with_its_types() -> None:
    app = cdk.App(context={"trainium:max_nodes": 8, "trainium:retain_data": False})

    config = AppConfig.from_context(app.node)

    assert (config.max_nodes, config.retain_data) == (8, False)


def test_context_keys_of_other_tools_are_ignored() -> None:
    others = {
        "@aws-cdk/core:checkSecretUsage": True,
        "aws:cdk:enable-path-metadata": True,
        "availability-zones:account=111111111111:region=us-west-2": ["us-west-2a"],
        "acknowledged-issue-numbers": [1],
        "cli-telemetry": False,
        "hosted-zone:domainName=example.com": {"Id": "/hostedzone/1"},
    }

    assert AppConfig.from_mapping(others) == configured()


def test_null_means_unset() -> None:
    assert configured(max_nodes=None, vpc_id=None) == configured()


@pytest.mark.parametrize("spelling", ['["batch"]', "batch", ["batch"]])
def test_list_is_json_or_comma_separated(spelling: object) -> None:
    assert configured(orchestrators=spelling).orchestrators == ("batch",)


@pytest.mark.parametrize(
    "reference",
    [
        "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training-neuronx:2.9.0-sdk2.28.0",
        "public.ecr.aws/neuron/pytorch-training-neuronx:2.9.0-neuronx-py312-sdk2.30.0-ubuntu24.04",
        "localhost:5000/me/it@sha256:" + "0" * 64,
        "me/it:latest@sha256:" + "f" * 64,
    ],
)
def test_image_with_a_tag_or_a_digest_is_accepted(reference: str) -> None:
    assert configured(image_uri=reference).image_uri == reference


def test_existing_subnet_has_no_default_zone() -> None:
    config = configured(**EXISTING)

    assert (config.zone_id, config.zone_name) == (None, None)


def test_zone_name_is_distinguished_from_zone_id() -> None:
    config = configured(availability_zone_id="us-west-2d")

    assert (config.zone_id, config.zone_name) == (None, "us-west-2d")


@pytest.mark.parametrize("instance_type", INSTANCE_TYPES)
@pytest.mark.parametrize("layout", EfaLayout)
def test_every_type_has_valid_default_configuration(instance_type: str, layout: EfaLayout) -> None:
    region = next(iter(INSTANCE_TYPES[instance_type].zone_ids))

    config = configured(instance_type=instance_type, region=region, efa_layout=layout.value)

    assert config.zone_id in config.instance.zone_ids[region]


def test_first_zone_holds_nodes_and_does_not_move_file_system() -> None:
    config = configured(zone_ids="usw2-az1,usw2-az4", lustre_gib=1200)

    assert config.zone_ids == ("usw2-az1", "usw2-az4")
    assert (config.zone_id, config.lustre_zone_id) == ("usw2-az1", "usw2-az4")


def test_type_without_efa_runs_on_one_node_by_default() -> None:
    assert configured(instance_type="trn1.2xlarge").max_nodes == 1


def test_more_vcpus_allow_more_concurrent_nodes() -> None:
    config = configured(max_nodes=2, max_vcpus=5 * 128)

    assert config.max_concurrent_nodes == 5


def test_new_network_needs_addresses_for_nodes_and_endpoints() -> None:
    config = configured(max_nodes=2)

    assert config.addresses_needed(EfaLayout.EFA) == 2 * 9 + 4 + config.num_endpoints


def test_new_network_range_has_smallest_size_for_subnet_plan() -> None:
    config = configured(vpc_cidr="10.0.0.0/24", max_nodes=1)

    assert config.usable_addresses == plan_subnets("10.0.0.0/24").private_addresses
    with pytest.raises(ValueError, match="/25"):
        plan_subnets("10.0.0.0/25")


def test_file_system_is_in_named_zone() -> None:
    config = configured(lustre_gib=1200, availability_zone_id="us-west-2d")

    assert config.lustre_zone_id == "us-west-2d"


def test_file_system_in_node_zone_causes_no_warning() -> None:
    config = configured(lustre_gib=1200, availability_zone_id="usw2-az1", lustre_zone_id="usw2-az1")

    assert "trainium:lustreZone" not in {warning.id for warning in config.warnings}


ENDS = STANDARD_SUPPORT_ENDS["1.34"]


@pytest.mark.parametrize(
    ("before", "warned"),
    [(SUPPORT_WARNING_DAYS + 1, False), (SUPPORT_WARNING_DAYS, True), (-1, True)],
)
def test_version_near_end_of_standard_support_causes_warning(before: int, warned: bool) -> None:
    config = configured(**EKS, kubernetes_version="1.34", eks_system_image="1.34.1-20991231")
    found = config.dated_warnings(ENDS - timedelta(days=before))

    assert [each.id for each in found] == ["trainium:supportEnds"] * warned
    assert all(str(ENDS) in each.message for each in found)


@pytest.mark.parametrize(("age", "warned"), [(OLD_IMAGE_DAYS - 1, False), (OLD_IMAGE_DAYS, True)])
def test_old_system_node_image_causes_warning(age: int, warned: bool) -> None:
    config = configured(**EKS, eks_system_image="1.35.7-20260101")
    found = config.dated_warnings(date(2026, 1, 1) + timedelta(days=age))

    assert [each.id for each in found] == ["trainium:systemImage"] * warned


def test_dates_are_not_checked_without_cluster() -> None:
    assert configured().dated_warnings(date(2099, 1, 1)) == ()


def test_budget_is_refused_in_region_without_cloudformation_support() -> None:
    """The reference is CloudFormation's registry, as included in cfn-lint."""
    budget = "AWS::Budgets::Budget"
    without = {r for r in ZONES if budget not in PROVIDER_SCHEMA_MANAGER.get_resource_types(r)}

    assert without == REGIONS_WITHOUT_BUDGETS


def test_defaults_cause_no_warning() -> None:
    assert configured().warnings == ()


@pytest.mark.parametrize(
    ("keys", "identity"),
    [
        ({"availability_zone_id": "us-west-2a"}, "trainium:zoneName"),
        (EXISTING, "trainium:subnetZone"),
        (EXISTING, "trainium:defaultSecurityGroup"),
        (EXISTING | {"security_group_id": "sg-01234567"}, "trainium:securityGroup"),
        ({"ami_id": "ami-01234567"}, "trainium:hostImage"),
        ({"image_uri": "me/it:1"}, "trainium:containerImage"),
        ({"base_image": "me/it:1"}, "trainium:containerImage"),
        ({"capacity_reservation_id": "cr-01234567"}, "trainium:reservation"),
        ({"capacity_block_id": "cr-01234567"}, "trainium:reservation"),
        (BUDGET | {"capacity_block_id": "cr-01234567"}, "trainium:blockBudget"),
        ({"placement_group": "near"}, "trainium:placementGroup"),
        ({"bucket_name": "my-data"}, "trainium:existingBucket"),
        ({"notify_topic_arn": TOPIC}, "trainium:notifyTopic"),
        ({"notify_topic_arn": TOPIC, "monthly_budget_usd": 5000}, "trainium:budgetTopic"),
        ({"bucket_name": "my-data", "bucket_kms_key_arn": KEY}, "trainium:bucketKey"),
        ({"min_nodes": 1}, "trainium:minNodes"),
        ({"lustre_gib": 1200, "availability_zone_id": "usw2-az1"}, "trainium:lustreZone"),
        ({"lustre_gib": 1200, "zone_ids": "usw2-az4,usw2-az1"}, "trainium:lustreZone"),
    ],
)
def test_unverifiable_or_costly_settings_cause_warning(keys: dict[str, Any], identity: str) -> None:
    config = configured(**keys)

    assert identity in {warning.id for warning in config.warnings}


def test_known_zone_of_existing_subnet_causes_no_warning() -> None:
    config = configured(
        **EXISTING, availability_zone_id="usw2-az1", default_security_group_id="sg-01234567"
    )

    assert config.warnings == ()


@pytest.mark.parametrize(
    "keys",
    [
        {"instance_type": "trn1.2xlarge"},
        {**EKS, "eks_subnet_ids": "subnet-01234567"},
    ],
    ids=["without EFA", "without Batch"],
)
def test_default_group_matters_only_if_tasks_have_it(keys: dict[str, str]) -> None:
    config = configured(**EXISTING | {"subnet_cidr": "10.1.0.0/20"}, **keys)

    assert "trainium:defaultSecurityGroup" not in {warning.id for warning in config.warnings}


def test_retention_periods_are_those_of_the_service() -> None:
    logs = botocore.session.get_session().get_service_model("logs")
    text = logs.operation_model("PutRetentionPolicy").input_shape.members["retentionInDays"]

    documented = {int(number) for number in re.findall(r"[0-9]+", text.documentation)}

    assert documented >= LOG_RETENTION_DAYS


def test_every_key_of_the_issue_exists() -> None:
    # Scripts rely on these names.
    promised = {
        *("deployment", "orchestrators", "region", "availability_zone_id", "vpc_cidr", "vpc_id"),
        *("subnet_id", "subnet_cidr", "security_group_id", "nat_gateways", "interface_endpoints"),
        *("instance_type", "max_nodes", "min_nodes", "efa_layout", "neuron_release", "base_image"),
        *("image_uri", "ami_id", "root_volume_gib", "log_retention_days"),
        *("capacity_reservation_id", "capacity_block_id", "scale_down_delay_minutes"),
        *("runnable_time_limit_minutes", "job_time_limit_hours", "bucket_name", "retain_data"),
    }

    assert promised <= set(keys_of(AppConfig))


def test_cluster_creates_file_system_unless_one_exists() -> None:
    existing = {
        "lustre_dns_name": "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
        "lustre_mount_name": "fqgwbbmv",
        "lustre_security_group_id": "sg-87654321",
        "vpc_id": "vpc-12345678",
        "subnet_id": "subnet-12345678",
        "subnet_cidr": "10.0.0.0/20",
        "eks_subnet_ids": "subnet-87654321",
    }

    assert (configured().lustre_gib, configured(**EKS).lustre_gib) == (0, 1200)
    assert configured(**EKS, **existing).lustre_gib == 0


def test_cluster_needs_addresses_for_pods_and_control_plane() -> None:
    on_batch, on_eks, on_both = (
        configured(**{**EKS, "orchestrators": name}, max_nodes=2).addresses_needed(EfaLayout.EFA)
        if name != "batch"
        else configured(max_nodes=2).addresses_needed(EfaLayout.EFA)
        for name in ("batch", "eks", "both")
    )

    # 8 interfaces and a task, or 8 and the addresses of 12 pods; control plane and system nodes.
    assert (on_batch, on_eks - on_batch, on_both - on_eks) == (28, 2 * 11 + 34, 2 * 9)


def test_type_not_known_to_batch_causes_warning_naming_eks() -> None:
    trn2 = {"instance_type": "trn2.48xlarge", "region": "us-east-2"}
    (warning,) = (
        warning
        for warning in configured(**trn2).warnings
        if warning.id == "trainium:batchInstanceType"
    )

    assert "trainium:orchestrators=eks" in warning.message
    for quiet in (configured(), configured(**EKS, **trn2)):
        assert "trainium:batchInstanceType" not in {found.id for found in quiet.warnings}


@pytest.mark.parametrize(
    ("keys", "identity"),
    [
        ({"kubernetes_version": "1.36"}, "trainium:volcanoKubernetes"),
        ({"eks_chart_versions": "efa=v0.5.29"}, "trainium:chartVersions"),
    ],
)
def test_untested_version_combination_causes_warning(keys: dict[str, Any], identity: str) -> None:
    assert identity in {warning.id for warning in configured(**EKS, **keys).warnings}
    assert identity not in {warning.id for warning in configured(**EKS).warnings}


def test_refused_list_is_shown_as_typed() -> None:
    refusal = ConfigError("trainium:eks_endpoint_cidrs", ("10.0.0.0/8", "all"), "is none", "fix it")

    assert str(refusal) == "trainium:eks_endpoint_cidrs=10.0.0.0/8,all is none; fix it"
