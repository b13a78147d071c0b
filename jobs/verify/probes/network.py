"""Claims about a deployment's network planes, zones, endpoints and file system."""

from __future__ import annotations

from typing import Any

from jobs.batch.request import Admits, admits_itself
from jobs.verify.probes.desk import PROBES, Desk
from trainium_catalogue.contract import NO_LUSTRE, SSM_LUSTRE, ssm_parameter
from trainium_catalogue.probing import Missing, Seen
from trainium_catalogue.zones import ZONES


def _environment(desk: Desk, *, with_groups: bool) -> Seen:
    """Check that Batch created the environment, with or without security groups of its own."""
    groups = desk.resources.get("securityGroupIds") or []
    if bool(groups) is not with_groups:
        kind = "without" if with_groups else "with"
        raise Missing(f"a deployment of a type {kind} EFA")
    status = desk.environment["status"]
    reason = desk.environment.get("statusReason") or ""
    return Seen(
        ok=status == "VALID",
        seen=f"{status} with {len(groups)} groups; {reason}".rstrip("; "),
        expected="VALID",
    )


@PROBES.probe("environment-without-groups", needs=("AWS", "Batch"))
def without_groups(desk: Desk) -> Seen:
    """Batch accepts the environment of a type with EFA, which names no groups."""
    return _environment(desk, with_groups=False)


@PROBES.probe("environment-with-groups", needs=("AWS", "Batch"))
def with_groups(desk: Desk) -> Seen:
    """Batch accepts the environment of a type without EFA, which names its groups."""
    return _environment(desk, with_groups=True)


def _default_group(desk: Desk) -> dict[str, Any]:
    vpc = desk.subnets[0]["VpcId"]
    found = desk.client("ec2").describe_security_groups(
        Filters=[
            {"Name": "vpc-id", "Values": [vpc]},
            {"Name": "group-name", "Values": ["default"]},
        ]
    )["SecurityGroups"]
    if not found:
        raise Missing("the default group of the VPC")
    group: dict[str, Any] = found[0]
    return group


@PROBES.probe("default-group", needs=("Batch",))
def default_group(desk: Desk) -> Seen:
    """The VPC's default group, which task interfaces carry, admits itself in both directions."""
    group = _default_group(desk)
    name = str(group["GroupId"])
    inside = admits_itself(name, group.get("IpPermissions", ()))
    outside = admits_itself(name, group.get("IpPermissionsEgress", ()))
    return Seen(
        ok=Admits.NO not in (inside, outside),
        seen=f"{name} admits itself: in {inside}, out {outside}",
        expected="in yes, out yes",
    )


@PROBES.probe("self-rule-no-duplicate", needs=("AWS", "Batch"))
def self_rules(desk: Desk) -> Seen:
    """The default group also has the rule for TCP from itself that the stack declares."""
    group = _default_group(desk)
    kinds = sorted(
        str(rule["IpProtocol"])
        for rule in group.get("IpPermissions", ())
        if any(pair.get("GroupId") == group["GroupId"] for pair in rule["UserIdGroupPairs"])
    )
    return Seen(
        ok="tcp" in kinds, seen=f"from itself: {', '.join(kinds) or 'none'}", expected="tcp"
    )


@PROBES.probe("egress-rule-replaces", needs=("AWS", "Batch"))
def egress_rule(desk: Desk) -> Seen:
    """The default group no longer allows all outbound traffic to everywhere."""
    open_rules = [
        rule
        for rule in _default_group(desk).get("IpPermissionsEgress", ())
        if rule["IpProtocol"] == "-1"
        and any(entry.get("CidrIp") == "0.0.0.0/0" for entry in rule.get("IpRanges", ()))
    ]
    return Seen(
        ok=not open_rules,
        seen="everything goes everywhere" if open_rules else "only what is stated",
        expected="only what is stated",
    )


