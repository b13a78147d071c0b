"""Prerequisites of a run other than capacity, for `doctor` and `verify`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jobs.aws import Ec2Client, EcrClient
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


def interface_endpoints(client: Ec2Client, vpc: str) -> Sequence[Mapping[str, Any]]:
    """List the interface endpoints of a VPC."""
    endpoints: Sequence[Mapping[str, Any]] = client.describe_vpc_endpoints(
        Filters=[
            {"Name": "vpc-id", "Values": [vpc]},
            {"Name": "vpc-endpoint-type", "Values": ["Interface"]},
        ]
    )["VpcEndpoints"]
    return endpoints
