"""SubmitJob arguments, and checks for requests that Batch would reject or never run.

Tasks of multi-node jobs use the VPC's default security group: with EFA interfaces, Batch accepts no
other (docs.aws.amazon.com/batch/latest/userguide/mnp-ce.html). Security benchmarks require that
group to have no rules (Security Hub EC2.2, AWS Config vpc-default-security-group-closed). Then
nodes would start, cost money, and never connect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from hashlib import sha256
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
"""Launchers and workers listen on fixed ports and on any assigned by the kernel."""
_ANYWHERE = "0.0.0.0/0"


def submit_arguments(request: JobRequest) -> dict[str, Any]:
    """Build the arguments of SubmitJob."""
    arguments = {
        "jobName": request.run,
        "jobQueue": request.job_queue,
        "jobDefinition": request.job_definition,
        **_overrides(request),
        **_dependencies(request.depends_on),
        "timeout": {"attemptDurationSeconds": request.time_limit_seconds},
        "tags": {
            contract.TAG_DEPLOYMENT: request.deployment,
            contract.TAG_RUN: request.run,
            contract.TAG_WORKLOAD: request.workload,
        },
    }
    if request.zone_patience_minutes is not None:
        arguments["tags"][contract.TAG_ZONE_PATIENCE] = str(request.zone_patience_minutes)
        arguments["tags"][contract.TAG_REQUEST] = sha256(encode_request(arguments)).hexdigest()
    return arguments


def encode_request(arguments: Mapping[str, Any]) -> bytes:
    """Encode the arguments of SubmitJob, to resubmit the same job in another zone."""
    tags = {key: tag for key, tag in arguments["tags"].items() if key != contract.TAG_REQUEST}
    return json.dumps({**arguments, "tags": tags}, sort_keys=True).encode()


def resubmit_arguments(
    stored: bytes | None,
    digest: str,
    *,
    job_queue: str,
    job_definition: str,
    depends_on: Sequence[str],
) -> dict[str, Any]:
    """Build the arguments to resubmit a job to the queue of another zone.

    Raise ``ValueError`` if ``stored``, the request in the bucket, does not have the digest in the
    job's tag, which a program that writes to the bucket cannot change.
    """
    if stored is None or sha256(stored).hexdigest() != digest:
        raise ValueError(f"the bucket does not contain the submitted request {digest}")
    arguments: dict[str, Any] = json.loads(stored)
    arguments.pop("dependsOn", None)
    arguments["tags"][contract.TAG_REQUEST] = digest
    place = {"jobQueue": job_queue, "jobDefinition": job_definition}
    return {**arguments, **place, **_dependencies(depends_on)}


def _dependencies(job_ids: Sequence[str]) -> dict[str, Any]:
    return {"dependsOn": [{"jobId": job_id} for job_id in job_ids]} if job_ids else {}


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
                # The job definition's only node range is open-ended, so it covers all nodes.
                {"targetNodes": "0:", "containerOverrides": _container_overrides(request)}
            ],
        }
    }


def _container_overrides(request: JobRequest) -> dict[str, Any]:
    return {
        "command": request.command(),
        "environment": [
            {"name": name, "value": value} for name, value in request.environment.items()
        ],
    }


def check_grace(request: JobRequest) -> None:
    """Refuse a grace period beyond ECS's stop timeout, which is set per host for all jobs."""
    requested = float(request.parameters.get(_STOP_GRACE.name, _STOP_GRACE.default))
    limit = float(_STOP_GRACE.default)
    if requested > limit:
        raise Refusal(
            "grace-too-long",
            f"--{_STOP_GRACE.name} {requested:g} is too long on AWS Batch, where hosts kill "
            f"every container soon after {limit:g} s; use {limit:g} or less, or submit with "
            "--on eks, where each pod has its own grace period",
        )


def check_length(request: JobRequest) -> None:
    """Refuse parameters too long for Batch or ECS."""
    remedy = "shorten their values"
    if request.program_argv:
        remedy = (
            "shorten the program's arguments, or put long ones into a file in the program's "
            "folder and pass its name"
        )
    length = len(json.dumps(_container_overrides(request), separators=(",", ":")))
    if length > MAX_OVERRIDE_CHARACTERS:
        raise Refusal(
            "parameters-too-long",
            f"the parameters need container overrides of {length:,} characters; ECS accepts at "
            f"most {MAX_OVERRIDE_CHARACTERS:,}; {remedy}",
        )
    size = len(json.dumps(submit_arguments(request)).encode())
    if size > MAX_PAYLOAD_BYTES:
        raise Refusal(
            "parameters-too-long",
            f"the submission is {size:,} bytes long; Batch accepts at most "
            f"{MAX_PAYLOAD_BYTES:,}; {remedy}",
        )


