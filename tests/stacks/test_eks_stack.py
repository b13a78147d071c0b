"""The EKS stack: who may enter the cluster, how its nodes start, and how it goes again."""

from __future__ import annotations

import json
import subprocess
from email import message_from_string
from typing import Any

import pytest

from tests.stacks.cluster_objects import CHART, MANIFEST, with_cluster
from tests.stacks.synthesis import Deployment, deployment
from trainium_catalogue import contract
from trainium_catalogue.workloads import WORKLOADS, Hardware

RESERVATION = "cr-0123456789abcdef0"
TRAINIUM = [w.name for w in WORKLOADS.values() if w.hardware is Hardware.TRAINIUM]


@pytest.fixture(scope="module")
def made() -> Deployment:
    return with_cluster()


def cluster(made: Deployment) -> dict[str, Any]:
    return made.only("eks", "AWS::EKS::Cluster")


def template(made: Deployment, start: str = "Nodes") -> dict[str, Any]:
    data: dict[str, Any] = made.only("eks", "AWS::EC2::LaunchTemplate", start)["LaunchTemplateData"]
    return data


def group(made: Deployment, start: str = "Nodes") -> dict[str, Any]:
    return made.only("eks", "AWS::EKS::Nodegroup", start)


def policies(made: Deployment, role: str) -> list[str]:
    """Names of the managed policies of a role."""
    found = made.only("eks", "AWS::IAM::Role", role).get("ManagedPolicyArns", [])
    return [str(arn["Fn::Join"][1][-1]).rpartition("/")[2] for arn in found]


def dependants(made: Deployment, logical_id: str) -> set[str]:
    """Everything that is created after, and so deleted before, a resource."""
    resources = made.templates["eks"]["Resources"]
    found: set[str] = set()
    waiting = {logical_id}
    while waiting:
        found |= waiting
        waiting = {
            name
            for name, resource in resources.items()
            if name not in found and waiting & _needs(resource)
        }
    return found - {logical_id}


def _needs(resource: dict[str, Any]) -> set[str]:
    text = json.dumps(resource.get("Properties", {}))
    after = resource.get("DependsOn", [])
    named = {after} if isinstance(after, str) else set(after)
    return named | {word for word in text.replace('"', " ").replace(",", " ").split()}


class TestControlPlane:
    """Who may enter, and what is kept."""

    def test_the_endpoint_is_open_to_the_given_ranges_only(self, made: Deployment) -> None:
        network = cluster(made)["ResourcesVpcConfig"]

        assert network["PublicAccessCidrs"] == ["203.0.113.7/32"]
        assert network["EndpointPrivateAccess"] is True

    def test_the_endpoint_can_be_closed(self) -> None:
        made = with_cluster(eks_endpoint_cidrs=(), eks_private=True)

        assert cluster(made)["ResourcesVpcConfig"]["EndpointPublicAccess"] is False

    def test_the_control_plane_lives_in_two_zones(self, made: Deployment) -> None:
        zones = [subnet["AvailabilityZoneId"] for subnet in made.resources("network", SUBNET)]

        assert zones == ["usw2-az4", "usw2-az4", "usw2-az1"]
        assert len(cluster(made)["ResourcesVpcConfig"]["SubnetIds"]) == 2

    def test_existing_subnets_are_used_as_they_are(self) -> None:
        made = with_cluster(
            vpc_id="vpc-12345678",
            subnet_id="subnet-12345678",
            subnet_cidr="10.0.0.0/20",
            eks_subnet_ids="subnet-87654321",
        )

        assert cluster(made)["ResourcesVpcConfig"]["SubnetIds"] == [
            "subnet-12345678",
            "subnet-87654321",
        ]

    def test_a_deployment_without_a_cluster_has_one_zone(self) -> None:
        assert len(deployment().resources("network", SUBNET)) == 2

    def test_secrets_are_encrypted_with_a_key_that_goes_too(self, made: Deployment) -> None:
        (key,) = made.logical_ids("eks", "AWS::KMS::Key")
        (encryption,) = cluster(made)["EncryptionConfig"]

        assert encryption["Provider"] == {"KeyArn": {"Fn::GetAtt": [key, "Arn"]}}
        assert made.templates["eks"]["Resources"][key]["DeletionPolicy"] == "Delete"

    def test_every_log_of_the_control_plane_is_kept_for_a_while(self, made: Deployment) -> None:
        types = cluster(made)["Logging"]["ClusterLogging"]["EnabledTypes"]
        logs = made.only("eks", "AWS::Logs::LogGroup", "TrainingLogs")
        everywhere = made.resources("eks", "AWS::Logs::LogGroup")

        assert {each["Type"] for each in types} == {
            "api", "audit", "authenticator", "controllerManager", "scheduler",
        }  # fmt: skip
        assert logs["LogGroupName"] == "/aws/eks/trainium-default-eks/cluster"
        assert {each["RetentionInDays"] for each in everywhere} == {30}

    def test_who_may_enter_stands_in_the_template(self, made: Deployment) -> None:
        access = cluster(made)["AccessConfig"]
        principals = [
            str(e["PrincipalArn"]) for e in made.resources("eks", "AWS::EKS::AccessEntry")
        ]

        assert access["AuthenticationMode"] == "API"
        assert access["BootstrapClusterCreatorAdminPermissions"] is False
        assert "arn:aws:iam::111122223333:role/admin" in principals
        assert len(principals) == 2  # and the stack's own kubectl

    def test_the_version_is_the_chosen_one(self) -> None:
        assert cluster(with_cluster(kubernetes_version="1.34"))["Version"] == "1.34"


