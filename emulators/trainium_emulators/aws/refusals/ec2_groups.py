"""Refusals of EC2: security groups and their rules."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from typing import Any

from trainium_emulators.aws.refusals.refusal import (
    CFN_LINT,
    EGRESS,
    INGRESS,
    MOTO,
    SECURITY_GROUP,
    AwsRefusal,
    Fill,
    when,
)
from trainium_emulators.aws.refusals.request import AwsRequest, get, number, text

API = "https://docs.aws.amazon.com/AWSEC2/latest/APIReference/"
CFN = "https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/"

GP3_IOPS = 3000
"""Default of a gp3 volume."""
_DESCRIPTION = re.compile(r"[a-zA-Z0-9. _\-:/()#,@\[\]+=&;{}!$*]{0,255}")
_SET = "a-zA-Z0-9. _-:/()#,@[]+=&;{{}}!$*"


def rules(request: AwsRequest) -> Iterator[Any]:
    """Return a group's inline rules, or the single rule that a rule resource creates."""
    if "CidrIp" in request.properties or "IpProtocol" in request.properties:
        yield request.properties
    for direction in ("SecurityGroupIngress", "SecurityGroupEgress"):
        yield from request.each(direction)


def _rule_descriptions(request: AwsRequest) -> Iterable[Fill]:
    return when(
        any(not _DESCRIPTION.fullmatch(text(get(rule, "Description"))) for rule in rules(request))
    )


def _ports(request: AwsRequest) -> Iterable[Fill]:
    for rule in rules(request):
        if text(get(rule, "IpProtocol")) not in ("tcp", "udp", "6", "17"):
            continue
        first, last = number(get(rule, "FromPort")), number(get(rule, "ToPort"))
        if first > last or first < 0 or last > 65_535:
            yield (int(first), int(last))


def _cidrs(request: AwsRequest) -> Iterable[Fill]:
    for rule in rules(request):
        if not (cidr := text(get(rule, "CidrIp"))):
            continue
        try:
            ipaddress.ip_network(cidr, strict=False)
        except ValueError:
            yield (cidr,)


def _too_many_rules(request: AwsRequest) -> Iterable[Fill]:
    return when(
        any(
            len(request.each(direction)) > 60
            for direction in ("SecurityGroupIngress", "SecurityGroupEgress")
        )
    )


ROWS = (
    AwsRefusal(
        id="group-description",
        on=SECURITY_GROUP,
        condition="A group's description with an apostrophe, an arrow, or 256 characters.",
        words="Invalid security group description. Valid descriptions are strings less than 256 "
        "characters from the following set:  " + _SET,
        source="https://github.com/cds-snc/notification-terraform/pull/561",
        known_to=CFN_LINT,
        check=lambda r: when(
            r.text("GroupDescription").isascii()
            and not _DESCRIPTION.fullmatch(r.text("GroupDescription"))
        ),
    ),
    AwsRefusal(
        id="group-description-not-ascii",
        on=SECURITY_GROUP,
        condition="A group's description with characters beyond ASCII.",
        words="Value ({}) for parameter GroupDescription is invalid. Character sets beyond ASCII "
        "are not supported.",
        source="https://github.com/psd401/aistudio/pull/1049",
        known_to=CFN_LINT,
        check=lambda r: when(not r.text("GroupDescription").isascii(), r.text("GroupDescription")),
    ),
    *(
        AwsRefusal(
            id=f"rule-description-{kind.rpartition('Group')[2].lower() or 'own'}",
            on=kind,
            condition="A rule's description with an apostrophe, an arrow, or 256 characters.",
            words="Invalid rule description. Valid descriptions are strings less than 256 "
            "characters from the following set: " + _SET,
            source="https://github.com/aws-cloudformation/cfn-lint/issues/173",
            judge="pf-ec2-sg-rule-description",
            check=_rule_descriptions,
        )
        for kind in (SECURITY_GROUP, INGRESS, EGRESS)
    ),
    AwsRefusal(
        id="group-name",
        on=SECURITY_GROUP,
        condition="A name that looks like an id.",
        words="Group names may not be in the format sg-*",
        source=API + "API_CreateSecurityGroup.html",
        judge="pf-ec2-sg-group-name",
        check=lambda r: when(r.text("GroupName").startswith("sg-")),
    ),
    AwsRefusal(
        id="group-name-default",
        on=SECURITY_GROUP,
        condition="The name of the VPC's own group.",
        words="Cannot use reserved security group name: default",
        source=CFN + "aws-resource-ec2-securitygroup.html",
        judge="pf-ec2-sg-group-name-default",
        known_to=MOTO,
        check=lambda r: when(r.text("GroupName") == "default"),
    ),
    AwsRefusal(
        id="group-rules",
        on=SECURITY_GROUP,
        condition="More than 60 rules in one direction.",
        words="The maximum number of rules per security group has been reached.",
        source="https://docs.aws.amazon.com/vpc/latest/userguide/amazon-vpc-limits.html",
        verbatim=False,
        known_to=MOTO,
        check=_too_many_rules,
    ),
    *(
        AwsRefusal(
            id=f"rule-ports-{kind.rpartition('Group')[2].lower() or 'own'}",
            on=kind,
            condition="Ports in the wrong order, or beyond 65535.",
            words="Invalid port range {} to {}",
            verbatim=False,
            source=API + "API_AuthorizeSecurityGroupIngress.html",
            judge="pf-ec2-sg-port-range",
            check=_ports,
        )
        for kind in (SECURITY_GROUP, INGRESS, EGRESS)
    ),
    AwsRefusal(
        id="group-cidr",
        on=SECURITY_GROUP,
        condition="A range of addresses that is none.",
        words="CIDR block {} is malformed",
        source=API + "API_AuthorizeSecurityGroupIngress.html",
        judge="pf-ec2-sg-cidr-valid",
        known_to=CFN_LINT | MOTO,
        check=_cidrs,
    ),
)
