"""The configuration's values, and those derived from them."""

from __future__ import annotations

import re
from datetime import date, timedelta
from typing import Any

import aws_cdk as cdk
import botocore.session
import pytest

from stacks.config import AppConfig, ConfigError
from stacks.config.keys import keys_of
from stacks.config.names import LOG_RETENTION_DAYS
from trainium_catalogue.eks import OLD_IMAGE_DAYS, STANDARD_SUPPORT_ENDS, SUPPORT_WARNING_DAYS
from trainium_catalogue.instances import INSTANCE_TYPES, EfaLayout
from trainium_constructs.network import plan_subnets

EXISTING = {
    "vpc_id": "vpc-0123456789abcdef0",
    "subnet_id": "subnet-0123456789abcdef0",
    "subnet_cidr": "10.1.0.0/24",
}


KEY = "arn:aws:kms:us-west-2:111122223333:key/1234abcd"


def configured(**keys: object) -> AppConfig:
    return AppConfig.from_mapping({f"trainium:{name}": value for name, value in keys.items()})


def test_the_context_of_an_app_is_read_with_its_types() -> None:
    app = cdk.App(context={"trainium:max_nodes": 8, "trainium:retain_data": False})

    config = AppConfig.from_context(app.node)

    assert (config.max_nodes, config.retain_data) == (8, False)


def test_context_keys_of_other_tools_are_left_alone() -> None:
    others = {
        "@aws-cdk/core:checkSecretUsage": True,
        "aws:cdk:enable-path-metadata": True,
        "availability-zones:account=111111111111:region=us-west-2": ["us-west-2a"],
        "acknowledged-issue-numbers": [1],
        "cli-telemetry": False,
        "hosted-zone:domainName=example.com": {"Id": "/hostedzone/1"},
    }

    assert AppConfig.from_mapping(others) == configured()


def test_null_means_left_out() -> None:
    assert configured(max_nodes=None, vpc_id=None) == configured()


@pytest.mark.parametrize("spelling", ['["batch"]', "batch", ["batch"]])
def test_a_list_is_json_or_words_with_commas(spelling: object) -> None:
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
def test_an_image_with_a_tag_or_a_digest_is_accepted(reference: str) -> None:
    assert configured(image_uri=reference).image_uri == reference


def test_an_existing_subnet_has_no_default_zone() -> None:
    config = configured(**EXISTING)

    assert (config.zone_id, config.zone_name) == (None, None)


def test_a_zone_name_is_told_apart_from_a_zone_id() -> None:
    config = configured(availability_zone_id="us-west-2d")

    assert (config.zone_id, config.zone_name) == (None, "us-west-2d")


@pytest.mark.parametrize("instance_type", INSTANCE_TYPES)
@pytest.mark.parametrize("layout", EfaLayout)
def test_every_type_has_a_configuration_with_defaults_alone(
    instance_type: str, layout: EfaLayout
) -> None:
    region = next(iter(INSTANCE_TYPES[instance_type].zone_ids))

    config = configured(instance_type=instance_type, region=region, efa_layout=layout.value)

    assert config.zone_id in config.instance.zone_ids[region]


def test_a_type_without_efa_runs_on_one_node_by_default() -> None:
    assert configured(instance_type="trn1.2xlarge").max_nodes == 1


def test_more_vcpus_let_more_nodes_run_at_once() -> None:
    config = configured(max_nodes=2, max_vcpus=5 * 128)

    assert config.num_nodes_at_once == 5


def test_a_new_network_needs_addresses_for_nodes_and_endpoints() -> None:
    config = configured(max_nodes=2)

    assert config.addresses_needed(EfaLayout.EFA) == 2 * 9 + 4 + config.num_endpoints


def test_a_new_networks_range_is_as_narrow_as_the_plan_of_subnets_allows() -> None:
    config = configured(vpc_cidr="10.0.0.0/24", max_nodes=1)

    assert config.usable_addresses == plan_subnets("10.0.0.0/24").private_addresses
    with pytest.raises(ValueError, match="/25"):
        plan_subnets("10.0.0.0/25")


def test_a_file_system_is_in_the_zone_that_a_name_gives() -> None:
    config = configured(lustre_gib=1200, availability_zone_id="us-west-2d")

    assert config.lustre_zone_id == "us-west-2d"


def test_a_file_system_beside_the_nodes_deserves_no_warning_for_its_zone() -> None:
    config = configured(lustre_gib=1200, availability_zone_id="usw2-az1", lustre_zone_id="usw2-az1")

    assert "trainium:lustreZone" not in {warning.id for warning in config.warnings}


