"""Dividing a VPC: nodes get nearly everything, and nothing overlaps."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainium_constructs.subnets import addresses_needed, plan_subnets, usable_addresses

vpcs = st.builds(
    lambda prefix, address: IPv4Network((address, prefix), strict=False),
    st.integers(16, 26),
    st.integers(0, 2**32 - 1),
)


@given(vpcs)
def test_all_subnets_lie_in_the_vpc(vpc: IPv4Network) -> None:
    plan = plan_subnets(str(vpc))

    assert plan.private.subnet_of(vpc)
    assert plan.public.subnet_of(vpc)
    assert plan.second.subnet_of(vpc)


@given(vpcs)
def test_the_subnets_do_not_overlap(vpc: IPv4Network) -> None:
    plan = plan_subnets(str(vpc))

    assert not plan.private.overlaps(plan.public)
    assert not plan.second.overlaps(plan.private)
    assert not plan.second.overlaps(plan.public)


@given(vpcs)
def test_all_subnets_are_of_a_size_that_aws_takes(vpc: IPv4Network) -> None:
    plan = plan_subnets(str(vpc))

    assert 16 <= plan.private.prefixlen <= 28
    assert plan.public.prefixlen == plan.second.prefixlen == 28


@given(vpcs)
def test_nodes_get_half_of_the_vpc(vpc: IPv4Network) -> None:
    plan = plan_subnets(str(vpc))

    assert plan.private.num_addresses * 2 == vpc.num_addresses


def test_aws_keeps_five_addresses_of_each_subnet() -> None:
    assert usable_addresses(IPv4Network("10.0.0.0/28")) == 11


def test_an_endpoint_takes_an_address() -> None:
    assert addresses_needed(num_nodes=4, per_node=9, num_endpoints=6) == 42


@pytest.mark.parametrize("cidr", ["10.0.0.0/15", "10.0.0.0/27"])
def test_a_range_that_cannot_hold_two_subnets_is_refused(cidr: str) -> None:
    with pytest.raises(ValueError, match="a VPC with two subnets takes /16 to /26"):
        plan_subnets(cidr)
