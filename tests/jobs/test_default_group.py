"""A multi-node Batch job is refused while its tasks could not reach each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from typer.testing import Result

from jobs.batch.request import Admits, admits_itself
from tests.jobs.conftest import Desk
from trainium_catalogue import contract

GROUP = "sg-0123456789abcdef0"
ITSELF = {"UserIdGroupPairs": [{"GroupId": GROUP}]}
ANYWHERE = {"IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
VPC_RANGE = {"IpRanges": [{"CidrIp": "10.0.0.0/16"}]}
TCP = {"IpProtocol": "tcp", "FromPort": 0, "ToPort": 65535}


@pytest.mark.parametrize(
    ("rules", "admits"),
    [
        ([{"IpProtocol": "-1", **ITSELF}], Admits.YES),
        ([{"IpProtocol": "-1", **ANYWHERE}], Admits.YES),
        ([{**TCP, **ITSELF}], Admits.YES),
        ([{**TCP, "FromPort": 1024, **ITSELF}], Admits.YES),
        ([{"IpProtocol": "-1", **VPC_RANGE}], Admits.SOME_ADDRESSES),
        (
            [{"IpProtocol": "-1", "PrefixListIds": [{"PrefixListId": "pl-1"}]}],
            Admits.SOME_ADDRESSES,
        ),
        ([], Admits.NO),
        ([{**TCP, "FromPort": 443, "ToPort": 443, **ANYWHERE}], Admits.NO),
        ([{**TCP, "IpProtocol": "udp", **ITSELF}], Admits.NO),
        ([{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": "sg-other"}]}], Admits.NO),
    ],
)
def test_rules_are_judged_by_who_reaches_whom(
    rules: list[Mapping[str, Any]], admits: Admits
) -> None:
    assert admits_itself(GROUP, rules) is admits


def own_group(desk: Desk) -> tuple[str, str]:
    """Ids of the default VPC and its default group."""
    named = [{"Name": "group-name", "Values": ["default"]}]
    (group,) = desk.client("ec2").describe_security_groups(Filters=named)["SecurityGroups"]
    return str(group["VpcId"]), str(group["GroupId"])


def strip(desk: Desk) -> str:
    """Take all rules of the default group away, as a benchmark's remediation does."""
    ec2 = desk.client("ec2")
    _, group_id = own_group(desk)
    (group,) = ec2.describe_security_groups(GroupIds=[group_id])["SecurityGroups"]
    ec2.revoke_security_group_ingress(GroupId=group_id, IpPermissions=group["IpPermissions"])
    ec2.revoke_security_group_egress(GroupId=group_id, IpPermissions=group["IpPermissionsEgress"])
    return group_id


def submit(desk: Desk, *arguments: str, nodes: int = 2) -> Result:
    return desk.run(
        *("submit", "all-reduce", "--nodes", str(nodes), "--name", "meet", "--yes", *arguments)
    )


def test_a_group_as_ec2_makes_it_is_not_mentioned(desk: Desk) -> None:
    result = submit(desk)

    assert result.exit_code == 0, result.stderr
    assert "security group" not in result.stderr


def test_a_closed_default_group_is_refused_with_the_commands_that_open_it(desk: Desk) -> None:
    group_id = strip(desk)

    result = submit(desk)

    assert result.exit_code == 2
    assert f"security group {group_id}, the default one of vpc-" in result.stderr
    assert "does not admit itself in and out" in result.stderr
    for direction in ("ingress", "egress"):
        assert f"authorize-security-group-{direction} --region us-west-2" in result.stderr
        assert "--ip-permissions 'IpProtocol=tcp," in result.stderr  # zsh: [...] is a pattern
    assert desk.jobs("meet") == []


def test_the_commands_of_the_refusal_open_the_group(desk: Desk) -> None:
    group_id = strip(desk)
    itself = [{**TCP, "UserIdGroupPairs": [{"GroupId": group_id}]}]
    desk.client("ec2").authorize_security_group_ingress(GroupId=group_id, IpPermissions=itself)
    desk.client("ec2").authorize_security_group_egress(GroupId=group_id, IpPermissions=itself)

    assert submit(desk).exit_code == 0


@pytest.mark.parametrize("arguments", [("--dry-run",), ()], ids=["dry run", "one node"])
def test_a_job_that_meets_nobody_does_not_depend_on_the_group(
    desk: Desk, arguments: tuple[str, ...]
) -> None:
    strip(desk)

    result = submit(desk, *arguments, nodes=2 if arguments else 1)

    assert result.exit_code == 0, result.stderr


def test_a_named_group_that_is_not_the_default_one_is_refused(desk: Desk) -> None:
    vpc, group_id = own_group(desk)
    desk.parameter(contract.SSM_DEFAULT_SECURITY_GROUP, GROUP)

    result = submit(desk)

    assert result.exit_code == 2
    assert f"{GROUP} is not the default security group of {vpc}, which is {group_id}" in (
        result.stderr
    )
    assert f"-c trainium:default_security_group_id={group_id}" in result.stderr


def test_who_may_not_look_is_told_so_in_one_line(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    strip(desk)
    refuse_ec2(monkeypatch, "UnauthorizedOperation")

    result = submit(desk)

    assert result.exit_code == 0, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if "security group" in line]
    assert "was not looked at (UnauthorizedOperation of ec2:DescribeSecurityGroups)" in line


def refuse_ec2(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let EC2 answer with an error."""
    from jobs.aws import Aws
    from tests.jobs.fakes import client_error

    class Ec2:
        def describe_security_groups(self, **kwargs: Any) -> Mapping[str, Any]:
            raise client_error(code, operation="DescribeSecurityGroups")

    monkeypatch.setattr(Aws, "ec2", lambda self: Ec2())


def test_a_vpc_whose_default_group_is_somebody_elses_goes_on_with_a_word(desk: Desk) -> None:
    # A shared VPC: its default group belongs to the owner's account.
    desk.parameter(contract.SSM_VPC, "vpc-0123456789abcdef0")

    result = submit(desk)

    assert result.exit_code == 0
    assert "was not looked at: this account sees none" in result.stderr


def test_ranges_of_addresses_are_left_to_who_knows_the_subnet(desk: Desk) -> None:
    group_id = strip(desk)
    rules = [{"IpProtocol": "-1", **VPC_RANGE}]
    desk.client("ec2").authorize_security_group_ingress(GroupId=group_id, IpPermissions=rules)
    desk.client("ec2").authorize_security_group_egress(GroupId=group_id, IpPermissions=rules)

    result = submit(desk)

    assert result.exit_code == 0, result.stderr
    assert "admits address ranges: they must hold the nodes' subnet" in result.stderr
