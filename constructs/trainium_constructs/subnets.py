"""How a new VPC's address range is divided: nearly everything goes to the nodes."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network

# AWS reserves the first four addresses and the last one of every subnet (VPC User Guide).
RESERVED_ADDRESSES = 5
_SMALLEST_PREFIX = 28
_SMALLEST_VPC_PREFIX = 26
_LARGEST_VPC_PREFIX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SubnetPlan:
    """The subnets of a new VPC."""

    private: IPv4Network
    """For the nodes and the interface endpoints: the first half of the range."""
    public: IPv4Network
    """For the NAT gateway: a /28 in the second half."""
    second: IPv4Network
    """For what has to be in another zone too: the next /28; the rest stays free for later use."""

    @property
    def private_addresses(self) -> int:
        """Addresses that nodes and endpoints can take."""
        return usable_addresses(self.private)


def usable_addresses(subnet: IPv4Network) -> int:
    """Addresses of a subnet that AWS does not keep for itself."""
    return max(0, subnet.num_addresses - RESERVED_ADDRESSES)


def addresses_needed(*, num_nodes: int, per_node: int, num_endpoints: int) -> int:
    """Addresses that the nodes' subnet must offer; an interface endpoint takes one."""
    return num_nodes * per_node + num_endpoints


def plan_subnets(vpc_cidr: str) -> SubnetPlan:
    """Divide ``vpc_cidr``; ``ValueError`` says which ranges a VPC can have."""
    vpc = IPv4Network(vpc_cidr)
    if not _LARGEST_VPC_PREFIX <= vpc.prefixlen <= _SMALLEST_VPC_PREFIX:
        raise ValueError(
            f"vpc_cidr {vpc_cidr} has a /{vpc.prefixlen} prefix; a VPC with two subnets takes "
            f"/{_LARGEST_VPC_PREFIX} to /{_SMALLEST_VPC_PREFIX}"
        )
    private, rest = vpc.subnets(prefixlen_diff=1)
    smallest = rest.subnets(new_prefix=_SMALLEST_PREFIX)
    return SubnetPlan(private=private, public=next(smallest), second=next(smallest))
