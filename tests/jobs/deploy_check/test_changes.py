"""What an update changes follows from the templates, across references and stacks."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.deploy_check.changes import Fate, Update
from jobs.deploy_check.replacements import Replacements
from tests.jobs.deploy_check.conftest import (
    BATCH,
    NETWORK,
    STORAGE,
    Json,
    changes,
    environment,
    launch_template,
    resource,
    subnet,
    template,
)

SUBNET_EXPORT = f"{NETWORK}:Subnet"


def fates(old: Json, new: Json, replacements: Replacements) -> dict[str, Fate]:
    update = Update(old, new, replacements)
    return {name: change.fate for name, change in changes(update).items()}


def test_templates_that_are_alike_change_nothing(replacements: Replacements) -> None:
    same = {NETWORK: template({"Subnet": subnet()}, {SUBNET_EXPORT: {"Ref": "Subnet"}})}
    update = Update(same, same, replacements)

    assert (update.changes(), update.exports()) == ([], [])


def test_what_cloudformation_reads_alike_is_no_change(replacements: Replacements) -> None:
    """The CLI sends small templates as YAML, which is read back as text."""
    old = {NETWORK: template({"P": resource("AWS::EC2::VPC", {"Dns": "true", "N": "5"})})}
    new = {NETWORK: template({"P": resource("AWS::EC2::VPC", {"Dns": True, "N": 5})})}

    assert fates(old, new, replacements) == {}


def test_a_property_with_one_key_is_no_expression(replacements: Replacements) -> None:
    def stack(days: int) -> Json:
        properties = {"BucketName": "b", "RefreshPolicy": {"RefreshDays": {"Days": days}}}
        return {STORAGE: template({"Data": resource("AWS::S3::Bucket", properties)})}

    (change,) = Update(stack(1), stack(2), replacements).changes()

    assert change.reasons == ["RefreshPolicy.RefreshDays.Days"]


def test_resources_come_and_go(replacements: Replacements) -> None:
    old = {NETWORK: template({"Old": subnet()})}
    new = {NETWORK: template({"New": subnet()})}

    assert fates(old, new, replacements) == {"Old": Fate.REMOVED, "New": Fate.ADDED}


def test_another_zone_replaces_a_subnet(replacements: Replacements) -> None:
    old = {NETWORK: template({"Subnet": subnet(zone="usw2-az4")})}
    new = {NETWORK: template({"Subnet": subnet(zone="usw2-az1")})}
    (change,) = Update(old, new, replacements).changes()

    assert (change.fate, change.reasons) == (Fate.REPLACED, ["AvailabilityZoneId"])


def test_who_names_a_replaced_resource_gets_another_value(replacements: Replacements) -> None:
    def stack(zone: str) -> Json:
        file_system = resource("AWS::FSx::FileSystem", {"SubnetIds": [{"Ref": "Subnet"}]})
        return {NETWORK: template({"Subnet": subnet(zone=zone), "Files": file_system})}

    found = fates(stack("usw2-az4"), stack("usw2-az1"), replacements)

    assert found == {"Subnet": Fate.REPLACED, "Files": Fate.REPLACED}


@pytest.mark.parametrize(
    "expression",
    [
        {"Fn::ImportValue": SUBNET_EXPORT},
        {"Fn::Join": ["", ["x", {"Fn::ImportValue": SUBNET_EXPORT}]]},
        "{{resolve:ssm:/trainium/default/subnet}}",
        {"Fn::Sub": "{{resolve:ssm:/trainium/default/subnet}}"},
        {"Ref": "SubnetParameter"},
    ],
)
def test_so_does_who_imports_it_or_reads_its_parameter(
    replacements: Replacements, expression: Any
) -> None:
    parameter = {
        "Type": "AWS::SSM::Parameter::Value<String>",
        "Default": "/trainium/default/subnet",
    }

    def stacks(zone: str) -> Json:
        published = {"Name": "/trainium/default/subnet", "Value": {"Ref": "Subnet"}}
        return {
            NETWORK: template(
                {
                    "Subnet": subnet(zone=zone),
                    "Published": resource("AWS::SSM::Parameter", published),
                },
                {SUBNET_EXPORT: {"Ref": "Subnet"}},
            ),
            STORAGE: template(
                {"Files": resource("AWS::FSx::FileSystem", {"SubnetIds": [expression]})},
                Parameters={"SubnetParameter": parameter},
            ),
        }  # fmt: skip

    assert fates(stacks("usw2-az4"), stacks("usw2-az1"), replacements)["Files"] is Fate.REPLACED


@pytest.mark.parametrize(
    "expression",
    [
        {"Fn::GetAtt": ["Template", "LatestVersionNumber"]},
        {"Fn::GetAtt": "Template.LatestVersionNumber"},
        {"Fn::Sub": "${Template.LatestVersionNumber}"},
        {"Fn::Sub": ["${V}", {"V": {"Fn::GetAtt": ["Template", "LatestVersionNumber"]}}]},
    ],
)
def test_a_launch_template_that_changes_has_another_version(
    replacements: Replacements, expression: Any
) -> None:
    def stack(size: int) -> Json:
        launch = {"LaunchTemplateId": {"Ref": "Template"}, "Version": expression}
        resources = {"Template": launch_template(size), "E": environment(LaunchTemplate=launch)}
        return {BATCH: template(resources)}

    found = changes(Update(stack(200), stack(300), replacements))

    assert found["E"].reasons == ["ComputeResources.LaunchTemplate.Version"]
    assert (found["Template"].fate, found["E"].fate) == (Fate.UPDATED, Fate.UPDATED)


def test_another_default_of_a_parameter_is_another_value(replacements: Replacements) -> None:
    def stack(image: str) -> Json:
        one = environment(ImageId={"Ref": "Image"})
        return {BATCH: template({"E": one}, Parameters={"Image": {"Default": image}})}

    found = changes(Update(stack("/old"), stack("/new"), replacements))

    assert found["E"].reasons == ["ComputeResources.ImageId"]


def test_tags_of_a_launch_template_make_no_version(replacements: Replacements) -> None:
    def stack(tag: str) -> Json:
        tagged = launch_template()
        tagged["Properties"]["TagSpecifications"] = [{"ResourceType": tag}]
        return {BATCH: template({"Template": tagged, "E": environment()})}

    assert fates(stack("a"), stack("b"), replacements) == {"Template": Fate.UPDATED}


def test_an_environment_is_replaced_only_where_it_says_so(replacements: Replacements) -> None:
    def stack(subnet_id: str, replace: bool) -> Json:
        one = environment(replace=replace, Subnets=[subnet_id])
        return {BATCH: template({"Template": launch_template(), "E": one})}

    for replace, fate in ((False, Fate.UPDATED), (True, Fate.REPLACED)):
        found = fates(stack("subnet-1", replace), stack("subnet-2", replace), replacements)

        assert found == {"E": fate}


def test_a_condition_that_is_not_known_may_replace(replacements: Replacements) -> None:
    def stack(block: str) -> Json:
        uses = {"SubnetIds": [{"Ref": "Subnet"}]}
        cidr = subnet()
        cidr["Properties"]["Ipv6CidrBlock"] = block
        return {NETWORK: template({"Subnet": cidr, "F": resource("AWS::FSx::FileSystem", uses)})}

    found = fates(stack("2001:db8::/64"), stack("2001:db8:1::/64"), replacements)

    assert found == {"Subnet": Fate.MAYBE_REPLACED, "F": Fate.MAYBE_REPLACED}


def test_an_export_in_use_that_gets_another_value_is_found(replacements: Replacements) -> None:
    def stacks(zone: str) -> Json:
        uses = resource("AWS::FSx::FileSystem", {"SubnetIds": [{"Fn::ImportValue": SUBNET_EXPORT}]})
        exports = {SUBNET_EXPORT: {"Ref": "Subnet"}, f"{NETWORK}:Unused": {"Ref": "Subnet"}}
        return {
            NETWORK: template({"Subnet": subnet(zone=zone)}, exports),
            STORAGE: template({"Files": uses}),
        }

    (found,) = Update(stacks("usw2-az4"), stacks("usw2-az1"), replacements).exports()

    assert (found.name, found.removed, found.importers) == (SUBNET_EXPORT, False, (STORAGE,))
    assert found.still_imported


@pytest.mark.parametrize("stays", [True, False], ids=["left behind", "imports it no longer"])
def test_an_export_in_use_that_goes_is_found(replacements: Replacements, stays: bool) -> None:
    uses = resource("AWS::FSx::FileSystem", {"SubnetIds": [{"Fn::ImportValue": SUBNET_EXPORT}]})
    old = {
        NETWORK: template({"Subnet": subnet()}, {SUBNET_EXPORT: {"Ref": "Subnet"}}),
        STORAGE: template({"Files": uses}),
    }
    new = {NETWORK: template({"Subnet": subnet()})}
    (found,) = Update(old, new if stays else {**new, STORAGE: template({})}, replacements).exports()

    assert (found.removed, found.importers, found.still_imported) == (True, (STORAGE,), stays)