@PROBES.probe("endpoint-zones")
def endpoint_zones(desk: Desk) -> Seen:
    """Every interface endpoint of the VPC is available; one in a wrong zone is refused."""
    found = desk.client("ec2").describe_vpc_endpoints(
        Filters=[
            {"Name": "vpc-id", "Values": [desk.subnets[0]["VpcId"]]},
            {"Name": "vpc-endpoint-type", "Values": ["Interface"]},
        ]
    )["VpcEndpoints"]
    if not found:
        raise Missing("interface endpoints in the VPC")
    states = sorted(f"{e['ServiceName'].rpartition('.')[2]} {e['State'].lower()}" for e in found)
    return Seen(
        ok=all(endpoint["State"].lower() == "available" for endpoint in found),
        seen=", ".join(states),
        expected="all available",
    )


@PROBES.probe("planned-zones-seen", needs=("AWS",))
def planned_zones(desk: Desk) -> Seen:
    """The account sees every zone in which a new VPC has a subnet."""
    found = desk.client("ec2").describe_availability_zones()["AvailabilityZones"]
    seen = {str(zone["ZoneId"]) for zone in found}
    planned = ZONES[desk.target.region]
    return Seen(
        ok=set(planned) <= seen,
        seen=", ".join(sorted(seen)),
        expected=", ".join(planned),
    )


def _other_zone(desk: Desk) -> str:
    """Return the zone of the nodes; Missing if it is the first in the region's list."""
    zone = str(desk.subnets[0]["AvailabilityZoneId"])
    if zone == ZONES[desk.target.region][0]:
        raise Missing("nodes in another zone than the region's first")
    return zone


def _succeeded(desk: Desk, zone: str, what: str) -> Seen:
    assert desk.job is not None
    return Seen(
        ok=desk.job.succeeded,
        seen=f"{desk.job.run} {desk.job.status.lower()} in {zone}, {what}",
        expected="a run that succeeded",
    )


@PROBES.probe("ways-out-across-zones", needs=("AWS", "a run of verify"))
def ways_out(desk: Desk) -> Seen:
    """A node in a different zone from the ways out got its image, its log and the bucket."""
    zone = _other_zone(desk)
    return _succeeded(desk, zone, f"ways out in {ZONES[desk.target.region][0]}")


@PROBES.probe("lustre-across-zones", needs=("AWS", "a run of verify"))
def lustre_across_zones(desk: Desk) -> Seen:
    """A node in a different zone from the file system mounted it, or preflight had refused it."""
    zone, systems = _other_zone(desk), _file_systems(desk)
    if not systems:
        raise Missing("a file system of the deployment (lustre_gib)")
    return _succeeded(desk, zone, f"with {systems[0]['FileSystemId']}")


def _file_systems(desk: Desk) -> list[dict[str, Any]]:
    """List the file systems created by the deployment's stacks."""
    prefix = f"trainium-{desk.target.name}-"
    return [
        system
        for page in desk.client("fsx").get_paginator("describe_file_systems").paginate()
        for system in page["FileSystems"]
        if any(
            tag["Key"] == "aws:cloudformation:stack-name" and tag["Value"].startswith(prefix)
            for tag in system.get("Tags", ())
        )
    ]


@PROBES.probe("file-system-goes-last", needs=("AWS",))
def no_file_system_left(desk: Desk) -> Seen:
    """A deployment without a file system has none left that costs money."""
    name = ssm_parameter(desk.target.name, SSM_LUSTRE)
    found = desk.client("ssm").get_parameters(Names=[name])["Parameters"]
    if not found or found[0]["Value"] != NO_LUSTRE:
        raise Missing("a deployment after lustre_gib=0")
    left = [str(system["FileSystemId"]) for system in _file_systems(desk)]
    return Seen(ok=not left, seen=f"left: {', '.join(left) or 'none'}", expected="left: none")


@PROBES.probe("fsx-port-rules-first")
def file_system(desk: Desk) -> Seen:
    """The deployment's file system was created, so its groups had their rules in time."""
    found = _file_systems(desk)
    if not found:
        raise Missing("a file system of the deployment (lustre_gib)")
    state = str(found[0]["Lifecycle"])
    # UPDATING is a state of a working file system.
    return Seen(ok=state in ("AVAILABLE", "UPDATING"), seen=state, expected="AVAILABLE")
