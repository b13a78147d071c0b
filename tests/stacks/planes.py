"""Proof, on templates, that both network planes of a multi-node job admit the cluster to itself.

The planes are the host's EFA interfaces, whose groups the launch template names, and the tasks'
own interfaces (awsvpc), whose groups the compute environment names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Template = dict[str, Any]

_ALL_PROTOCOLS = "-1"


def missing_rules(network: Template, batch: Template) -> list[str]:
    """What keeps a node from talking to another, in words; nothing, if all is well."""
    admitting = _groups_open_to_themselves(network)
    return [
        f"{interface}: no group lets everything {direction} for itself"
        for interface, groups in _interfaces(batch)
        for direction, open_groups in admitting.items()
        if not {_group_id(group, network) for group in groups} & open_groups
    ]


def _interfaces(batch: Template) -> Iterator[tuple[str, list[Any]]]:
    found = {"AWS::EC2::LaunchTemplate": 0, "AWS::Batch::ComputeEnvironment": 0}
    for logical_id, resource in batch["Resources"].items():
        properties = resource.get("Properties", {})
        if logical_id.startswith("Cpu"):  # those instances talk to no other
            continue
        if resource["Type"] in found:
            found[resource["Type"]] += 1
        if resource["Type"] == "AWS::EC2::LaunchTemplate":
            for nic in properties["LaunchTemplateData"]["NetworkInterfaces"]:
                yield f"host interface on card {nic['NetworkCardIndex']}", nic.get("Groups", [])
        elif resource["Type"] == "AWS::Batch::ComputeEnvironment":
            yield "task interface", properties["ComputeResources"].get("SecurityGroupIds", [])
    for resource_type, count in found.items():
        if not count:
            yield f"no {resource_type}", []


def _groups_open_to_themselves(network: Template) -> dict[str, set[str]]:
    open_groups: dict[str, set[str]] = {"in": set(), "out": set()}
    for logical_id, resource in network["Resources"].items():
        properties = resource.get("Properties", {})
        match resource["Type"]:
            case "AWS::EC2::SecurityGroupIngress":
                _note(properties, properties, "SourceSecurityGroupId", open_groups["in"])
            case "AWS::EC2::SecurityGroupEgress":
                _note(properties, properties, "DestinationSecurityGroupId", open_groups["out"])
            case "AWS::EC2::SecurityGroup":
                group = {"GroupId": {"Fn::GetAtt": [logical_id, "GroupId"]}}
                for rule in properties.get("SecurityGroupIngress", []):
                    _note(rule, group, "SourceSecurityGroupId", open_groups["in"])
                for rule in properties.get("SecurityGroupEgress", []):
                    _note(rule, group, "DestinationSecurityGroupId", open_groups["out"])
    return open_groups


def _note(rule: Template, group: Template, peer: str, open_groups: set[str]) -> None:
    """Remember the group of ``rule`` if the rule lets everything pass to that very group."""
    if rule.get("IpProtocol") == _ALL_PROTOCOLS and rule.get(peer) == group["GroupId"]:
        open_groups.add(_logical_id(group["GroupId"]))


def _group_id(group: Any, network: Template) -> str:
    """Follow an import to the logical id of the group that the network exports."""
    match group:
        case {"Fn::ImportValue": name}:
            for output in network["Outputs"].values():
                if output.get("Export", {}).get("Name") == name:
                    return _logical_id(output["Value"])
    return ""


def _logical_id(value: Any) -> str:
    match value:
        case {"Fn::GetAtt": [str(logical_id), "GroupId"]}:
            return logical_id
    return ""
