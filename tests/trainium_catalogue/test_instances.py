"""Instance types, compared with moto's record of EC2's API."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ec2_record import descriptions, offering_regions, types_by_zone
from trainium_catalogue.instances import INSTANCE_TYPES, EfaLayout, InstanceType, find_instance_type

TYPES = st.sampled_from(list(INSTANCE_TYPES.values()))
LAYOUTS = st.sampled_from(list(EfaLayout))


def described(instance: InstanceType) -> Any:
    """Look up ``instance``; fail with a remedy if the record lacks it."""
    assert instance.name in descriptions(), (
        f"moto's record lacks {instance.name}: raise moto's version"
    )
    return descriptions()[instance.name]


@pytest.mark.parametrize("instance", INSTANCE_TYPES.values(), ids=lambda t: t.name)
def test_sizes_and_usage_classes_agree_with_ec2(instance: InstanceType) -> None:
    ec2 = described(instance)
    network = ec2["NetworkInfo"]

    assert instance.num_vcpus == ec2["VCpuInfo"]["DefaultVCpus"]
    assert instance.memory_mib == ec2["MemoryInfo"]["SizeInMiB"]
    assert instance.num_network_cards == network["MaximumNetworkCards"]
    assert instance.num_efa_interfaces == network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)
    assert {instance.enis_per_card} == {
        card["MaximumNetworkInterfaces"] for card in network["NetworkCards"]
    }
    assert instance.addresses_per_interface == network["Ipv4AddressesPerInterface"]
    assert instance.usage_classes == set(ec2["SupportedUsageClasses"])


@pytest.mark.parametrize("instance", INSTANCE_TYPES.values(), ids=lambda t: t.name)
def test_zones_agree_with_ec2(instance: InstanceType) -> None:
    offers = {
        region: zones
        for region in offering_regions()
        if (zones := {z for z, names in types_by_zone(region).items() if instance.name in names})
    }

    assert {region: set(ids) for region, ids in instance.zone_ids.items()} == offers


@given(TYPES, LAYOUTS)
def test_one_interface_is_primary_every_card_has_one_and_card_zero_has_room_for_the_task(
    instance: InstanceType, layout: EfaLayout
) -> None:
    interfaces = instance.network_interfaces(layout)
    cards = [nic.card_index for nic in interfaces]

    assert [nic.device_index for nic in interfaces] == [0, *[1] * (len(interfaces) - 1)]
    assert interfaces[0].takes_address
    assert cards == list(range(instance.num_network_cards))
    assert cards.count(0) < instance.enis_per_card


@pytest.mark.parametrize(
    ("name", "layout", "addresses"),
    [
        ("trn1.32xlarge", EfaLayout.EFA, 9),
        ("trn1n.32xlarge", EfaLayout.EFA, 17),
        ("trn2.48xlarge", EfaLayout.EFA_ONLY, 2),
        ("trn1.2xlarge", EfaLayout.EFA, 2),
    ],
)
def test_addresses_count_the_task_interface(name: str, layout: EfaLayout, addresses: int) -> None:
    assert INSTANCE_TYPES[name].addresses_per_node(layout) == addresses


@given(TYPES)
def test_container_leaves_room_for_the_host(instance: InstanceType) -> None:
    assert instance.container_memory_mib <= instance.memory_mib - 2048
    assert instance.container_vcpus < instance.num_vcpus
    assert 0 < instance.shared_memory_mib < instance.container_memory_mib


def test_shared_memory_grows_with_the_processes_of_a_node() -> None:
    gib = {name: kind.shared_memory_mib / 1024 for name, kind in INSTANCE_TYPES.items()}

    assert (gib["trn2.48xlarge"], gib["trn1.32xlarge"], gib["trn2.3xlarge"]) == (64, 32, 8)
    assert gib["trn1.2xlarge"] < 8  # a quarter of its container's


def test_unknown_type_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'trn1\.32xl' .* did you mean 'trn1\.32xlarge'\?"):
        find_instance_type("trn1.32xl")
