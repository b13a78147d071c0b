"""The shape of an example: a template that AWS refuses, beside a minimal one that it takes."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


class _Removed:
    """Takes a property away."""


REMOVED = _Removed()


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Changes of a template: ``Id.Property.0.Name`` to its value, or ``Id`` to a resource."""

    base: Json
    """Resources that AWS takes."""
    bad: Mapping[str, Any]
    good: Mapping[str, Any] = field(default_factory=dict)
    """Changes that AWS takes, where the base says nothing of the matter."""
    update: bool = False
    """True: only the update from good to bad is refused."""
    region: str = "us-west-2"

    def fails(self) -> Json:
        """Resources that AWS refuses, and what they refer to."""
        return self._changed(self.bad)

    def passes(self) -> Json:
        """Resources that AWS takes."""
        return self._changed(self.good)

    def touched(self) -> set[str]:
        """Logical ids that the bad changes are in."""
        return {path.partition(".")[0] for path in self.bad}

    def _changed(self, changes: Mapping[str, Any]) -> Json:
        resources = copy.deepcopy(self.base)
        for path, value in changes.items():
            _set(resources, path, value)
        ids = self.touched() | {path.partition(".")[0] for path in self.good}
        return closure(resources, ids & {*resources})


def _set(resources: Json, path: str, value: Any) -> None:
    logical_id, *names = path.split(".")
    if not names:
        resources[logical_id] = value
        return
    place: Any = resources[logical_id]["Properties"]
    for name in names[:-1]:
        place = place[int(name)] if isinstance(place, list) else place.setdefault(name, {})
    last: Any = int(names[-1]) if isinstance(place, list) else names[-1]
    if value is REMOVED:
        del place[last]
    elif isinstance(place, list) and last == len(place):
        place.append(value)
    else:
        place[last] = value


def closure(resources: Json, ids: set[str]) -> Json:
    """The resources of some ids with all that they refer to, in the template's order."""
    wanted = set(ids)
    while True:
        text = json.dumps([resources[logical_id] for logical_id in sorted(wanted)])
        more = {each for each in resources if f'"{each}"' in text} - wanted
        if not more:
            return {each: resources[each] for each in resources if each in wanted}
        wanted |= more


def resource(kind: str, /, **properties: Any) -> Json:
    """A resource of a template."""
    return {"Type": kind, "Properties": properties}


def ref(logical_id: str) -> Json:
    """Ref."""
    return {"Ref": logical_id}


def att(logical_id: str, attribute: str) -> Json:
    """Fn::GetAtt."""
    return {"Fn::GetAtt": [logical_id, attribute]}


def trust(*services: str, actions: tuple[str, ...] = ("sts:AssumeRole",)) -> Json:
    """A trust policy for services."""
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": list(services)},
        "Action": list(actions),
    }
    return {"Version": "2012-10-17", "Statement": [statement]}


def allow(*actions: str, resources: Any = "*") -> Json:
    """A policy that allows some actions."""
    statement = {"Effect": "Allow", "Action": list(actions), "Resource": resources}
    return {"Version": "2012-10-17", "Statement": [statement]}


NETWORK: Json = {
    "Vpc": resource(
        "AWS::EC2::VPC",
        CidrBlock="10.0.0.0/16",
        EnableDnsSupport=True,
        EnableDnsHostnames=True,
    ),
    "One": resource(
        "AWS::EC2::Subnet",
        VpcId=ref("Vpc"),
        CidrBlock="10.0.0.0/24",
        AvailabilityZoneId="usw2-az1",
    ),
    "Two": resource(
        "AWS::EC2::Subnet",
        VpcId=ref("Vpc"),
        CidrBlock="10.0.1.0/24",
        AvailabilityZoneId="usw2-az2",
    ),
    "Group": resource("AWS::EC2::SecurityGroup", GroupDescription="plain", VpcId=ref("Vpc")),
}