class SelfAccess(StrEnum):
    """Whether a security group allows traffic among its own members, in one direction."""

    YES = "yes"
    NO = "no"
    SOME_ADDRESSES = "some addresses"
    """Address ranges that may or may not contain the nodes' subnet."""


def check_default_group(
    client: Callable[[], Ec2Client],
    target: Deployment,
    request: JobRequest,
    note: Callable[[str], None],
) -> None:
    """Refuse a multi-node Batch job whose tasks could not reach each other.

    If the group cannot be read, note that and continue.
    """
    if request.hardware is Hardware.CPU or request.num_nodes < 2 or target.vpc is None:
        return
    unknown = f"the default security group of {target.vpc} was not checked"
    needed = "it must allow TCP traffic to and from itself"
    try:
        group = find_group(client(), target.vpc)
    except Exception as error:
        # A safety check must not block a job that would work, whatever the error.
        reason = error_code(error) or type(error).__name__
        note(f"{unknown} ({reason} from ec2:DescribeSecurityGroups): {needed}")
        return
    if group is None:
        note(f"{unknown}: it is not visible to this account; {needed}")
        return
    check_group(target, group, note)


def find_group(ec2: Ec2Client, vpc: str) -> Rule | None:
    """Read the default security group of a VPC; None if it is not visible to the account."""
    filters = [
        {"Name": "vpc-id", "Values": [vpc]},
        {"Name": "group-name", "Values": ["default"]},
    ]
    groups: Sequence[Rule] = ec2.describe_security_groups(Filters=filters)["SecurityGroups"]
    return groups[0] if groups else None


def check_group(target: Deployment, group: Rule, note: Callable[[str], None]) -> None:
    """Refuse a default security group that is not the configured one, or that blocks traffic
    among its members.
    """
    group_id, named = str(group["GroupId"]), target.default_security_group
    if named is not None and named != group_id:
        change = target.redeploy(default_security_group_id=group_id)
        raise Refusal(
            "not-the-default-group",
            f"trainium:default_security_group_id={named} is not the default security group of "
            f"{target.vpc}, which is {group_id}: tasks use that one regardless; check its rules, "
            f"and deploy again with {change}",
        )
    accesses = {
        "inbound": self_access(group_id, group.get("IpPermissions", ())),
        "outbound": self_access(group_id, group.get("IpPermissionsEgress", ())),
    }
    closed = [direction for direction, access in accesses.items() if access is SelfAccess.NO]
    if closed:
        rules = "; ".join(_remedy(group_id, target.region, direction) for direction in closed)
        raise Refusal(
            "closed-default-group",
            f"security group {group_id}, the default of {target.vpc}, does not allow "
            f"{' and '.join(closed)} traffic among its members: tasks of a multi-node Batch job "
            "use it and could not reach each other; add the missing rules: "
            f"{rules}; if an account policy removes such rules, exempt this group first",
        )
    if SelfAccess.SOME_ADDRESSES in accesses.values():
        note(
            f"security group {group_id}, the default of {target.vpc}, allows traffic by "
            "address range: the ranges must include the nodes' subnet"
        )


def self_access(group_id: str, rules: Sequence[Rule]) -> SelfAccess:
    """Return whether the rules of one direction allow all of a job's traffic within the group."""
    open_rules = [rule for rule in rules if _opens_ports(rule)]
    for rule in open_rules:
        groups = {pair.get("GroupId") for pair in rule.get("UserIdGroupPairs", ())}
        ranges = {entry.get("CidrIp") for entry in rule.get("IpRanges", ())}
        if group_id in groups or _ANYWHERE in ranges:
            return SelfAccess.YES
    by_address = any(rule.get("IpRanges") or rule.get("PrefixListIds") for rule in open_rules)
    return SelfAccess.SOME_ADDRESSES if by_address else SelfAccess.NO


def _opens_ports(rule: Rule) -> bool:
    """Return whether a rule covers all ports that a job may use."""
    if rule["IpProtocol"] == "-1":
        return True
    low, high = _PORTS
    return bool(
        rule["IpProtocol"] == "tcp"
        and rule.get("FromPort", high) <= low
        and rule.get("ToPort", low) >= high
    )


def _remedy(group_id: str, region: str, direction: str) -> str:
    action = {"inbound": "ingress", "outbound": "egress"}[direction]
    start = f"aws ec2 authorize-security-group-{action} --region {region}"
    itself = f"'IpProtocol=tcp,FromPort=0,ToPort=65535,UserIdGroupPairs=[{{GroupId={group_id}}}]'"
    https = " 'IpProtocol=tcp,FromPort=443,ToPort=443,IpRanges=[{CidrIp=0.0.0.0/0}]'"
    rules = itself + (https if direction == "outbound" else "")
    # Quoted, because shells such as zsh treat brackets as a pattern.
    return f"{start} --group-id {group_id} --ip-permissions {rules}"
