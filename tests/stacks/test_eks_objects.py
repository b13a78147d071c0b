"""Objects that the stack applies to its cluster: valid, and consistent with the catalogue."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest

from tests.stacks.cluster_objects import object_of, objects_of, with_cluster
from tests.stacks.synthesis import DNS_NAME, EXISTING_LUSTRE, Deployment, name_of
from trainium_catalogue import contract, kubernetes
from trainium_catalogue.eks import KUBERNETES_VERSIONS

# Without EFA, and with several nodes' worth of everything.
TYPES = [{"instance_type": name} for name in ("trn1.2xlarge", "trn1.32xlarge")]
OF_VOLCANO = "scheduling.volcano.sh/v1beta1"
EXISTING = {**EXISTING_LUSTRE, "eks_subnet_ids": "subnet-87654321"}


@pytest.fixture(scope="module")
def made() -> Deployment:
    return with_cluster()


def pod_templates(made: Deployment) -> list[dict[str, Any]]:
    return [each["spec"]["template"]["spec"] for each in objects_of(made) if "template" in
            each.get("spec", {})]  # fmt: skip


def lustre_of(made: Deployment) -> tuple[dict[str, Any], dict[str, Any]]:
    """Find the specs of the file system's volume and claim, which refer to each other."""
    (volume,) = (each for each in objects_of(made) if each["kind"] == "PersistentVolume")
    (claim,) = (each for each in objects_of(made) if each["kind"] == "PersistentVolumeClaim")
    assert volume["spec"]["claimRef"]["name"] == claim["metadata"]["name"]
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    return volume["spec"], claim["spec"]


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_every_object_is_valid_for_the_version(version: str) -> None:
    for each in objects_of(with_cluster(kubernetes_version=version)):
        if each["apiVersion"] != OF_VOLCANO:
            kubernetes_validate.validate(each, version, strict=True)


def test_validation_detects_planted_fault(made: Deployment) -> None:
    service = object_of(made, "Service", "neuron-monitor")
    service["spec"]["prots"] = service["spec"].pop("ports")

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(service, "1.35", strict=True)


@pytest.mark.parametrize("keys", TYPES, ids=name_of)
def test_queue_has_room_for_pods_on_all_nodes_and_quota_for_queue(keys: dict[str, object]) -> None:
    made = with_cluster(**keys)
    quota = object_of(made, "ResourceQuota", "trainium")["spec"]["hard"]
    instance, nodes = made.config.instance, made.config.max_nodes
    queue = object_of(made, "Queue", kubernetes.QUEUE)["spec"]["capability"]
    pod = kubernetes.pod_resources(instance)

    assert int(queue["cpu"]) == nodes * int(pod["cpu"])
    assert int(queue["memory"][:-2]) == nodes * int(pod["memory"][:-2])
    assert int(queue[kubernetes.NEURON_RESOURCE]) == nodes * instance.num_neuron_devices
    assert int(queue.get(kubernetes.EFA_RESOURCE, 0)) == nodes * instance.num_efa_interfaces

    assert {name.removeprefix("requests.") for name in quota} >= set(queue)
    assert all(
        int(quota[f"requests.{name}"].removesuffix("Mi")) >= int(asked.removesuffix("Mi"))
        for name, asked in queue.items()
    )


def test_file_system_may_grow_under_existing_claim(made: Deployment) -> None:
    """Kubernetes refuses to resize a claim whose volume was not provisioned."""
    assert lustre_of(made)[1] == lustre_of(with_cluster(lustre_gib=4800))[1]


def test_existing_file_system_is_mounted_by_id() -> None:
    made = with_cluster(**EXISTING)

    assert lustre_of(made)[0]["csi"] == {
        "driver": "fsx.csi.aws.com",
        "volumeHandle": "fs-0123456789abcdef0",
        "volumeAttributes": {"dnsname": DNS_NAME, "mountname": "fqgwbbmv"},
    }


@pytest.mark.parametrize(
    "other",
    [
        {"lustre_dns_name": DNS_NAME.replace("fs-0", "fs-1")},
        {"lustre_mount_name": "fqgwbbmw"},
    ],
)
def test_another_file_system_has_another_volume_and_another_claim(other: dict[str, object]) -> None:
    """Kubernetes refuses to change a volume's source, and a claim's volume."""
    changed, before = (
        {
            each["kind"]: each["metadata"]["name"]
            for each in objects_of(with_cluster(**{**EXISTING, **keys}))
            if each["kind"].startswith("PersistentVolume")
        }
        for keys in (other, {})
    )

    assert changed.keys() == before.keys() == {"PersistentVolume", "PersistentVolumeClaim"}
    assert not set(changed.values()) & set(before.values())


def test_published_claim_is_created_claim() -> None:
    made = with_cluster(**EXISTING)
    published = [
        each["Value"]
        for each in made.resources("eks", "AWS::SSM::Parameter")
        if each.get("Name", "").endswith(contract.SSM_EKS_LUSTRE_CLAIM)
    ]
    names = [e["metadata"]["name"] for e in objects_of(made) if e["kind"].endswith("VolumeClaim")]

    assert published == names


def test_every_image_is_pinned(made: Deployment) -> None:
    images = [each["image"] for pod in pod_templates(made) for each in pod["containers"]]

    assert len(images) == 3
    assert not [image for image in images if ":" not in image or image.endswith(":latest")]
