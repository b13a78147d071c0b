"""The division of a new VPC's address range: a quarter for the nodes in each of three zones."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network

from trainium_catalogue.zones import MOST_ZONES

# AWS reserves the first four addresses and the last one of every subnet (VPC User Guide).
RESERVED_ADDRESSES = 5
_SMALLEST_PREFIX = 28
# A quarter of it holds a public subnet for each zone.
SMALLEST_VPC_PREFIX = 24
QUARTER_BITS = 2
_LARGEST_VPC_PREFIX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SubnetPlan:
    """The subnets of a new VPC."""

    private: tuple[IPv4Network, ...]
    """Subnets for nodes and interface endpoints: a quarter of the range for each zone, all of one
    size, so that nodes that fit in one zone fit in another."""
    public: tuple[IPv4Network, ...]
    """Subnets for the NAT gateway: a /28 of the last quarter for each zone; the rest stays free."""

    @property
    def private_addresses(self) -> int:
        """Addresses that nodes and endpoints can take in a zone."""
        return usable_addresses(self.private[0])


def usable_addresses(subnet: IPv4Network) -> int:
    """Addresses of a subnet that AWS does not keep for itself."""
    return max(0, subnet.num_addresses - RESERVED_ADDRESSES)


def addresses_needed(*, num_nodes: int, per_node: int, num_endpoints: int) -> int:
    """Addresses that the nodes' subnet must offer; an interface endpoint takes one."""
    return num_nodes * per_node + num_endpoints


def plan_subnets(vpc_cidr: str) -> SubnetPlan:
    """Divide ``vpc_cidr``; ``ValueError`` says which ranges a VPC can have."""
    vpc = IPv4Network(vpc_cidr)
    if not _LARGEST_VPC_PREFIX <= vpc.prefixlen <= SMALLEST_VPC_PREFIX:
        raise ValueError(
            f"vpc_cidr {vpc_cidr} has a /{vpc.prefixlen} prefix; a VPC with subnets in "
            f"{MOST_ZONES} zones takes /{_LARGEST_VPC_PREFIX} to /{SMALLEST_VPC_PREFIX}"
        )
    *private, rest = vpc.subnets(prefixlen_diff=QUARTER_BITS)
    smallest = rest.subnets(new_prefix=_SMALLEST_PREFIX)
    return SubnetPlan(
        private=tuple(private), public=tuple(next(smallest) for _ in range(MOST_ZONES))
    )
