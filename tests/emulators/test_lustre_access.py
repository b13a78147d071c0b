"""Deployed security groups allow nodes to mount an existing file system."""

from __future__ import annotations

import json
from typing import Any

from tests.emulators.conftest import Client
from tests.stacks.synthesis import DNS_NAME, deployment

# FSx for Lustre User Guide, file system access control with Amazon VPC.
PORTS = (988, *range(1018, 1024))
LUSTRE = [{"IpProtocol": "tcp", "FromPort": low, "ToPort": high}
          for low, high in ((988, 988), (1018, 1023))]  # fmt: skip


def file_system_group(ec2: Any, vpc: str) -> str:
    """Create a group as FSx requires: traffic among members, and all egress."""
    group = str(ec2.create_security_group(
        GroupName="lustre", Description="x", VpcId=vpc)["GroupId"])  # fmt: skip
    itself = [{**rule, "UserIdGroupPairs": [{"GroupId": group}]} for rule in LUSTRE]
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=itself)
    return group


def admits(rules: list[dict[str, Any]], peer: str, port: int) -> bool:
    """Return whether the rules of one direction allow a peer on a TCP port."""
    return any(
        (
            peer in {pair["GroupId"] for pair in rule["UserIdGroupPairs"]}
            or "0.0.0.0/0" in {range_["CidrIp"] for range_ in rule["IpRanges"]}
        )
        and (rule["IpProtocol"] == "-1" or rule["FromPort"] <= port <= rule["ToPort"])
        for rule in rules
    )


def test_nodes_in_a_new_group_mount_an_existing_file_system(client: Client) -> None:
    ec2 = client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/20")["Subnet"]["SubnetId"]
    servers = file_system_group(ec2, vpc)
    made = deployment(
        vpc_id=vpc,
        subnet_id=subnet,
        subnet_cidr="10.0.0.0/20",
        lustre_dns_name=DNS_NAME,
        lustre_mount_name="fqgwbbmv",
        lustre_security_group_id=servers,
    )
    template = made.templates["network"]
    # The CDK's check of its own bootstrap stack, which this account does not need.
    template.pop("Parameters"), template.pop("Rules")

    client("cloudformation").create_stack(StackName="n", TemplateBody=json.dumps(template))

    groups = {each["GroupId"]: each for each in ec2.describe_security_groups()["SecurityGroups"]}
    of_lustre = groups[servers]
    (of_nodes,) = (
        each
        for each in groups.values()
        if each["VpcId"] == vpc and each["Description"].startswith("Trainium nodes")
    )
    nodes = of_nodes["GroupId"]
    for port in PORTS:
        assert admits(of_lustre["IpPermissions"], nodes, port)
        assert admits(of_lustre["IpPermissionsEgress"], nodes, port)
        assert admits(of_nodes["IpPermissions"], servers, port)
        assert admits(of_nodes["IpPermissionsEgress"], servers, port)
    # Other clients of the file system rely on these rules.
    assert admits(of_lustre["IpPermissionsEgress"], "sg-of-others", 988)
