"""Dividing a VPC: nodes get a quarter in each zone, and nothing overlaps."""

from __future__ import annotations

from ipaddress import IPv4Network
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainium_catalogue.zones import MOST_ZONES
from trainium_constructs.network import plan_subnets

vpcs = st.builds(
    lambda prefix, address: IPv4Network((address, prefix), strict=False),
    st.integers(16, 24),
    st.integers(0, 2**32 - 1),
)


@given(vpcs)
def test_all_subnets_lie_in_the_vpc(vpc: IPv4Network) -> None:
    plan = plan_subnets(str(vpc))

    assert all(subnet.subnet_of(vpc) for subnet in (*plan.private, *plan.public))


@given(vpcs)
def test_the_subnets_do_not_overlap(vpc: IPv4Network) -> None:
    plan = plan_subnets(str(vpc))

    assert not any(a.overlaps(b) for a, b in combinations((*plan.private, *plan.public), 2))


@given(vpcs)
def test_all_subnets_are_of_a_size_that_aws_takes(vpc: IPv4Network) -> None:
    plan = plan_subnets(str(vpc))

    assert all(16 <= subnet.prefixlen <= 28 for subnet in (*plan.private, *plan.public))


@given(vpcs)
def test_nodes_get_a_quarter_of_the_vpc_in_whichever_zone(vpc: IPv4Network) -> None:
    plan = plan_subnets(str(vpc))

    assert {subnet.num_addresses * 4 for subnet in plan.private} == {vpc.num_addresses}


def test_there_is_room_for_as_many_zones_as_a_region_may_have() -> None:
    plan = plan_subnets("10.0.0.0/24")

    assert len(plan.private) == len(plan.public) == MOST_ZONES


@pytest.mark.parametrize("cidr", ["10.0.0.0/15", "10.0.0.0/25"])
def test_a_range_that_cannot_hold_its_subnets_is_refused(cidr: str) -> None:
    with pytest.raises(ValueError, match="a VPC with subnets in 3 zones takes /16 to /24"):
        plan_subnets(cidr)
