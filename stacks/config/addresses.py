"""Counts of the addresses that nodes need and subnets offer, for checks and their messages."""

from __future__ import annotations

from ipaddress import IPv4Network

from trainium_catalogue.eks import CLUSTER_ADDRESSES, POD_ADDRESSES, SYSTEM_NODES
from trainium_catalogue.zones import INTERFACE_ENDPOINTS
from trainium_constructs.network import (
    QUARTER_BITS,
    RESERVED_ADDRESSES,
    SMALLEST_VPC_PREFIX,
    plan_subnets,
    usable_addresses,
)

WIDEST_PREFIX = 16
NARROWEST_PREFIX = 28
"""Prefix limits of a VPC and of a subnet (VPC User Guide)."""

NARROWEST_VPC_PREFIX = SMALLEST_VPC_PREFIX
"""Prefix limit of a new VPC, which must have room for the subnets of every zone."""

NUM_ENDPOINTS = len(INTERFACE_ENDPOINTS)

NUM_CLUSTER_ADDRESSES = CLUSTER_ADDRESSES + SYSTEM_NODES * (1 + POD_ADDRESSES)
"""Number of addresses that an EKS cluster needs in addition to its Trainium nodes."""


def num_available_addresses(*, subnet_cidr: str | None, vpc_cidr: str | None) -> int:
    """Count the usable addresses of the nodes' subnet, in an existing or a new VPC."""
    if subnet_cidr is not None:
        return usable_addresses(IPv4Network(subnet_cidr))
    assert vpc_cidr is not None  # the defaults give a new VPC its range
    return plan_subnets(vpc_cidr).private_addresses


def narrowest_prefix_for(addresses: int, *, new_vpc: bool) -> int | None:
    """Return the longest prefix length with room for ``addresses``; None if AWS allows none.

    The range belongs to an existing subnet, or to a new VPC with a subnet in each quarter.
    """
    host_bits = (addresses + RESERVED_ADDRESSES - 1).bit_length()
    narrowest = NARROWEST_VPC_PREFIX if new_vpc else NARROWEST_PREFIX
    prefix = min(32 - host_bits - (QUARTER_BITS if new_vpc else 0), narrowest)
    return prefix if prefix >= WIDEST_PREFIX else None
