"""FSx for Lustre: its settings, its ports, its mount, and its removal by destroy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.stacks.cluster_objects import with_cluster
from tests.stacks.synthesis import (
    DNS_NAME,
    EXISTING_LUSTRE,
    EXISTING_NETWORK,
    Deployment,
    checked,
    deployment,
)
from trainium_catalogue.contract import ENV_LUSTRE, LUSTRE_MOUNT, NO_LUSTRE


@pytest.fixture
def made() -> Deployment:
    return checked(lustre_gib=2400, lustre_mbps_per_tib=500)


def container(made: Deployment) -> dict[str, Any]:
    definition = made.only("batch", "AWS::Batch::JobDefinition", "allreduce")
    found: dict[str, Any] = definition["NodeProperties"]["NodeRangeProperties"][0]["Container"]
    return found


def test_file_system_is_persistent_with_requested_size(made: Deployment) -> None:
    found = made.only("lustre", "AWS::FSx::FileSystem")

    assert (found["FileSystemTypeVersion"], found["StorageCapacity"]) == ("2.15", 2400)
    assert found["LustreConfiguration"]["DeploymentType"] == "PERSISTENT_2"
    assert found["LustreConfiguration"]["PerUnitStorageThroughput"] == 500


def test_file_system_is_in_node_subnet(made: Deployment) -> None:
    found = made.only("lustre", "AWS::FSx::FileSystem")
    compute = made.only("batch", "AWS::Batch::ComputeEnvironment", "ComputeEnvironment")

    assert found["SubnetIds"] == compute["ComputeResources"]["Subnets"]


def test_file_system_stays_when_node_zone_changes(made: Deployment) -> None:
    moved = deployment(lustre_gib=2400, lustre_mbps_per_tib=500, availability_zone_id="usw2-az1")

    assert moved.templates["lustre"] == made.templates["lustre"]


def test_file_system_is_in_requested_zone() -> None:
    made = deployment(lustre_gib=1200, availability_zone_id="usw2-az1", lustre_zone_id="usw2-az1")

    (found,) = made.only("lustre", "AWS::FSx::FileSystem")["SubnetIds"]

    assert "Usw2Az1" in found["Fn::ImportValue"]


def waits_for(made: Deployment, part: str) -> set[str]:
    """List the parts that are deployed before ``part``."""
    manifest = json.loads((made.folder / "manifest.json").read_text(encoding="utf-8"))
    named = {made.config.stack_name(other): other for other in made.templates}
    artifact = manifest["artifacts"][made.config.stack_name(part)]
    return {named[name] for name in artifact["dependencies"] if name in named}


def test_file_system_is_created_before_mounting_stacks(made: Deployment) -> None:
    assert "lustre" in waits_for(made, "batch")
    assert "batch" not in waits_for(made, "lustre")


def test_file_system_is_deleted_after_mounting_stacks() -> None:
    plain = deployment()

    assert "batch" in waits_for(plain, "lustre")
    assert "lustre" not in waits_for(plain, "batch")


def test_exports_do_not_depend_on_imports(made: Deployment) -> None:
    plain, moved, cluster = (
        deployment(),
        deployment(availability_zone_id="usw2-az1"),
        with_cluster(),
    )

    for part, others in (
        ("network", (plain, moved, cluster)),
        ("storage", (plain, moved, cluster)),
        ("data", (plain, moved, cluster)),
        ("lustre", (cluster,)),
    ):
        for other in others:
            assert made.templates[part]["Outputs"] == other.templates[part]["Outputs"], part


def test_deployment_parameter_states_file_system(made: Deployment) -> None:
    (file_system,) = made.logical_ids("lustre", "AWS::FSx::FileSystem")
    said = [each.only("lustre", "AWS::SSM::Parameter")["Value"] for each in (made, deployment())]

    assert said == [{"Ref": file_system}, NO_LUSTRE]


def test_existing_group_is_not_changed() -> None:
    made = deployment(lustre_gib=1200, **EXISTING_NETWORK, security_group_id="sg-12345678")

    rules = made.resources("lustre", "AWS::EC2::SecurityGroupIngress")

    assert "sg-12345678" not in {str(rule["GroupId"]) for rule in rules}
    assert "lustreGroup" in str([warning.id for warning in made.config.warnings])


def test_container_mounts_host_file_system(made: Deployment) -> None:
    found = container(made)
    environment = {pair["Name"]: pair["Value"] for pair in found["Environment"]}

    assert environment[ENV_LUSTRE] == LUSTRE_MOUNT
    assert found["Volumes"][0]["Host"]["SourcePath"] == LUSTRE_MOUNT
    assert found["MountPoints"][0]["ContainerPath"] == LUSTRE_MOUNT


def test_existing_file_system_is_mounted_without_new_resources() -> None:
    made = deployment(**EXISTING_LUSTRE)
    script = str(made.only("batch", "AWS::EC2::LaunchTemplate", "Node"))

    assert made.resources("lustre", "AWS::FSx::FileSystem") == []
    assert f"readonly LUSTRE_DNS_NAME={DNS_NAME}" in script
    assert "readonly LUSTRE_MOUNT_NAME=fqgwbbmv" in script


def test_two_existing_groups_are_not_changed() -> None:
    existing = {**EXISTING_LUSTRE, "security_group_id": "sg-12345678"}
    del existing["lustre_security_group_id"]

    made = deployment(**existing)

    assert made.resources("network", "AWS::EC2::SecurityGroupIngress") == []
    assert "trainium:lustreGroup" in {warning.id for warning in made.config.warnings}
