"""Zones in which a new VPC has subnets, so that an update can move nodes between them."""

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
"""Every zone of a region that sells a Trainium type, and at least two, as EKS requires.

The first has the NAT gateway and interface endpoints and is the nodes' default. A zone's position
in its list fixes its address ranges in existing VPCs: only append.
"""

MOST_ZONES = 3
"""Zones that an address plan has room for."""

USD_PER_GB_ACROSS_ZONES = 0.01
"""List price of EC2 data transfer within a region, each way. For orientation only."""


def subnet_zones(region: str, name: str | None = None) -> tuple[str, ...]:
    """Zones with a subnet, by id; by name if the nodes' zone is given by ``name``."""
    if name is None:
        return ZONES[region]
    # Zones worth a subnet are known only by id; EKS asks for one more than the nodes'.
    other = next(f"{region}{letter}" for letter in "ab" if f"{region}{letter}" != name)
    return name, other