class TestTrainiumNodes:
    """How a Trainium node starts."""

    def test_the_host_image_is_neurons_and_its_release_is_pinned(self, made: Deployment) -> None:
        assert group(made)["AmiType"] == "AL2023_x86_64_NEURON"
        assert group(made)["ReleaseVersion"] == "1.35.6-20260625"

    def test_a_newer_neuron_release_takes_a_newer_host_image(self) -> None:
        made = with_cluster(neuron_release="2.31.0", image_uri="public.ecr.aws/me/it:1")

        assert group(made)["ReleaseVersion"] == "1.35.6-20260714"

    def test_the_type_stands_in_the_launch_template_alone(self, made: Deployment) -> None:
        assert template(made)["InstanceType"] == "trn1.32xlarge"
        assert "InstanceTypes" not in group(made)

    def test_every_interface_is_in_the_clusters_group_and_in_efas(self, made: Deployment) -> None:
        nics = template(made)["NetworkInterfaces"]
        groups = {json.dumps(nic["Groups"]) for nic in nics}

        assert len(groups) == 1
        assert "ClusterSecurityGroupId" in groups.pop()
        assert all("Efa" in str(nic["Groups"][1]) for nic in nics)
        assert not any("SubnetId" in nic for nic in nics)

    def test_nodes_are_close_to_each_other_in_the_one_subnet(self, made: Deployment) -> None:
        (place,) = made.logical_ids("eks", "AWS::EC2::PlacementGroup")

        assert place in str(template(made)["Placement"])
        assert len(group(made)["Subnets"]) == 1

    def test_the_newest_launch_template_is_used_by_number(self, made: Deployment) -> None:
        (logical_id,) = made.logical_ids("eks", "AWS::EC2::LaunchTemplate", "Nodes")

        assert group(made)["LaunchTemplate"]["Version"] == {
            "Fn::GetAtt": [logical_id, "LatestVersionNumber"]
        }

    def test_nothing_but_neuron_pods_runs_there(self, made: Deployment) -> None:
        assert group(made)["Taints"] == [
            {"Effect": "NO_SCHEDULE", "Key": "aws.amazon.com/neuron", "Value": "present"}
        ]

    def test_there_are_none_until_they_are_asked_for(self, made: Deployment) -> None:
        assert group(made)["ScalingConfig"] == {"MinSize": 0, "DesiredSize": 0, "MaxSize": 4}

    def test_there_are_as_many_as_were_asked_for(self) -> None:
        made = with_cluster(eks_nodes=2, max_nodes=8)

        assert group(made)["ScalingConfig"] == {"MinSize": 0, "DesiredSize": 2, "MaxSize": 8}

    def test_volumes_are_encrypted_and_metadata_needs_a_token(self, made: Deployment) -> None:
        for start in ("Nodes", "System"):
            (device,) = template(made, start)["BlockDeviceMappings"]

            assert device["Ebs"]["Encrypted"] is True
            assert template(made, start)["MetadataOptions"]["HttpTokens"] == "required"

    def test_instances_carry_the_deployments_tag(self, made: Deployment) -> None:
        tags = {spec["ResourceType"]: spec["Tags"] for spec in template(made)["TagSpecifications"]}

        assert {"Key": contract.TAG_DEPLOYMENT, "Value": "default"} in tags["instance"]

    def test_a_capacity_block_is_a_market_of_its_own(self) -> None:
        made = with_cluster(capacity_block_id=RESERVATION)

        assert group(made)["CapacityType"] == "CAPACITY_BLOCK"
        assert template(made)["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
        assert "Placement" not in template(made)

    def test_a_reservation_is_targeted(self) -> None:
        made = with_cluster(capacity_reservation_id=RESERVATION)

        assert RESERVATION in str(template(made)["CapacityReservationSpecification"])
        assert "CapacityType" not in group(made)


class TestRights:
    """What nodes and pods may do."""

    def test_a_node_has_no_rights_but_a_kubelets(self, made: Deployment) -> None:
        kubelet = ["AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly"]

        assert policies(made, "NodesNodeRole") == kubelet
        assert policies(made, "SystemNodeRole") == kubelet

    @pytest.mark.parametrize("name", ["batch", "eks", "both"])
    def test_nobody_gets_a_shell_on_a_node_unless_it_was_asked_for(self, name: str) -> None:
        keys = {"orchestrators": name} if name != "batch" else {}
        build = deployment if name == "batch" else with_cluster
        parts = ("batch", "eks") if name == "both" else (name,)

        for part in parts:
            assert "SSMManagedInstanceCore" not in build(**keys).text(part)
            assert "SSMManagedInstanceCore" in build(**keys, node_shell=True).text(part)

    def test_pods_of_a_workload_may_do_what_its_jobs_may_on_batch(self) -> None:
        made = with_cluster(orchestrators="both")

        def statements(part: str, start: str) -> Any:
            policy = made.only(part, "AWS::IAM::Policy", start)
            return policy["PolicyDocument"]["Statement"]

        for name in TRAINIUM:
            word = name.replace("-", "")
            assert statements("eks", f"{word}Role") == statements("batch", f"{word}JobRole")

    def test_every_workload_has_a_service_account_with_a_role(self, made: Deployment) -> None:
        accounts = {
            each["ServiceAccount"]: each["Namespace"]
            for each in made.resources("eks", "AWS::EKS::PodIdentityAssociation")
        }

        assert {f"job-{name}" for name in TRAINIUM} <= set(accounts)
        assert {accounts[f"job-{name}"] for name in TRAINIUM} == {"trainium"}

    def test_a_role_is_for_one_service_account_only(self, made: Deployment) -> None:
        role = made.only("eks", "AWS::IAM::Role", "allreduceRole")
        (statement,) = role["AssumeRolePolicyDocument"]["Statement"]

        assert statement["Principal"] == {"Service": "pods.eks.amazonaws.com"}
        assert statement["Action"] == ["sts:AssumeRole", "sts:TagSession"]
        assert statement["Condition"]["StringEquals"] == {
            "aws:RequestTag/kubernetes-namespace": "trainium",
            "aws:RequestTag/kubernetes-service-account": "job-all-reduce",
        }

    def test_only_recovery_may_replace_a_node(self, made: Deployment) -> None:
        assert "SetInstanceHealth" not in made.text("eks")
        assert "SetInstanceHealth" in with_cluster(eks_recovery=True).text("eks")

    def test_tensorboard_reads_the_bucket_only_where_there_is_no_file_system(
        self, made: Deployment
    ) -> None:
        assert made.logical_ids("eks", "AWS::IAM::Role", "tensorboard") == []
        assert with_cluster(lustre_gib=0).logical_ids("eks", "AWS::IAM::Role", "tensorboard")


class TestEnd:
    """Destroy: jobs before Volcano, everything before the nodes, logs last."""

    def test_nodes_outlive_what_runs_on_them(self, made: Deployment) -> None:
        installed = {
            *made.logical_ids("eks", CHART),
            *made.logical_ids("eks", MANIFEST),
            *made.logical_ids("eks", "AWS::EKS::Addon", "TrainingDns"),
        }

        for logical_id in made.logical_ids("eks", "AWS::EKS::Nodegroup"):
            assert installed <= dependants(made, logical_id)

    def test_volcano_outlives_the_jobs(self, made: Deployment) -> None:
        (volcano,) = made.logical_ids("eks", CHART, "ContentsVolcano")

        assert set(made.logical_ids("eks", MANIFEST)) <= dependants(made, volcano)

    def test_pods_have_networks_as_long_as_there_are_nodes(self, made: Deployment) -> None:
        groups = set(made.logical_ids("eks", "AWS::EKS::Nodegroup"))

        for start in ("TrainingPodIdentity", "TrainingPodNetworks", "TrainingProxy"):
            (add_on,) = made.logical_ids("eks", "AWS::EKS::Addon", start)
            assert groups <= dependants(made, add_on)

    def test_pods_are_created_when_there_are_credentials_for_them(self, made: Deployment) -> None:
        groups = set(made.logical_ids("eks", "AWS::EKS::Nodegroup"))
        (networks,) = made.logical_ids(
            "eks", "AWS::EKS::PodIdentityAssociation", "TrainingNetworks"
        )
        (recovery,) = made.logical_ids(
            "eks", "AWS::EKS::PodIdentityAssociation", "ContentsRecovery"
        )

        assert groups <= dependants(made, networks)
        assert set(made.logical_ids("eks", CHART, "ContentsNeuron")) <= dependants(made, recovery)

    def test_the_log_group_is_there_before_anybody_writes_to_it(self, made: Deployment) -> None:
        (logs,) = made.logical_ids("eks", "AWS::Logs::LogGroup", "TrainingLogs")

        assert set(made.logical_ids("eks", "AWS::EKS::Cluster")) <= dependants(made, logs)

    def test_nothing_is_kept(self, made: Deployment) -> None:
        kept = {
            name
            for name, resource in made.templates["eks"]["Resources"].items()
            if resource.get("DeletionPolicy") == "Retain"
        }

        assert kept == set()


class TestContract:
    """What the helper finds."""

    @pytest.mark.parametrize("orchestrators", ["eks", "both"])
    def test_every_name_of_the_contract_is_published_once(self, orchestrators: str) -> None:
        made = with_cluster(orchestrators=orchestrators)
        names = [
            parameter["Name"]
            for part in made.templates
            for parameter in made.resources(part, "AWS::SSM::Parameter")
            if "Name" in parameter
        ]
        on_nodes = {contract.SSM_JOB_QUEUE, contract.SSM_COMPUTE_ENVIRONMENT}
        of_batch = on_nodes if orchestrators == "both" else set()
        jobs = [w for w in WORKLOADS.values() if of_batch or w.hardware is Hardware.CPU]

        assert sorted(names) == sorted(
            contract.ssm_parameter("default", name)
            for name in (
                contract.SSM_ORCHESTRATORS,
                *(set(contract.SSM_BATCH_NAMES) - on_nodes | of_batch),
                *contract.SSM_EKS_NAMES,
                contract.SSM_EKS_LUSTRE_CLAIM,
                *(contract.ssm_job_definition(workload.name) for workload in jobs),
            )
        )

    def test_the_claim_is_published_where_there_is_one(self) -> None:
        assert "eks/lustre-claim" not in with_cluster(lustre_gib=0).text("eks")

    def test_the_orchestrators_are_named(self) -> None:
        made = with_cluster(orchestrators="both")
        values = {p.get("Name"): p["Value"] for p in made.resources("data", "AWS::SSM::Parameter")}

        assert values["/trainium/default/orchestrators"] == "batch,eks"


SUBNET = "AWS::EC2::Subnet"


def test_a_cluster_alone_needs_no_batch_nodes(made: Deployment) -> None:
    assert "batch" not in made.templates
    assert made.resources("data", "AWS::Batch::JobQueue")


def test_pods_may_lock_memory_without_limit(made: Deployment) -> None:
    """EFA does, and preflight insists on it."""
    encoded = template(made)["UserData"]["Fn::Base64"]
    _, part = message_from_string(encoded).walk()
    script = str(part.get_payload())

    assert part.get_content_type() == "text/x-shellscript"
    assert "LimitMEMLOCK=infinity" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
