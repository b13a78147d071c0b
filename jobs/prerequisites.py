"""Prerequisites of a run other than capacity, for `doctor` and `verify`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jobs.aws import BatchClient, Ec2Client, EcrClient
from jobs.deployment import Deployment
from trainium_catalogue.contract import TAG_DEPLOYMENT
from trainium_catalogue.instances import InstanceType

_ECR = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[^.]+)\.[^/]+/(?P<repository>[^:@]+)(?P<rest>.*)"
)
_SDK = re.compile(r"-sdk(\d+(?:\.\d+)+)")


def is_in_registry(ecr: Callable[[str], EcrClient], uri: str) -> bool | None:
    """Return whether the image exists in ECR; None for an image outside private ECR repositories.

    ``ecr`` returns the client for a region.
    """
    parts = _ECR.match(uri)
    if parts is None:
        return None
    tag, _, digest = parts["rest"].partition("@")
    image = {"imageDigest": digest} if digest else {"imageTag": tag.lstrip(":") or "latest"}
    response = ecr(parts["region"]).batch_get_image(
        registryId=parts["account"], repositoryName=parts["repository"], imageIds=[image]
    )
    return bool(response["images"])


def sdk_of_image(uri: str) -> str | None:
    """Read the Neuron release from the tag of an AWS image; None for any other tag."""
    named = _SDK.search(uri)
    return named[1] if named else None


def list_offering_zones(client: Ec2Client, instance_type: InstanceType) -> list[str]:
    """List the ids of the region's zones in which the instance type is offered."""
    offered = client.describe_instance_type_offerings(
        LocationType="availability-zone-id",
        Filters=[{"Name": "instance-type", "Values": [instance_type.name]}],
    )["InstanceTypeOfferings"]
    return sorted(str(offer["Location"]) for offer in offered)


def list_hosts(client: Ec2Client, target: Deployment) -> list[Mapping[str, Any]]:
    """List the nodes' instances, newest first, including those terminated in the last hour."""
    pages = client.describe_instances(
        Filters=[
            {"Name": f"tag:{TAG_DEPLOYMENT}", "Values": [target.name]},
            {"Name": "instance-type", "Values": [target.instance_type.name]},
        ]
    )["Reservations"]
    found = [instance for page in pages for instance in page["Instances"]]
    return sorted(found, key=lambda instance: str(instance.get("LaunchTime")), reverse=True)


def find_container(batch: BatchClient, definition: str) -> Mapping[str, Any] | None:
    """Read the container of a job definition; None if it does not exist or has none."""
    container: Mapping[str, Any] | None = None
    for each in batch.describe_job_definitions(jobDefinitions=[definition])["jobDefinitions"]:
        container = each.get("containerProperties")
        if nodes := each.get("nodeProperties"):
            container = nodes["nodeRangeProperties"][0]["container"]
    return container


def interface_endpoints(client: Ec2Client, vpc: str) -> Sequence[Mapping[str, Any]]:
    """List the interface endpoints of a VPC."""
    endpoints: Sequence[Mapping[str, Any]] = client.describe_vpc_endpoints(
        Filters=[
            {"Name": "vpc-id", "Values": [vpc]},
            {"Name": "vpc-endpoint-type", "Values": ["Interface"]},
        ]
    )["VpcEndpoints"]
    return endpoints
