"""Zones of a new VPC's subnets, between which an update can move nodes, and the VPC's endpoints."""

from collections.abc import Mapping
from types import MappingProxyType

ZONES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "us-east-1": ("use1-az6", "use1-az5", "use1-az4"),
        "us-east-2": ("use2-az3", "use2-az1", "use2-az2"),
        "us-west-2": ("usw2-az4", "usw2-az1"),
        "ap-south-1": ("aps1-az2", "aps1-az1"),
        "ap-south-2": ("aps2-az1", "aps2-az2", "aps2-az3"),
        "ap-southeast-2": ("apse2-az1", "apse2-az2"),
        "ap-southeast-4": ("apse4-az1", "apse4-az3"),
        "sa-east-1": ("sae1-az1", "sae1-az2", "sae1-az3"),
    }
)
"""All zones of a region that offer a Trainium type, and at least two, as EKS requires.

The first has the NAT gateway and interface endpoints and is the nodes' default. A zone's position
in its list determines its address ranges in existing VPCs: only append.
"""

REGIONS_WITHOUT_BUDGETS = frozenset({"ap-south-2", "ap-southeast-4"})
"""Regions of ``ZONES`` in which CloudFormation does not support AWS::Budgets::Budget.

github.com/aws-cloudformation/cloudformation-coverage-roadmap/issues/2177
"""

INTERFACE_ENDPOINTS = ("ecr.api", "ecr.dkr", "ecs", "ecs-agent", "ecs-telemetry", "logs")
"""Services with an interface endpoint in a new VPC. Every node uses them for its image, the ECS
control plane and its logs."""

MAX_ZONES = 3
"""Maximum number of zones in an address plan."""

USD_PER_GB_ACROSS_ZONES = 0.01
"""List price of EC2 data transfer within a region, each way. For orientation only."""


def subnet_zones(region: str, name: str | None = None) -> tuple[str, ...]:
    """Return the zones with a subnet: ids, or names if ``name`` specifies the nodes' zone."""
    if name is None:
        return ZONES[region]
    # Suitable zones are known only by id; EKS requires one in addition to the nodes'.
    other = next(f"{region}{letter}" for letter in "ab" if f"{region}{letter}" != name)
    return name, other
