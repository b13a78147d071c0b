"""The network stack: traffic between nodes, and egress."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Any

import pytest

from tests.stacks.synthesis import EXISTING_NETWORK as EXISTING
from tests.stacks.synthesis import Deployment, deployment
from trainium_catalogue.zones import INTERFACE_ENDPOINTS

PRIVATE = "NodesPrivate"


def subnets(made: Deployment, start: str) -> list[dict[str, Any]]:
    resources = made.templates["network"]["Resources"]
    return [
        resources[logical_id]["Properties"]
        for logical_id in made.logical_ids("network", "AWS::EC2::Subnet", start)
    ]


def environment(made: Deployment) -> dict[str, Any]:
    found = made.only("batch", "AWS::Batch::ComputeEnvironment")["ComputeResources"]
    return dict(found)


def test_zone_name_has_subnet_and_second_zone_for_cluster() -> None:
    made = deployment(availability_zone_id="us-west-2d")

    zones = [
        (properties.get("AvailabilityZoneId"), properties.get("AvailabilityZone"))
        for properties in subnets(made, PRIVATE)
    ]

    assert zones == [(None, "us-west-2d"), (None, "us-west-2a")]


def test_zone_change_affects_only_compute_environment() -> None:
    here, there = deployment(), deployment(availability_zone_id="usw2-az1")

    changed = [
        (part, logical_id)
        for part, template in here.templates.items()
        for logical_id, resource in template["Resources"].items()
        if there.templates[part]["Resources"].get(logical_id) != resource
    ]

    (compute,) = here.logical_ids("batch", "AWS::Batch::ComputeEnvironment")
    assert changed == [("batch", compute)]
    assert {part: template.keys() for part, template in here.templates.items()} == {
        part: template.keys() for part, template in there.templates.items()
    }


def test_nodes_change_subnet_and_placement_group_with_their_zone() -> None:
    here, there = (environment(deployment(availability_zone_id=zone)) for zone in
                   ("usw2-az4", "usw2-az1"))  # fmt: skip

    assert {key for key in here if here[key] != there[key]} == {"PlacementGroup", "Subnets"}
    assert len(here["Subnets"]) == len(there["Subnets"]) == 1


@pytest.mark.parametrize("keys", [{"max_nodes": 100}, {"availability_zone_id": "usw2-az1"}])
def test_node_subnets_have_promised_size_in_every_zone(keys: dict[str, object]) -> None:
    made = deployment(**keys)

    for found in subnets(made, PRIVATE):
        room = IPv4Network(str(found["CidrBlock"])).num_addresses - 5
        assert room == made.config.usable_addresses
        assert room >= made.config.addresses_needed(made.config.efa_layout)


def test_egress_paths_stay_when_node_zone_changes() -> None:
    made = deployment(availability_zone_id="usw2-az1")

    (public,) = subnets(made, "NodesPublic")
    interfaces = [
        endpoint["SubnetIds"]
        for endpoint in made.resources("network", "AWS::EC2::VPCEndpoint")
        if endpoint["VpcEndpointType"] == "Interface"
    ]
    (home,) = made.logical_ids("network", "AWS::EC2::Subnet", "NodesPrivateUsw2Az4")

    assert public["AvailabilityZoneId"] == "usw2-az4"
    assert interfaces == [[{"Ref": home}]] * len(INTERFACE_ENDPOINTS)


def test_no_nat_gateway_without_need() -> None:
    made = deployment(nat_gateways=0, ami_id="ami-12345678")

    assert made.resources("network", "AWS::EC2::NatGateway") == []


def test_endpoints_can_be_left_out() -> None:
    made = deployment(interface_endpoints=False)

    kinds = {e["VpcEndpointType"] for e in made.resources("network", "AWS::EC2::VPCEndpoint")}

    assert kinds == {"Gateway"}


def test_flow_logs_have_configured_retention() -> None:
    made = deployment(log_retention_days=14)

    assert made.only("network", "AWS::EC2::FlowLog")["TrafficType"] == "ALL"
    assert made.only("network", "AWS::Logs::LogGroup")["RetentionInDays"] == 14


def default_group_rules(made: Deployment) -> list[dict[str, object]]:
    """List the rules that the template adds to the default security group of its VPC."""
    return [
        rule
        for direction in ("Ingress", "Egress")
        for rule in made.resources("network", f"AWS::EC2::SecurityGroup{direction}")
        if "DefaultSecurityGroup" in str(rule["GroupId"])
    ]


def test_existing_default_group_is_not_changed() -> None:
    made = deployment(**EXISTING, default_security_group_id="sg-12345678")

    assert default_group_rules(made) == []
    assert "sg-12345678" not in made.text("batch")


@pytest.mark.parametrize(
    ("keys", "published"),
    [
        ({}, "DefaultSecurityGroup"),
        ({**EXISTING, "default_security_group_id": "sg-12345678"}, "sg-12345678"),
        (EXISTING, None),
    ],
    ids=["new", "named", "not named"],
)
def test_known_default_group_is_published(keys: dict[str, object], published: str | None) -> None:
    made = deployment(**keys)

    values = [
        str(parameter["Value"])
        for parameter in made.resources("network", "AWS::SSM::Parameter")
        if str(parameter["Name"]).endswith("/default-security-group")
    ]

    assert len(values) == (published is not None)
    assert all(str(published) in value for value in values)


def test_vpc_is_published() -> None:
    made = deployment(**EXISTING)

    assert made.only("network", "AWS::SSM::Parameter", "Contractvpc")["Value"] == "vpc-12345678"


def test_existing_network_gets_only_security_group() -> None:
    made = deployment(**EXISTING)

    types = sorted(r["Type"] for r in made.templates["network"]["Resources"].values())

    assert types == [
        "AWS::EC2::SecurityGroup",
        "AWS::EC2::SecurityGroupEgress",
        "AWS::EC2::SecurityGroupIngress",
        *["AWS::SSM::Parameter"] * 2,
    ]


def test_existing_security_group_is_used_unchanged() -> None:
    made = deployment(**EXISTING, security_group_id="sg-12345678")
    template = made.only("batch", "AWS::EC2::LaunchTemplate", "Node")["LaunchTemplateData"]

    assert made.resources("network", "AWS::EC2::SecurityGroupIngress") == []
    assert all(nic["Groups"] == ["sg-12345678"] for nic in template["NetworkInterfaces"])


def test_nodes_start_in_the_existing_subnet() -> None:
    made = deployment(**EXISTING)
    compute = made.only("batch", "AWS::Batch::ComputeEnvironment", "ComputeEnvironment")[
        "ComputeResources"
    ]

    assert compute["Subnets"] == ["subnet-12345678"]