ON_EKS = {
    "orchestrators": "eks",
    "eks_admin_arns": "arn:aws:iam::111122223333:role/admin",
    "eks_private": "true",
}
ENDS = STANDARD_SUPPORT_ENDS["1.34"]


@pytest.mark.parametrize(
    ("before", "warned"),
    [(SUPPORT_WARNING_DAYS + 1, False), (SUPPORT_WARNING_DAYS, True), (-1, True)],
)
def test_a_version_whose_standard_support_ends_soon_is_warned_of(before: int, warned: bool) -> None:
    config = configured(**ON_EKS, kubernetes_version="1.34", eks_system_image="1.34.1-20991231")
    found = config.dated_warnings(ENDS - timedelta(days=before))

    assert [each.id for each in found] == ["trainium:supportEnds"] * warned
    assert all(str(ENDS) in each.message for each in found)


@pytest.mark.parametrize(("age", "warned"), [(OLD_IMAGE_DAYS - 1, False), (OLD_IMAGE_DAYS, True)])
def test_an_old_image_of_the_system_nodes_is_warned_of(age: int, warned: bool) -> None:
    config = configured(**ON_EKS, eks_system_image="1.35.7-20260101")
    found = config.dated_warnings(date(2026, 1, 1) + timedelta(days=age))

    assert [each.id for each in found] == ["trainium:systemImage"] * warned


def test_without_a_cluster_no_date_matters() -> None:
    assert configured().dated_warnings(date(2099, 1, 1)) == ()


def test_defaults_deserve_no_warning() -> None:
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
        ({"placement_group": "near"}, "trainium:placementGroup"),
        ({"bucket_name": "my-data"}, "trainium:existingBucket"),
        ({"bucket_name": "my-data", "bucket_kms_key_arn": KEY}, "trainium:bucketKey"),
        ({"min_nodes": 1}, "trainium:minNodes"),
        ({"lustre_gib": 1200, "availability_zone_id": "usw2-az1"}, "trainium:lustreZone"),
    ],
)
def test_what_cannot_be_checked_or_costs_money_deserves_a_warning(
    keys: dict[str, Any], identity: str
) -> None:
    config = configured(**keys)

    assert identity in {warning.id for warning in config.warnings}


def test_a_known_zone_of_an_existing_subnet_deserves_no_warning() -> None:
    config = configured(
        **EXISTING, availability_zone_id="usw2-az1", default_security_group_id="sg-01234567"
    )

    assert config.warnings == ()


@pytest.mark.parametrize(
    "keys",
    [
        {"instance_type": "trn1.2xlarge"},
        {
            "orchestrators": "eks",
            "eks_subnet_ids": "subnet-01234567",
            "eks_admin_arns": "arn:aws:iam::111111111111:role/Admin",
            "eks_endpoint_cidrs": "192.0.2.1/32",
        },
    ],
    ids=["without EFA", "without Batch"],
)
def test_the_default_group_matters_only_where_tasks_carry_it(keys: dict[str, str]) -> None:
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


EKS = {
    "orchestrators": "eks",
    "eks_admin_arns": "arn:aws:iam::111122223333:role/admin",
    "eks_private": True,
}


def test_a_cluster_comes_with_a_file_system_unless_there_is_one() -> None:
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


def test_a_cluster_takes_addresses_for_pods_and_for_itself() -> None:
    on_batch, on_eks, on_both = (
        configured(**{**EKS, "orchestrators": name}, max_nodes=2).addresses_needed(EfaLayout.EFA)
        if name != "batch"
        else configured(max_nodes=2).addresses_needed(EfaLayout.EFA)
        for name in ("batch", "eks", "both")
    )

    # 8 interfaces and a task, or 8 and the addresses of 12 pods; control plane and system nodes.
    assert (on_batch, on_eks - on_batch, on_both - on_eks) == (28, 2 * 11 + 34, 2 * 9)


def test_a_type_that_batch_is_not_known_to_take_deserves_a_warning_that_names_eks() -> None:
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
def test_versions_that_were_not_tried_together_deserve_a_warning(
    keys: dict[str, Any], identity: str
) -> None:
    assert identity in {warning.id for warning in configured(**EKS, **keys).warnings}
    assert identity not in {warning.id for warning in configured(**EKS).warnings}


def test_a_refused_list_is_shown_as_it_is_typed() -> None:
    refusal = ConfigError("trainium:eks_endpoint_cidrs", ("10.0.0.0/8", "all"), "is none", "fix it")

    assert str(refusal) == "trainium:eks_endpoint_cidrs=10.0.0.0/8,all is none; fix it"
