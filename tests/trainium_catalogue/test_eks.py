"""What EKS offers, beside records that others made."""

from __future__ import annotations

import gzip
import json
from importlib.resources import files

import pytest
from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend

from trainium_catalogue.eks import (
    DEFAULT_SYSTEM_INSTANCE_TYPES,
    KUBERNETES_VERSIONS,
    another_zone,
    host_image_version,
)
from trainium_catalogue.instances import INSTANCE_TYPES
from trainium_catalogue.releases import NEURON_RELEASES

REGIONS = sorted({region for each in INSTANCE_TYPES.values() for region in each.zone_ids})
NODE_ZONES = sorted(
    {
        (region, zone)
        for each in INSTANCE_TYPES.values()
        for region, zones in each.zone_ids.items()
        for zone in zones
    }
)
# The drivers of host images, from CHANGELOG.md of github.com/awslabs/amazon-eks-ami.
DRIVERS = {"20260625": "2.28.0.0", "20260714": "2.29.0.0"}


@pytest.mark.parametrize(("region", "zone"), NODE_ZONES)
def test_the_other_zone_is_a_real_one_of_the_region(region: str, zone: str) -> None:
    real = {each.zone_id for each in RegionsAndZonesBackend.zones[region]}

    assert another_zone(zone) in real - {zone, "use1-az3"}


@pytest.mark.parametrize("region", REGIONS)
def test_a_zone_name_has_another_one_too(region: str) -> None:
    real = {each.name for each in RegionsAndZonesBackend.zones[region]}

    assert all(another_zone(name) in real - {name} for name in real)


@pytest.mark.parametrize(("region", "zone"), NODE_ZONES)
def test_add_ons_find_nodes_beside_trainium_everywhere(region: str, zone: str) -> None:
    folder = files("moto") / "ec2" / "resources" / "instance_type_offerings"
    (path,) = (
        each
        for each in (folder / "availability-zone-id").iterdir()
        if each.name.partition(".")[0] == region
    )
    data = path.read_bytes()
    rows = json.loads(gzip.decompress(data) if path.name.endswith(".gz") else data)

    assert set(DEFAULT_SYSTEM_INSTANCE_TYPES) <= {
        row["InstanceType"] for row in rows if row["Location"] == zone
    }


def test_a_release_runs_on_the_driver_of_its_host_image() -> None:
    pinned = [release for release in NEURON_RELEASES.values() if release.eks_ami_date]

    assert len(pinned) >= 4
    assert all(release.accepts_driver(DRIVERS[str(release.eks_ami_date)]) for release in pinned)


def test_a_host_image_is_named_by_patch_version_and_date() -> None:
    assert host_image_version("1.35", "20260625") == "1.35.6-20260625"


def test_one_kubectl_may_talk_to_every_version() -> None:
    minors = [int(version.partition(".")[2]) for version in KUBERNETES_VERSIONS]

    assert all(abs(minor - 35) <= 1 for minor in minors)
