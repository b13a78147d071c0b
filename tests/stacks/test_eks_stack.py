"""The EKS stack: access to the cluster, and the start of its nodes."""

from __future__ import annotations

import subprocess
from email import message_from_string
from typing import Any

import pytest

from tests.stacks.cluster_objects import objects_of, with_cluster
from tests.stacks.synthesis import Deployment
from trainium_catalogue.eks import ADD_ONS, KUBERNETES_VERSIONS
from trainium_constructs.eks.monitoring import MONITOR

SECURITY_GROUP = "AWS::EC2::SecurityGroup"
RESERVATION = "cr-0123456789abcdef0"


@pytest.fixture(scope="module")
def made() -> Deployment:
    return with_cluster()


@pytest.fixture(scope="module")
def chosen() -> Deployment:
    """A cluster with other values than the defaults."""
    return with_cluster(
        eks_add_on_versions="vpc-cni=v1.22.4-eksbuild.3",
        eks_nodes=2,
        max_nodes=8,
        eks_node_image="1.35.5-20260618",
        eks_system_image="1.35.8-20261001",
        placement_group="near",
        capacity_reservation_id=RESERVATION,
    )


def cluster(made: Deployment) -> dict[str, Any]:
    return made.only("eks", "AWS::EKS::Cluster")


def users(made: Deployment) -> list[str]:
    """List the ranges that may call the API through the VPC."""
    control_plane = made.only("eks", SECURITY_GROUP, "TrainingCallersControlPlane")
    return [rule["CidrIp"] for rule in control_plane.get("SecurityGroupIngress", [])]


def template(made: Deployment, start: str = "Nodes") -> dict[str, Any]:
    data: dict[str, Any] = made.only("eks", "AWS::EC2::LaunchTemplate", start)["LaunchTemplateData"]
    return data


def group(made: Deployment, start: str = "Nodes") -> dict[str, Any]:
    return made.only("eks", "AWS::EKS::Nodegroup", start)


class TestControlPlane:
    """Access to the control plane, and its logs."""

    def test_endpoint_can_be_closed(self) -> None:
        made = with_cluster(eks_endpoint_cidrs=(), eks_private=True)

        assert cluster(made)["ResourcesVpcConfig"]["EndpointPublicAccess"] is False
        assert users(made) == ["10.0.0.0/16"]

    def test_closed_endpoint_answers_those_ranges_inside_that_are_named(self) -> None:
        made = with_cluster(eks_endpoint_cidrs="10.0.4.0/24,172.16.0.0/16", eks_private=True)

        assert "PublicAccessCidrs" not in cluster(made)["ResourcesVpcConfig"]
        assert users(made) == ["10.0.4.0/24", "172.16.0.0/16"]

    def test_kubectl_and_helm_leave_the_group_that_eks_deletes_alone(
        self, made: Deployment
    ) -> None:
        (callers,) = made.logical_ids("eks", SECURITY_GROUP, "TrainingCallersFunctions")
        own = {"Fn::GetAtt": [callers, "GroupId"]}
        rule = made.only("eks", "AWS::EC2::SecurityGroupIngress")

        for function in made.resources("eks", "AWS::Lambda::Function"):
            assert function["VpcConfig"]["SecurityGroupIds"] == [own]
        assert rule["SourceSecurityGroupId"] == own
        assert [rule["GroupId"]] == cluster(made)["ResourcesVpcConfig"]["SecurityGroupIds"]
        assert (rule["FromPort"], rule["ToPort"]) == (443, 443)

    def test_existing_subnets_stay_the_clusters_when_nodes_change_places(self) -> None:
        network = {"vpc_id": "vpc-12345678", "subnet_cidr": "10.0.0.0/20"}
        here, there = (
            with_cluster(**network, subnet_id=mine, eks_subnet_ids=other)
            for mine, other in (
                ("subnet-12345678", "subnet-87654321"),
                ("subnet-87654321", "subnet-12345678"),
            )
        )

        assert cluster(here) == cluster(there)
        assert cluster(here)["ResourcesVpcConfig"]["SubnetIds"] == [
            "subnet-12345678",
            "subnet-87654321",
        ]

    def test_another_zone_changes_the_trainium_nodes_and_nothing_else(
        self, made: Deployment
    ) -> None:
        moved = with_cluster(availability_zone_id="usw2-az1").templates["eks"]["Resources"]
        resources = made.templates["eks"]["Resources"]

        changed = {
            resources[name]["Type"]: name
            for name in resources.keys() | moved.keys()
            if resources.get(name) != moved.get(name)
        }

        assert changed.keys() == {"AWS::EKS::Nodegroup", "AWS::EC2::LaunchTemplate"}
        assert all(name.startswith("Nodes") for name in changed.values())

    @pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
    def test_every_add_on_is_pinned_for_the_clusters_version(self, version: str) -> None:
        made = with_cluster(kubernetes_version=version)

        assert {each["AddonName"]: each["AddonVersion"] for each in
                made.resources("eks", "AWS::EKS::Addon")} == {
            name: versions[version] for name, versions in ADD_ONS.items()
        }  # fmt: skip

    def test_version_of_an_add_on_can_be_chosen(self, chosen: Deployment) -> None:
        networks = chosen.only("eks", "AWS::EKS::Addon", "TrainingPodNetworks")

        assert networks["AddonVersion"] == "v1.22.4-eksbuild.3"


