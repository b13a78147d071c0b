"""The catalogue's EKS facts, compared with third-party records."""

from __future__ import annotations

import pytest

from tests.support.ec2_record import types_by_zone
from trainium_catalogue.eks import DEFAULT_SYSTEM_INSTANCE_TYPES
from trainium_catalogue.instances import INSTANCE_TYPES
from trainium_catalogue.kubernetes import kubelet_memory_mib, pod_resources
from trainium_catalogue.releases import NEURON_RELEASES
from trainium_catalogue.zones import ZONES

# The drivers of AMIs, from CHANGELOG.md of github.com/awslabs/amazon-eks-ami.
DRIVERS = {"20260625": "2.28.0.0", "20260714": "2.29.0.0"}

# 11 MiB a pod and 255, with as many pods as nodeadm's table of interfaces gives: 4 of 15 addresses
# for trn1.2xlarge and so on (amazon-eks-ami, nodeadm/internal/kubelet, config.go and
# instance-info.jsonl; trn2u.48xlarge is looked up in EC2).
RESERVED_MIB = {
    "trn1.2xlarge": 893,
    "trn1.32xlarge": 2972,
    "trn1n.32xlarge": 2972,
    "trn2.3xlarge": 585,
    "trn2.48xlarge": 1355,
    "trn2u.48xlarge": 1355,
}


@pytest.mark.parametrize("region", ZONES)
def test_system_instance_types_are_available_in_every_zone(region: str) -> None:
    offered = types_by_zone(region)

    assert all(set(DEFAULT_SYSTEM_INSTANCE_TYPES) <= offered[zone] for zone in ZONES[region])


def test_release_runs_on_the_driver_of_its_host_image() -> None:
    pinned = [release for release in NEURON_RELEASES.values() if release.eks_ami_date]

    assert len(pinned) >= 4
    assert all(release.accepts_driver(DRIVERS[str(release.eks_ami_date)]) for release in pinned)


@pytest.mark.parametrize("name", INSTANCE_TYPES)
def test_pod_fits_allocatable_of_small_node(name: str) -> None:
    """MemTotal is less than EC2's figure: Karpenter subtracts 7.5% before it has seen a node
    (VM_MEMORY_OVERHEAD_PERCENT). The pods of every node request less than 512 MiB."""
    instance = INSTANCE_TYPES[name]
    capacity = instance.memory_mib * (1 - 0.075)
    pod = pod_resources(instance)

    assert int(pod["memory"].removesuffix("Mi")) <= capacity - RESERVED_MIB[name] - 100 - 512
    assert int(pod["cpu"]) < instance.num_vcpus


@pytest.mark.parametrize("name", INSTANCE_TYPES)
def test_kubelet_reserve_matches_eks_image(name: str) -> None:
    assert kubelet_memory_mib(INSTANCE_TYPES[name]) == RESERVED_MIB[name] + 100
