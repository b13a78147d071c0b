"""Zones with a subnet: all to which nodes may move, and enough for a cluster."""

from __future__ import annotations

import pytest
from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend

from tests.support.ec2_record import types_by_zone
from trainium_catalogue.instances import DEFAULT_CPU_INSTANCE_TYPES, INSTANCE_TYPES
from trainium_catalogue.zones import ZONES, subnet_zones

# Zones that cannot have a cluster's control plane (EKS user guide, VPC and subnet requirements).
WITHOUT_CONTROL_PLANE = {"use1-az3", "usw1-az2", "cac1-az3"}


def offered(region: str) -> set[str]:
    return {zone for each in INSTANCE_TYPES.values() for zone in each.zone_ids.get(region, ())}


def test_every_region_that_sells_trainium_is_listed() -> None:
    assert set(ZONES) == {region for each in INSTANCE_TYPES.values() for region in each.zone_ids}


@pytest.mark.parametrize("region", ZONES)
def test_every_zone_that_sells_a_trainium_type_is_listed(region: str) -> None:
    assert offered(region) <= set(ZONES[region])


@pytest.mark.parametrize("region", ZONES)
def test_zones_exist_and_support_control_plane(region: str) -> None:
    real = {each.zone_id for each in RegionsAndZonesBackend.zones[region]}

    assert set(ZONES[region]) <= real - WITHOUT_CONTROL_PLANE


@pytest.mark.parametrize("region", ZONES)
def test_cpu_jobs_find_instances_in_every_zone(region: str) -> None:
    sold = types_by_zone(region)

    assert all(sold[zone] & set(DEFAULT_CPU_INSTANCE_TYPES) for zone in ZONES[region])


def test_existing_address_ranges_keep_their_zones() -> None:
    """A change here replaces subnets that are in use; append instead."""
    assert dict(ZONES) == {
        "us-east-1": ("use1-az6", "use1-az5", "use1-az4"),
        "us-east-2": ("use2-az3", "use2-az1", "use2-az2"),
        "us-west-2": ("usw2-az4", "usw2-az1"),
        "ap-south-1": ("aps1-az2", "aps1-az1"),
        "ap-south-2": ("aps2-az1", "aps2-az2", "aps2-az3"),
        "ap-southeast-2": ("apse2-az1", "apse2-az2"),
        "ap-southeast-4": ("apse4-az1", "apse4-az3"),
        "sa-east-1": ("sae1-az1", "sae1-az2", "sae1-az3"),
    }


@pytest.mark.parametrize("name", ["us-west-2a", "us-west-2b", "us-west-2d"])
def test_zone_name_has_second_zone(name: str) -> None:
    first, second = subnet_zones("us-west-2", name)

    assert first == name
    assert second in {"us-west-2a", "us-west-2b"} - {name}
