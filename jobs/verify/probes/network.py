"""Claims about a deployment's networks, zones, endpoints and file system."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs.batch.request import SelfAccess, find_group, self_access
from jobs.prerequisites import interface_endpoints
from jobs.verify.probes.context import PROBES, REMEDY, ClientContext
from trainium_catalogue.contract import NO_LUSTRE, SSM_LUSTRE, ssm_parameter
from trainium_catalogue.probing import ProbeResult, SubjectMissing
from trainium_catalogue.wording import counted
from trainium_catalogue.zones import ZONES


def _environment(context: ClientContext, *, with_groups: bool) -> ProbeResult:
    """Check that Batch created the compute environment, with or without security groups."""
    groups = context.resources.get("securityGroupIds") or []
    if bool(groups) is not with_groups:
        kind = "without" if with_groups else "with"
        raise SubjectMissing(f"a deployment with an instance type {kind} EFA")
    status = context.environment["status"]
    reason = context.environment.get("statusReason") or ""
    return ProbeResult(
        ok=status == "VALID",
        seen=f"{status} with {counted(len(groups), 'security group')}; {reason}".rstrip("; "),
        expected="VALID",
    )


@PROBES.probe("environment-without-groups", needs=("AWS", "Batch"))
def without_groups(context: ClientContext) -> ProbeResult:
    """Batch accepts a compute environment without security groups for an instance type with EFA."""
    return _environment(context, with_groups=False)


@PROBES.probe("environment-with-groups", needs=("AWS", "Batch"))
def with_groups(context: ClientContext) -> ProbeResult:
    """Batch accepts a compute environment with security groups for an instance type without EFA."""
    return _environment(context, with_groups=True)


def _default_group(context: ClientContext) -> Mapping[str, Any]:
    group = find_group(context.client("ec2"), context.subnets[0]["VpcId"])
    if group is None:
        raise SubjectMissing("the default security group of the VPC")
    return group


@PROBES.probe("default-group", needs=("Batch",))
def default_group(context: ClientContext) -> ProbeResult:
    """The VPC's default security group, which tasks use, allows traffic to and from itself."""
    group = _default_group(context)
    name = str(group["GroupId"])
    inbound = self_access(name, group.get("IpPermissions", ()))
    outbound = self_access(name, group.get("IpPermissionsEgress", ()))
    return ProbeResult(
        ok=SelfAccess.NO not in (inbound, outbound),
        seen=f"{name} allows traffic between its members: inbound {inbound}, outbound {outbound}",
        expected=f"inbound yes, outbound yes; {REMEDY}",
    )


@PROBES.probe("self-rule-no-duplicate", needs=("AWS", "Batch"))
def self_rules(context: ClientContext) -> ProbeResult:
    """The default security group also has the stack's rule for TCP from itself."""
    group = _default_group(context)
    kinds = sorted(
        str(rule["IpProtocol"])
        for rule in group.get("IpPermissions", ())
        if any(pair.get("GroupId") == group["GroupId"] for pair in rule["UserIdGroupPairs"])
    )
    return ProbeResult(
        ok="tcp" in kinds,
        seen=f"protocols allowed from itself: {', '.join(kinds) or 'none'}",
        expected="tcp",
    )


@PROBES.probe("egress-rule-replaces", needs=("AWS", "Batch"))
def egress_rule(context: ClientContext) -> ProbeResult:
    """The default security group no longer allows all outbound traffic."""
    open_rules = [
        rule
        for rule in _default_group(context).get("IpPermissionsEgress", ())
        if rule["IpProtocol"] == "-1"
        and any(entry.get("CidrIp") == "0.0.0.0/0" for entry in rule.get("IpRanges", ()))
    ]
    return ProbeResult(
        ok=not open_rules,
        seen="all outbound traffic" if open_rules else "only declared traffic",
        expected="only declared traffic",
    )


