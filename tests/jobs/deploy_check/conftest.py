"""Templates that are small enough to read, and the CDK CLI's own database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from jobs.deploy_check.changes import Change, Update
from jobs.deploy_check.replacements import Replacements, read_replacements

Json = dict[str, Any]
NETWORK, STORAGE, BATCH = (f"trainium-default-{part}" for part in ("network", "storage", "batch"))


@pytest.fixture(scope="session")
def replacements() -> Replacements:
    """What the pinned CLI knows."""
    return read_replacements()


def resource(kind: str, properties: Json | None = None, **attributes: Any) -> Json:
    return {"Type": kind, "Properties": properties or {}, **attributes}


def template(resources: Json, exports: Mapping[str, Any] | None = None, **rest: Any) -> Json:
    outputs = {
        name: {"Value": value, "Export": {"Name": name}} for name, value in (exports or {}).items()
    }
    return {"Resources": resources, "Outputs": outputs, **rest}


def subnet(cidr: str = "10.0.0.0/24", zone: str = "usw2-az4") -> Json:
    properties = {"VpcId": {"Ref": "Vpc"}, "CidrBlock": cidr, "AvailabilityZoneId": zone}
    return resource("AWS::EC2::Subnet", properties)


def launch_template(size: int = 200) -> Json:
    return resource("AWS::EC2::LaunchTemplate", {"LaunchTemplateData": {"Size": size}})


def environment(minutes: int | None = 7200, replace: bool = False, **resources: Any) -> Json:
    version = {"Fn::GetAtt": ["Template", "LatestVersionNumber"]}
    properties: Json = {
        "Type": "MANAGED",
        "ReplaceComputeEnvironment": replace,
        "ComputeResources": {
            "MaxvCpus": 256,
            "Subnets": ["subnet-1"],
            "LaunchTemplate": {"LaunchTemplateId": {"Ref": "Template"}, "Version": version},
            **resources,
        },
    }
    if minutes is not None:
        properties["UpdatePolicy"] = {"JobExecutionTimeoutMinutes": minutes}
    return resource("AWS::Batch::ComputeEnvironment", properties)


def changes(update: Update) -> dict[str, Change]:
    """By logical id."""
    return {change.logical_id: change for change in update.changes()}
