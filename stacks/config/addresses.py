"""Address arithmetic of a subnet; sizes only, no allocation."""

from __future__ import annotations

from ipaddress import IPv4Network

AWS_RESERVED = 5
"""First four and last address of every subnet (VPC User Guide, subnet CIDR blocks)."""

WIDEST_PREFIX = 16
NARROWEST_PREFIX = 28
"""The limits of a VPC and of a subnet (VPC User Guide)."""

QUARTER_BITS = 2
"""A new VPC gives one quarter of its range to the nodes' subnet.

The rest is for the public subnet, and for what needs a second availability zone later."""

ENDPOINT_ADDRESSES = 16
"""Room in a new nodes' subnet for the interface endpoints: each takes one address."""


def usable_addresses(prefix: int) -> int:
    """Addresses of a subnet that AWS leaves to its owner."""
    return (1 << (32 - prefix)) - AWS_RESERVED


def narrowest_prefix_for(addresses: int) -> int | None:
    """Prefix of the smallest subnet with room for ``addresses``; None when none is large enough."""
    host_bits = (addresses + AWS_RESERVED - 1).bit_length()
    prefix = min(32 - host_bits, NARROWEST_PREFIX)
    return prefix if prefix >= WIDEST_PREFIX else None


def prefix_of(cidr: str) -> int:
    """Prefix length of a range."""
    return IPv4Network(cidr).prefixlen
