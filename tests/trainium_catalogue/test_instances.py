"""Instance types, compared with moto's record of EC2's API."""

import gzip
import json
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainium_catalogue.instances import INSTANCE_TYPES, EfaLayout, InstanceType, find_instance_type

TYPES = st.sampled_from(list(INSTANCE_TYPES.values()))
LAYOUTS = st.sampled_from(list(EfaLayout))


def recorded(resource: str) -> Any:
    """Read a resource of moto's dump of the EC2 API."""
    path = files("moto") / "ec2" / "resources" / resource
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if resource.endswith(".gz") else data)


@pytest.fixture(scope="module")
def descriptions() -> dict[str, Any]:
    """Results of DescribeInstanceTypes, by name."""
    name = "instance_types.json"
    folder = files("moto") / "ec2" / "resources"
    if not (folder / name).is_file():
        name += ".gz"
    data = recorded(name)
    return data if isinstance(data, dict) else {item["InstanceType"]: item for item in data}


def described(instance: InstanceType, descriptions: dict[str, Any]) -> Any:
    """Look up ``instance``; fail with a remedy if the record lacks it."""
    assert instance.name in descriptions, (
        f"moto's record lacks {instance.name}: raise moto's version"
    )
    return descriptions[instance.name]


@pytest.mark.parametrize("instance", INSTANCE_TYPES.values(), ids=lambda t: t.name)
def test_sizes_agree_with_ec2(instance: InstanceType, descriptions: dict[str, Any]) -> None:
    ec2 = described(instance, descriptions)
    network = ec2["NetworkInfo"]

    assert instance.num_vcpus == ec2["VCpuInfo"]["DefaultVCpus"]
    assert instance.memory_mib == ec2["MemoryInfo"]["SizeInMiB"]
    assert instance.num_network_cards == network["MaximumNetworkCards"]
    assert instance.num_efa_interfaces == network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)
    assert {instance.enis_per_card} == {
        card["MaximumNetworkInterfaces"] for card in network["NetworkCards"]
    }
    assert instance.addresses_per_interface == network["Ipv4AddressesPerInterface"]


@pytest.mark.parametrize("instance", INSTANCE_TYPES.values(), ids=lambda t: t.name)
def test_usage_classes_agree_with_ec2(instance: InstanceType, descriptions: dict[str, Any]) -> None:
    ec2 = described(instance, descriptions)

    assert instance.usage_classes == set(ec2["SupportedUsageClasses"])


@pytest.mark.parametrize("instance", INSTANCE_TYPES.values(), ids=lambda t: t.name)
def test_zones_agree_with_ec2(instance: InstanceType) -> None:
    folder = files("moto") / "ec2" / "resources" / "instance_type_offerings"
    offers: dict[str, set[str]] = {}
    for path in (folder / "availability-zone-id").iterdir():
        data = path.read_bytes()
        rows = json.loads(gzip.decompress(data) if path.name.endswith(".gz") else data)
        zones = {row["Location"] for row in rows if row["InstanceType"] == instance.name}
        if zones:
            offers[path.name.partition(".")[0]] = zones

    assert {region: set(ids) for region, ids in instance.zone_ids.items()} == offers


@given(TYPES, LAYOUTS)
def test_one_interface_is_primary_every_card_has_one_and_card_zero_has_room_for_the_task(
    instance: InstanceType, layout: EfaLayout
) -> None:
    interfaces = instance.network_interfaces(layout)
    cards = [nic.card_index for nic in interfaces]

    assert [nic for nic in interfaces if nic.device_index == 0] == [interfaces[0]]
    assert interfaces[0].takes_address
    assert cards == list(range(instance.num_network_cards))
    assert cards.count(0) < instance.enis_per_card


def test_trn1n_uses_device_index_one_on_every_secondary_card() -> None:
    interfaces = INSTANCE_TYPES["trn1n.32xlarge"].network_interfaces(EfaLayout.EFA)

    assert {nic.device_index for nic in interfaces[1:]} == {1}


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


@given(st.text())
def test_any_unknown_name_is_refused_with_one_message(name: str) -> None:
    if name not in INSTANCE_TYPES:
        with pytest.raises(ValueError, match="is not in the catalogue"):
            find_instance_type(name)