class TestTrainiumNodes:
    """The node group and launch template of Trainium nodes."""

    def test_update_of_the_cluster_takes_its_nodes_along(self) -> None:
        made = with_cluster(kubernetes_version="1.36")

        for start in ("Nodes", "System"):
            assert group(made, start)["Version"] == cluster(made)["Version"] == "1.36"
            assert group(made, start)["ReleaseVersion"].startswith("1.36.")

    def test_newer_neuron_release_takes_a_newer_host_image(self) -> None:
        made = with_cluster(neuron_release="2.31.0", image_uri="public.ecr.aws/me/it:1")

        assert group(made)["ReleaseVersion"] == "1.35.6-20260714"

    def test_there_are_as_many_as_were_asked_for(self, chosen: Deployment) -> None:
        assert group(chosen)["ScalingConfig"] == {"MinSize": 0, "DesiredSize": 2, "MaxSize": 8}

    def test_only_the_monitor_of_the_nodes_has_the_hosts_network(self, made: Deployment) -> None:
        """The monitor is in a namespace closed to jobs, and names the instance that it is on."""
        specs = {
            each["metadata"]["name"]: each["spec"]["template"]["spec"]
            for each in objects_of(made)
            if "template" in each.get("spec", {})
        }

        assert {name for name, spec in specs.items() if spec.get("hostNetwork")} == {MONITOR}

    def test_host_images_can_be_chosen(self, chosen: Deployment) -> None:
        assert group(chosen)["ReleaseVersion"] == "1.35.5-20260618"
        assert group(chosen, "System")["ReleaseVersion"] == "1.35.8-20261001"

    def test_capacity_block_is_a_market_of_its_own(self) -> None:
        made = with_cluster(capacity_block_id=RESERVATION)

        assert group(made)["CapacityType"] == "CAPACITY_BLOCK"
        assert template(made)["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
        assert "Placement" not in template(made)

    def test_reservation_is_targeted_in_existing_placement_group(self, chosen: Deployment) -> None:
        assert RESERVATION in str(template(chosen)["CapacityReservationSpecification"])
        assert "CapacityType" not in group(chosen)
        assert chosen.resources("eks", "AWS::EC2::PlacementGroup") == []
        assert template(chosen)["Placement"] == {"GroupName": "near"}


def test_cluster_alone_needs_no_batch_nodes(made: Deployment) -> None:
    assert "batch" not in made.templates
    assert made.resources("data", "AWS::Batch::JobQueue")


def test_pods_have_unlimited_locked_memory(made: Deployment) -> None:
    """EFA locks memory, and preflight insists on the limit."""
    encoded = template(made)["UserData"]["Fn::Base64"]
    _, part = message_from_string(encoded).walk()
    script = str(part.get_payload())

    assert part.get_content_type() == "text/x-shellscript"
    assert "LimitMEMLOCK=infinity" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
