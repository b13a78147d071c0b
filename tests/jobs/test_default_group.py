"""A multi-node Batch job is refused if its tasks could not reach each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from typer.testing import Result

from jobs.aws import Aws
from jobs.batch.request import SelfAccess, self_access
from tests.jobs.conftest import Cli
from tests.jobs.fakes import client_error
from trainium_catalogue import contract

GROUP = "sg-0123456789abcdef0"
ITSELF = {"UserIdGroupPairs": [{"GroupId": GROUP}]}
ANYWHERE = {"IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
VPC_RANGE = {"IpRanges": [{"CidrIp": "10.0.0.0/16"}]}
TCP = {"IpProtocol": "tcp", "FromPort": 0, "ToPort": 65535}


@pytest.mark.parametrize(
    ("rules", "access"),
    [
        ([{"IpProtocol": "-1", **ITSELF}], SelfAccess.YES),
        ([{"IpProtocol": "-1", **ANYWHERE}], SelfAccess.YES),
        ([{**TCP, "FromPort": 1024, **ITSELF}], SelfAccess.YES),
        ([{"IpProtocol": "-1", **VPC_RANGE}], SelfAccess.SOME_ADDRESSES),
        (
            [{"IpProtocol": "-1", "PrefixListIds": [{"PrefixListId": "pl-1"}]}],
            SelfAccess.SOME_ADDRESSES,
        ),
        ([], SelfAccess.NO),
        ([{**TCP, "FromPort": 443, "ToPort": 443, **ANYWHERE}], SelfAccess.NO),
        ([{**TCP, "IpProtocol": "udp", **ITSELF}], SelfAccess.NO),
        ([{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": "sg-other"}]}], SelfAccess.NO),
    ],
)
def test_rules_are_judged_by_reachability(
    rules: list[Mapping[str, Any]], access: SelfAccess
) -> None:
    assert self_access(GROUP, rules) is access


def own_group(cli: Cli) -> tuple[str, str]:
    """Return the ids of the default VPC and its default security group."""
    named = [{"Name": "group-name", "Values": ["default"]}]
    (group,) = cli.client("ec2").describe_security_groups(Filters=named)["SecurityGroups"]
    return str(group["VpcId"]), str(group["GroupId"])


def strip(cli: Cli) -> str:
    """Revoke all rules of the default security group, as a benchmark's remediation does."""
    ec2 = cli.client("ec2")
    _, group_id = own_group(cli)
    (group,) = ec2.describe_security_groups(GroupIds=[group_id])["SecurityGroups"]
    ec2.revoke_security_group_ingress(GroupId=group_id, IpPermissions=group["IpPermissions"])
    ec2.revoke_security_group_egress(GroupId=group_id, IpPermissions=group["IpPermissionsEgress"])
    return group_id


def submit(cli: Cli, *arguments: str, nodes: int = 2) -> Result:
    return cli.run(
        *("submit", "all-reduce", "--nodes", str(nodes), "--name", "meet", "--yes", *arguments)
    )


def test_unchanged_group_is_not_mentioned(cli: Cli) -> None:
    result = submit(cli)

    assert result.exit_code == 0, result.stderr
    assert "security group" not in result.stderr


def test_closed_group_is_refused_with_commands_to_open_it(cli: Cli) -> None:
    group_id = strip(cli)

    result = submit(cli)

    assert result.exit_code == 2
    assert f"security group {group_id}, the default of vpc-" in result.stderr
    assert "does not allow inbound and outbound traffic among its members" in result.stderr
    for direction in ("ingress", "egress"):
        assert f"authorize-security-group-{direction} --region us-west-2" in result.stderr
        assert "--ip-permissions 'IpProtocol=tcp," in result.stderr  # zsh: [...] is a pattern
    assert cli.jobs("meet") == []


@pytest.mark.parametrize("arguments", [("--dry-run",), ()], ids=["dry run", "one node"])
def test_job_without_peers_ignores_group(cli: Cli, arguments: tuple[str, ...]) -> None:
    strip(cli)

    result = submit(cli, *arguments, nodes=2 if arguments else 1)

    assert result.exit_code == 0, result.stderr


def test_configured_group_that_is_not_default_is_refused(cli: Cli) -> None:
    vpc, group_id = own_group(cli)
    cli.parameter(contract.SSM_DEFAULT_SECURITY_GROUP, GROUP)

    result = submit(cli)

    assert result.exit_code == 2
    assert f"{GROUP} is not the default security group of {vpc}, which is {group_id}" in (
        result.stderr
    )
    assert f"-c trainium:default_security_group_id={group_id}" in result.stderr


def test_missing_permission_is_one_warning(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ec2:
        def describe_security_groups(self, **kwargs: Any) -> Mapping[str, Any]:
            raise client_error("UnauthorizedOperation", operation="DescribeSecurityGroups")

    strip(cli)
    monkeypatch.setattr(Aws, "ec2", lambda self: Ec2())

    result = submit(cli)

    assert result.exit_code == 0, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if "security group" in line]
    assert "was not checked (UnauthorizedOperation from ec2:DescribeSecurityGroups)" in line


def test_default_group_of_shared_vpc_is_not_checked(cli: Cli) -> None:
    # A shared VPC: its default security group belongs to the owner's account.
    cli.parameter(contract.SSM_VPC, "vpc-0123456789abcdef0")

    result = submit(cli)

    assert result.exit_code == 0
    assert "was not checked: it is not visible to this account" in result.stderr


def test_address_ranges_are_noted(cli: Cli) -> None:
    group_id = strip(cli)
    rules = [{"IpProtocol": "-1", **VPC_RANGE}]
    cli.client("ec2").authorize_security_group_ingress(GroupId=group_id, IpPermissions=rules)
    cli.client("ec2").authorize_security_group_egress(GroupId=group_id, IpPermissions=rules)

    result = submit(cli)

    assert result.exit_code == 0, result.stderr
    assert (
        "allows traffic by address range: the ranges must include the nodes' subnet"
        in result.stderr
    )
