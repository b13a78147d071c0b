"""The node scaler in the template: its identity, its rights, and that it can be left out."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests.stacks.cluster_objects import object_of, objects_of, plain, with_cluster
from tests.stacks.synthesis import Deployment
from tests.stacks.test_eks_end import dependants
from trainium_catalogue import kubernetes

SCALER = kubernetes.SCALER


@pytest.fixture(scope="module")
def made() -> Deployment:
    return with_cluster(eks_idle_minutes=45)


def pod(made: Deployment) -> dict[str, Any]:
    spec: dict[str, Any] = object_of(made, "Deployment", SCALER)["spec"]["template"]["spec"]
    return spec


def argument(made: Deployment, name: str) -> str:
    (container,) = pod(made)["containers"]
    return str(container["command"][container["command"].index(name) + 1])


def statements(made: Deployment) -> dict[str, dict[str, Any]]:
    """Collect the policy statements of its role, by action."""
    policy = made.only("eks", "AWS::IAM::Policy", "ScalerPods")["PolicyDocument"]
    return {
        action: each
        for each in policy["Statement"]
        for action in ([each["Action"]] if isinstance(each["Action"], str) else each["Action"])
    }


def test_it_scales_the_trainium_nodes_of_this_cluster(made: Deployment) -> None:
    (group,) = made.logical_ids("eks", "AWS::EKS::Nodegroup", "NodesGroup")

    assert argument(made, "--node-group") == f"<{group}.NodegroupName>"
    assert argument(made, "--idle-minutes") == "45"
    assert argument(made, "--namespace") == kubernetes.NAMESPACE


def test_scaler_changes_only_group_with_its_tags(made: Deployment) -> None:
    changing = {
        "autoscaling:SetDesiredCapacity", "autoscaling:TerminateInstanceInAutoScalingGroup"
    }  # fmt: skip
    found = statements(made)
    (group,) = made.logical_ids("eks", "AWS::EKS::Nodegroup", "NodesGroup")

    assert set(found) == {
        *changing, "autoscaling:DescribeAutoScalingGroups", "eks:DescribeNodegroup"
    }  # fmt: skip
    for action in changing:
        tags = found[action]["Condition"]["StringEquals"]
        assert plain(tags["aws:ResourceTag/eks:nodegroup-name"]) == f"<{group}.NodegroupName>"
        assert "TrainingCluster" in plain(tags["aws:ResourceTag/eks:cluster-name"])
    assert plain(found["eks:DescribeNodegroup"]["Resource"]) == f"<{group}.Arn>"


def test_scaler_has_one_group_per_zone() -> None:
    made = with_cluster(zone_ids="usw2-az4,usw2-az1", eks_nodes=1)
    first, second = (
        made.logical_ids("eks", "AWS::EKS::Nodegroup", start)[0]
        for start in ("NodesGroup", "Nodesusw2az1Group")
    )
    groups = dict(zip((first, second), ("usw2-az4", "usw2-az1"), strict=True))
    (container,) = pod(made)["containers"]
    command = container["command"]
    given = [after for word, after in pairwise(command) if word == "--node-group"]
    published = made.only("eks", "AWS::SSM::Parameter", "Contracteksnodegroup")["Value"]
    found = [made.only("eks", "AWS::EKS::Nodegroup", name) for name in groups]
    sizes = [each["ScalingConfig"] for each in found]
    subnets = [plain(each["Subnets"][0]) for each in found]
    tags = statements(made)["autoscaling:SetDesiredCapacity"]["Condition"]["StringEquals"]

    assert given == [f"{zone}=<{name}.NodegroupName>" for name, zone in groups.items()]
    assert plain(published) == ",".join(given)
    assert [(each["DesiredSize"], each["MaxSize"]) for each in sizes] == [(1, 4), (0, 4)]
    assert ["Usw2Az4" in subnets[0], "Usw2Az1" in subnets[1]] == [True, True]
    assert [plain(name) for name in tags["aws:ResourceTag/eks:nodegroup-name"]] == [
        f"<{name}.NodegroupName>" for name in groups
    ]
    assert [plain(arn) for arn in statements(made)["eks:DescribeNodegroup"]["Resource"]] == [
        f"<{name}.Arn>" for name in groups
    ]
    templates = [
        made.only("eks", "AWS::EC2::LaunchTemplate", start)["LaunchTemplateData"]
        for start in ("NodesNode", "Nodesusw2az1Node")
    ]
    placements = [plain(each["Placement"]["GroupName"]) for each in templates]
    assert ["Usw2Az4" in placements[0], "Usw2Az1" in placements[1]] == [True, True]


def test_submitters_cannot_use_scalers_service_account(made: Deployment) -> None:
    """Pods of the jobs' namespace may name any service account of that namespace."""
    accounts = [each for each in objects_of(made) if each["kind"] == "ServiceAccount"]
    (own,) = [each for each in accounts if each["metadata"]["name"] == SCALER]

    assert own["metadata"]["namespace"] == SCALER != kubernetes.NAMESPACE
    bound = [
        subject
        for each in objects_of(made)
        if each["kind"].endswith("Binding") and each["metadata"]["name"] == SCALER
        for subject in each["subjects"]
    ]
    assert {subject["namespace"] for subject in bound} == {SCALER}


def test_scaler_is_deleted_before_jobs_and_nodes(made: Deployment) -> None:
    (applied,) = made.logical_ids("eks", "Custom::AWSCDK-EKS-KubernetesResource", "Scaler")

    for kind, start in (
        ("AWS::EKS::Nodegroup", "NodesGroup"),
        ("AWS::EKS::PodIdentityAssociation", "ScalerPods"),
        ("Custom::AWSCDK-EKS-KubernetesResource", "ContentsJobs"),
    ):
        (before,) = made.logical_ids("eks", kind, start)
        assert applied in dependants(made, before)


def test_scaler_keeps_nodes_for_waiting_job_as_long_as_batch(made: Deployment) -> None:
    assert argument(made, "--hold-minutes") == str(made.config.runnable_time_limit_minutes)
    assert argument(made, "--instance-type") == made.config.instance_type


def test_scaler_accepts_requests_without_idle_timeout() -> None:
    stays = with_cluster(eks_idle_minutes=0)

    assert argument(stays, "--idle-minutes") == "0"
    assert "eks/idle-minutes" not in stays.text("eks")
    assert "trainium:idleNodes" in [each.id for each in stays.config.warnings]


def test_initial_nodes_warning_states_duration() -> None:
    def said(**keys: object) -> str:
        warnings = with_cluster(eks_nodes=2, **keys).config.warnings
        (found,) = [each.message for each in warnings if each.id == "trainium:eksNodes"]
        return found

    assert "until idle for 30 minutes" in said()
    assert "until scaled down" in said(eks_idle_minutes=0)
