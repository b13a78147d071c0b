"""Checks in templates that nodes of a multi-node job can reach each other on both network planes.

The planes are the host's interfaces, EFA included, whose groups the launch template names, and
the tasks' own interfaces (awsvpc). The latter have the compute environment's groups or, if it
names none, the VPC's default security group
(docs.aws.amazon.com/batch/latest/userguide/mnp-ce.html).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Template = dict[str, Any]

_EVERYTHING = "-1"
_RULES = {
    "AWS::EC2::SecurityGroupIngress": ("in", "SourceSecurityGroupId"),
    "AWS::EC2::SecurityGroupEgress": ("out", "DestinationSecurityGroupId"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """An interface of a node or of its task."""

    name: str
    groups: list[str]
    """Logical ids of the groups; a default security group has its VPC's."""
    traffic: str
    """Traffic that must pass: "everything" for EFA, which is not IP, or "TCP"."""


def missing_rules(network: Template, batch: Template) -> list[str]:
    """Describe the missing rules between nodes; empty if there are none."""
    open_groups = _open_groups(network)
    return [
        f"{interface.name}: no group lets {interface.traffic} {direction} for itself"
        for interface in _interfaces(network, batch)
        for direction in ("in", "out")
        if not open_groups[interface.traffic, direction] & set(interface.groups)
    ]


def _interfaces(network: Template, batch: Template) -> Iterator[Interface]:
    """Yield the host's interfaces, then the task's, for every environment of nodes."""
    environments = _properties(batch, "AWS::Batch::ComputeEnvironment")
    templates = _properties(batch, "AWS::EC2::LaunchTemplate")
    if not environments or not templates:
        yield Interface(name="a template without nodes", groups=[], traffic="TCP")
    for template in templates:
        data = template["LaunchTemplateData"]
        for nic in data.get("NetworkInterfaces", ()):
            yield Interface(
                name=f"host interface on card {nic['NetworkCardIndex']}",
                groups=[_group(each, network) for each in nic.get("Groups", ())],
                traffic="everything",
            )
        if "NetworkInterfaces" not in data:
            groups = [_group(each, network) for each in data.get("SecurityGroupIds", ())]
            yield Interface(name="host interface", groups=groups, traffic="TCP")
    vpcs = [name for name, one in network["Resources"].items() if one["Type"] == "AWS::EC2::VPC"]
    for environment in environments:
        named = environment["ComputeResources"].get("SecurityGroupIds")
        groups = vpcs if named is None else [_group(each, network) for each in named]
        yield Interface(name="task interface", groups=groups, traffic="TCP")


def _properties(batch: Template, resource_type: str) -> list[dict[str, Any]]:
    """List the properties of each resource of a type, except CPU jobs', which talk to no peers."""
    return [
        resource.get("Properties", {})
        for logical_id, resource in batch["Resources"].items()
        if resource["Type"] == resource_type and not logical_id.startswith("Cpu")
    ]


def _open_groups(network: Template) -> dict[tuple[str, str], set[str]]:
    """Find the groups that allow all traffic, or at least all TCP, among members, by direction."""
    found: dict[tuple[str, str], set[str]] = {
        (traffic, direction): set()
        for traffic in ("everything", "TCP")
        for direction in ("in", "out")
    }

    def note(rule: Template, group: str, direction: str, peer: str) -> None:
        if not group or _logical_id(rule.get(peer)) != group:
            return
        if rule["IpProtocol"] == _EVERYTHING:
            found["everything", direction].add(group)
            found["TCP", direction].add(group)
        elif (rule["IpProtocol"], rule.get("FromPort"), rule.get("ToPort")) == ("tcp", 0, 65535):
            found["TCP", direction].add(group)

    for logical_id, resource in network["Resources"].items():
        properties = resource.get("Properties", {})
        if resource["Type"] in _RULES:
            note(properties, _logical_id(properties["GroupId"]), *_RULES[resource["Type"]])
        elif resource["Type"] == "AWS::EC2::SecurityGroup":
            for resource_type, (direction, peer) in _RULES.items():
                for rule in properties.get(resource_type.removeprefix("AWS::EC2::"), ()):
                    note(rule, logical_id, direction, peer)
    return found


def _group(value: Any, network: Template) -> str:
    """Follow an import to the logical id of the group that the network exports."""
    match value:
        case {"Fn::ImportValue": name}:
            for output in network["Outputs"].values():
                if output.get("Export", {}).get("Name") == name:
                    return _logical_id(output["Value"])
    return ""


def _logical_id(value: Any) -> str:
    match value:
        case {"Fn::GetAtt": [str(logical_id), "GroupId" | "DefaultSecurityGroup"]}:
            return logical_id
    return ""
