"""A request as arguments of Batch's SubmitJob, and checks of what Batch would refuse or not run.

Tasks of multi-node jobs carry the VPC's default security group: with EFA interfaces, Batch accepts
no other (docs.aws.amazon.com/batch/latest/userguide/mnp-ce.html). Accounts that follow a benchmark
strip that group of its rules (Security Hub EC2.2, AWS Config vpc-default-security-group-closed),
so nodes would start, cost money, and never connect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from jobs.aws import Ec2Client
from jobs.deployment import Deployment
from jobs.errors import Refusal, error_code
from jobs.job import JobRequest
from trainium_catalogue import contract
from trainium_catalogue.workloads import LAUNCH_PARAMETERS, Hardware

MAX_OVERRIDE_CHARACTERS = 8192
"""ECS's limit for the overrides of one task (RunTask API reference, ``overrides``)."""
MAX_PAYLOAD_BYTES = 30 * 1024
"""Batch's limit for SubmitJob (Batch user guide, service quotas)."""
(_STOP_GRACE,) = (item for item in LAUNCH_PARAMETERS if item.name == "stop-grace-s")
Rule = Mapping[str, Any]

_PORTS = (1024, 65535)
"""Launchers and workers listen on ports of their own and on any that the kernel assigns."""
_ANYWHERE = "0.0.0.0/0"


def submit_arguments(request: JobRequest) -> dict[str, Any]:
    """Build the arguments of SubmitJob."""
    return {
        "jobName": request.run,
        "jobQueue": request.job_queue,
        "jobDefinition": request.job_definition,
        **_overrides(request),
        **(
            {"dependsOn": [{"jobId": job_id} for job_id in request.depends_on]}
            if request.depends_on
            else {}
        ),
        "timeout": {"attemptDurationSeconds": request.time_limit_seconds},
        "tags": {
            contract.TAG_DEPLOYMENT: request.deployment,
            contract.TAG_RUN: request.run,
            contract.TAG_WORKLOAD: request.workload,
        },
    }


def _overrides(request: JobRequest) -> dict[str, Any]:
    if request.hardware is Hardware.CPU:
        # An array has at least 2 children (Batch user guide, array jobs).
        size = request.num_nodes
        array = {"arrayProperties": {"size": size}} if size > 1 else {}
        return {"containerOverrides": _container_overrides(request), **array}
    return {
        "nodeOverrides": {
            "numNodes": request.num_nodes,
            "nodePropertyOverrides": [
                # The job definition's only node range is open-ended, so it stretches.
                {"targetNodes": "0:", "containerOverrides": _container_overrides(request)}
            ],
        }
    }


def _container_overrides(request: JobRequest) -> dict[str, Any]:
    return {
        "command": request.command(),
        "environment": [{"name": contract.ENV_RUN, "value": request.run}],
    }


def check_grace(request: JobRequest) -> None:
    """Refuse a grace period that ECS would cut short: its limit is set per host, for all jobs."""
    asked = float(request.parameters.get(_STOP_GRACE.name, _STOP_GRACE.default))
    most = float(_STOP_GRACE.default)
    if asked > most:
        raise Refusal(
            "grace-too-long",
            f"--{_STOP_GRACE.name} {asked:g} is too long on AWS Batch: hosts are set up to kill a "
            f"container soon after {most:g} s, whatever a job wants; give {most:g} or less, or "
            "submit with --on eks, where a pod's own grace follows",
        )


def check_length(request: JobRequest) -> None:
    """Refuse parameters too long for Batch or ECS."""
    remedy = "shorten their values"
    if request.program_argv:
        remedy = (
            "shorten the arguments of the program, or put long ones into a file of the program's "
            "folder and pass its name"
        )
    length = len(json.dumps(_container_overrides(request), separators=(",", ":")))
    if length > MAX_OVERRIDE_CHARACTERS:
        raise Refusal(
            "parameters-too-long",
            f"the parameters make container overrides of {length} characters; ECS takes at most "
            f"{MAX_OVERRIDE_CHARACTERS}; {remedy}",
        )
    size = len(json.dumps(submit_arguments(request)).encode())
    if size > MAX_PAYLOAD_BYTES:
        raise Refusal(
            "parameters-too-long",
            f"the submission is {size} bytes long; Batch takes at most {MAX_PAYLOAD_BYTES}; "
            f"{remedy}",
        )


class Admits(StrEnum):
    """Verdict on whether a group lets its members reach each other, in one direction."""

    YES = "yes"
    NO = "no"
    SOME_ADDRESSES = "some addresses"
    """Address ranges that may contain the nodes' subnet, which is not known here."""