@PROBES.probe("endpoint-zones")
def endpoint_zones(context: ClientContext) -> ProbeResult:
    """All interface endpoints of the VPC are available; AWS rejects one in an unsupported zone."""
    found = interface_endpoints(context.client("ec2"), context.subnets[0]["VpcId"])
    if not found:
        raise SubjectMissing("interface endpoints in the VPC")
    states = sorted(f"{e['ServiceName'].rpartition('.')[2]} {e['State'].lower()}" for e in found)
    return ProbeResult(
        ok=all(endpoint["State"].lower() == "available" for endpoint in found),
        seen=", ".join(states),
        expected=f"all available; {REMEDY}",
    )


@PROBES.probe("planned-zones-seen", needs=("AWS",))
def planned_zones(context: ClientContext) -> ProbeResult:
    """The account has access to all zones in which a new VPC has subnets."""
    found = context.client("ec2").describe_availability_zones()["AvailabilityZones"]
    seen = {str(zone["ZoneId"]) for zone in found}
    planned = ZONES[context.target.region]
    return ProbeResult(
        ok=set(planned) <= seen,
        seen=", ".join(sorted(seen)),
        expected=", ".join(planned),
    )


def _other_zone(context: ClientContext) -> str:
    """Return the zone of the nodes; raise ``SubjectMissing`` for the region's first zone."""
    zone = str(context.subnets[0]["AvailabilityZoneId"])
    if zone == ZONES[context.target.region][0]:
        raise SubjectMissing("nodes in a zone other than the region's first")
    return zone


def _check_run(context: ClientContext, zone: str, what: str) -> ProbeResult:
    assert context.job is not None
    return ProbeResult(
        ok=context.job.succeeded,
        seen=f"{context.job.run} {context.job.status.lower()} in {zone}, {what}",
        expected="a successful run",
    )


@PROBES.probe("ways-out-across-zones", needs=("AWS", "a run of verify"))
def ways_out(context: ClientContext) -> ProbeResult:
    """A node in a zone without a NAT gateway reaches ECR, CloudWatch Logs and the bucket."""
    zone = _other_zone(context)
    return _check_run(context, zone, f"NAT gateway in {ZONES[context.target.region][0]}")


@PROBES.probe("lustre-across-zones", needs=("AWS", "a run of verify"))
def lustre_across_zones(context: ClientContext) -> ProbeResult:
    """A node in a zone other than the file system's can mount it, as preflight requires."""
    zone, systems = _other_zone(context), _file_systems(context)
    if not systems:
        raise SubjectMissing("a file system of the deployment (lustre_gib)")
    return _check_run(context, zone, f"with {systems[0]['FileSystemId']}")


def _file_systems(context: ClientContext) -> list[dict[str, Any]]:
    """List the file systems created by the deployment's stacks."""
    prefix = f"trainium-{context.target.name}-"
    return [
        system
        for page in context.client("fsx").get_paginator("describe_file_systems").paginate()
        for system in page["FileSystems"]
        if any(
            tag["Key"] == "aws:cloudformation:stack-name" and tag["Value"].startswith(prefix)
            for tag in system.get("Tags", ())
        )
    ]


@PROBES.probe("file-system-goes-last", needs=("AWS",))
def no_file_system_left(context: ClientContext) -> ProbeResult:
    """After an update to lustre_gib=0, no file system is left to incur charges."""
    name = ssm_parameter(context.target.name, SSM_LUSTRE)
    found = context.client("ssm").get_parameters(Names=[name])["Parameters"]
    if not found or found[0]["Value"] != NO_LUSTRE:
        raise SubjectMissing("a deployment updated to lustre_gib=0")
    left = [str(system["FileSystemId"]) for system in _file_systems(context)]
    return ProbeResult(
        ok=not left, seen=f"left: {', '.join(left) or 'none'}", expected="left: none"
    )


@PROBES.probe("fsx-port-rules-first")
def file_system(context: ClientContext) -> ProbeResult:
    """The file system was created, so its security groups had their rules in time."""
    found = _file_systems(context)
    if not found:
        raise SubjectMissing("a file system of the deployment (lustre_gib)")
    state = str(found[0]["Lifecycle"])
    # UPDATING is a state of a working file system.
    return ProbeResult(ok=state in ("AVAILABLE", "UPDATING"), seen=state, expected="AVAILABLE")
