"""Dividing a VPC: nodes get a quarter in each zone, and nothing overlaps."""

from __future__ import annotations

from ipaddress import IPv4Network
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainium_catalogue.zones import MAX_ZONES
from trainium_constructs.network import plan_subnets

vpcs = st.builds(
    lambda prefix, address: IPv4Network((address, prefix), strict=False),
    st.integers(16, 24),
    st.integers(0, 2**32 - 1),
)


@given(vpcs)
def test_subnets_do_not_overlap_and_nodes_get_quarter_per_zone(
    vpc: IPv4Network,
) -> None:
    plan = plan_subnets(str(vpc))
    subnets = (*plan.private, *plan.public)

    assert all(subnet.subnet_of(vpc) for subnet in subnets)
    assert not any(a.overlaps(b) for a, b in combinations(subnets, 2))
    # AWS accepts no others.
    assert all(16 <= subnet.prefixlen <= 28 for subnet in subnets)
    assert {subnet.num_addresses * 4 for subnet in plan.private} == {vpc.num_addresses}


def test_subnet_plan_has_room_for_max_zones() -> None:
    plan = plan_subnets("10.0.0.0/24")

    assert len(plan.private) == len(plan.public) == MAX_ZONES


@pytest.mark.parametrize("cidr", ["10.0.0.0/15", "10.0.0.0/25"])
def test_range_that_cannot_hold_its_subnets_is_refused(cidr: str) -> None:
    with pytest.raises(ValueError, match="for subnets in 3 zones, use /16 to /24"):
        plan_subnets(cidr)