def check_default_group(
    client: Callable[[], Ec2Client],
    target: Deployment,
    request: JobRequest,
    note: Callable[[str], None],
) -> None:
    """Refuse a multi-node Batch job whose tasks could not reach each other.

    If the group cannot be read, a note says so and the job goes on.
    """
    if request.hardware is Hardware.CPU or request.num_nodes < 2 or target.vpc is None:
        return
    unknown = f"the default security group of {target.vpc} was not looked at"
    try:
        group = find_group(client(), target.vpc)
    except Exception as error:
        # A protective check must not block a job that would work, whatever error it meets.
        reason = error_code(error) or type(error).__name__
        note(f"{unknown} ({reason} of ec2:DescribeSecurityGroups): it must admit itself on TCP")
        return
    if group is None:
        note(f"{unknown}: this account sees none; it must admit itself on TCP")
        return
    _check_name(target, str(group["GroupId"]))
    check_rules(target, group, note)


def find_group(ec2: Ec2Client, vpc: str) -> Rule | None:
    """Read the default security group of a VPC; None if the account sees none."""
    filters = [
        {"Name": "vpc-id", "Values": [vpc]},
        {"Name": "group-name", "Values": ["default"]},
    ]
    groups: Sequence[Rule] = ec2.describe_security_groups(Filters=filters)["SecurityGroups"]
    return groups[0] if groups else None


def _check_name(target: Deployment, group_id: str) -> None:
    named = target.default_security_group
    if named is not None and named != group_id:
        change = target.redeploy(default_security_group_id=group_id)
        raise Refusal(
            "not-the-default-group",
            f"trainium:default_security_group_id={named} is not the default security group of "
            f"{target.vpc}, which is {group_id}: tasks carry that one whatever is named; look at "
            f"its rules, and deploy again with {change}",
        )


def check_rules(target: Deployment, group: Rule, note: Callable[[str], None]) -> None:
    """Refuse a group that does not admit itself, in and out."""
    group_id = str(group["GroupId"])
    found = {
        "in": admits_itself(group_id, group.get("IpPermissions", ())),
        "out": admits_itself(group_id, group.get("IpPermissionsEgress", ())),
    }
    closed = [direction for direction, admits in found.items() if admits is Admits.NO]
    if closed:
        rules = "; ".join(_remedy(group_id, target.region, direction) for direction in closed)
        raise Refusal(
            "closed-default-group",
            f"security group {group_id}, the default one of {target.vpc}, does not admit itself "
            f"{' and '.join(closed)}: tasks of a multi-node Batch job carry it and could not reach "
            f"each other; add what is missing: {rules}; if a policy of the account removes such "
            "rules, exempt this group first",
        )
    if Admits.SOME_ADDRESSES in found.values():
        note(
            f"security group {group_id}, the default one of {target.vpc}, admits address ranges: "
            "they must hold the nodes' subnet"
        )


def admits_itself(group_id: str, rules: Sequence[Rule]) -> Admits:
    """Tell whether one direction's rules let everything a job needs pass to the group itself."""
    wide = [rule for rule in rules if _is_wide(rule)]
    for rule in wide:
        groups = {pair.get("GroupId") for pair in rule.get("UserIdGroupPairs", ())}
        ranges = {entry.get("CidrIp") for entry in rule.get("IpRanges", ())}
        if group_id in groups or _ANYWHERE in ranges:
            return Admits.YES
    by_address = any(rule.get("IpRanges") or rule.get("PrefixListIds") for rule in wide)
    return Admits.SOME_ADDRESSES if by_address else Admits.NO


def _is_wide(rule: Rule) -> bool:
    if rule["IpProtocol"] == "-1":
        return True
    low, high = _PORTS
    return bool(
        rule["IpProtocol"] == "tcp"
        and rule.get("FromPort", high) <= low
        and rule.get("ToPort", low) >= high
    )


def _remedy(group_id: str, region: str, direction: str) -> str:
    action = {"in": "ingress", "out": "egress"}[direction]
    start = f"aws ec2 authorize-security-group-{action} --region {region}"
    itself = f"'IpProtocol=tcp,FromPort=0,ToPort=65535,UserIdGroupPairs=[{{GroupId={group_id}}}]'"
    https = " 'IpProtocol=tcp,FromPort=443,ToPort=443,IpRanges=[{CidrIp=0.0.0.0/0}]'"
    rules = itself + (https if direction == "out" else "")
    # Quoted, because shells such as zsh treat brackets as a pattern.
    return f"{start} --group-id {group_id} --ip-permissions {rules}"
