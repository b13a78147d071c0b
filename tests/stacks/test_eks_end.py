"""Destroying the EKS stack: jobs before Volcano, everything before the nodes, logs last."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.stacks.cluster_objects import CHART, MANIFEST, objects_of, with_cluster
from tests.stacks.synthesis import Deployment


@pytest.fixture(scope="module")
def made() -> Deployment:
    return with_cluster()


def dependants(made: Deployment, logical_id: str) -> set[str]:
    """Find everything that is created after, and so deleted before, a resource."""
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


def test_nodes_are_deleted_after_their_workloads(made: Deployment) -> None:
    installed = {
        *made.logical_ids("eks", CHART),
        *made.logical_ids("eks", MANIFEST),
        *made.logical_ids("eks", "AWS::EKS::Addon", "TrainingDns"),
    }

    for logical_id in made.logical_ids("eks", "AWS::EKS::Nodegroup"):
        assert installed <= dependants(made, logical_id)


def test_volcano_is_deleted_after_jobs(made: Deployment) -> None:
    (volcano,) = made.logical_ids("eks", CHART, "ContentsVolcano")

    for start in ("ContentsJobs", "ContentsWatching", "ContentsQueue"):
        assert set(made.logical_ids("eks", MANIFEST, start)) < dependants(made, volcano)


def test_queue_is_created_after_job_objects(made: Deployment) -> None:
    """Its chart counts as installed once its pod runs, before it answers."""
    (jobs,) = made.logical_ids("eks", MANIFEST, "ContentsJobs")
    queues = [
        name
        for name in made.logical_ids("eks", MANIFEST)
        if "scheduling.volcano.sh/v1beta1" in json.dumps(made.templates["eks"]["Resources"][name])
    ]

    assert queues
    assert set(queues) <= dependants(made, jobs)


def test_network_add_ons_are_deleted_after_nodes(made: Deployment) -> None:
    groups = set(made.logical_ids("eks", "AWS::EKS::Nodegroup"))

    for start in ("TrainingPodIdentity", "TrainingPodNetworks", "TrainingProxy"):
        (add_on,) = made.logical_ids("eks", "AWS::EKS::Addon", start)
        assert groups <= dependants(made, add_on)


def test_pods_are_created_after_their_credentials(made: Deployment) -> None:
    groups = set(made.logical_ids("eks", "AWS::EKS::Nodegroup"))
    (networks,) = made.logical_ids("eks", "AWS::EKS::PodIdentityAssociation", "TrainingNetworks")

    assert groups <= dependants(made, networks)


def test_pods_with_role_have_namespace(made: Deployment) -> None:
    """A chart creates no namespace but that of its release."""
    namespaces = {
        each["Namespace"] for each in made.resources("eks", "AWS::EKS::PodIdentityAssociation")
    }
    applied = {each["metadata"]["name"] for each in objects_of(made) if each["kind"] == "Namespace"}

    assert namespaces - {"kube-system"} <= applied


def test_kubectl_access_is_deleted_after_all_objects(made: Deployment) -> None:
    (rule,) = made.logical_ids("eks", "AWS::EC2::SecurityGroupIngress", "TrainingCallers")
    installed = {*made.logical_ids("eks", CHART), *made.logical_ids("eks", MANIFEST)}

    assert installed <= dependants(made, rule)


def test_log_group_exists_before_writers(made: Deployment) -> None:
    (logs,) = made.logical_ids("eks", "AWS::Logs::LogGroup", "TrainingLogs")

    assert set(made.logical_ids("eks", "AWS::EKS::Cluster")) <= dependants(made, logs)
