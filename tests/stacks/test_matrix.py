"""Every instance type with every layout: valid templates that agree with the catalogue."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk import aws_s3 as s3
from cdk_preflight import Preflight

from app import add_validations, build
from stacks.config import AppConfig
from tests.stacks.cluster_objects import EKS
from tests.stacks.synthesis import (
    EXISTING_LUSTRE,
    EXISTING_NETWORK,
    FLAGS,
    Deployment,
    checked,
    matrix,
    name_of,
)
from tests.support.linting import findings_of
from tests.support.templates import TemplateAccount
from trainium_catalogue.instances import INSTANCE_TYPES
from trainium_catalogue.releases import NEURON_RELEASES
from trainium_emulators.aws.refusals.table import TABLE

REGIONS = [
    {"instance_type": instance_type.name, "region": region, "availability_zone_id": zone}
    for instance_type in INSTANCE_TYPES.values()
    for region, (zone, *_) in instance_type.zone_ids.items()
]
RELEASES = [
    {"neuron_release": release.name, "base_image": "me/it:1"}
    for release in NEURON_RELEASES.values()
    if "trn1" in release.families and release.backend is not None
]
# Several keys per row, each for different resources: a synthesis and its checks take seconds.
SWITCHES: list[dict[str, object]] = [
    {
        "retain_data": False,
        "interface_endpoints": False,
        "image_uri": "public.ecr.aws/me/it:1",
        "capacity_reservation_id": "cr-0123456789abcdef0",
    },
    {
        "bucket_name": "my-data",
        "nat_gateways": 0,
        "ami_id": "ami-12345678",
        "image_uri": "123456789012.dkr.ecr.us-west-2.amazonaws.com/me/it:1",
        "capacity_block_id": "cr-0123456789abcdef0",
    },
    {
        "bucket_name": "my-data",
        "bucket_kms_key_arn": "arn:aws:kms:us-west-2:111122223333:key/1234abcd",
        "placement_group": "near",
        "min_nodes": 1,
        "scale_down_delay_minutes": 20,
        "node_shell": True,
        "max_cost_per_job_usd": 500,
        "monthly_budget_usd": 5000,
        "notify_email": "team@example.com",
    },
    {
        **EXISTING_NETWORK,
        "security_group_id": "sg-12345678",
        "default_security_group_id": "sg-87654321",
        "notify_topic_arn": "arn:aws:sns:us-west-2:111122223333:runs",
    },
    EXISTING_LUSTRE,
    {"zone_ids": "usw2-az1,usw2-az4", "lustre_gib": 1200, "min_nodes": 1},
    {**EKS, "orchestrators": "both", "notify_email": "team@example.com"},
    {**EKS, "lustre_gib": 0, "node_shell": True, "eks_nodes": 2},
    {**EKS, "zone_ids": "usw2-az4,usw2-az1"},
    {**EKS, "eks_endpoint_cidrs": (), "eks_private": True, "kubernetes_version": "1.36"},
    {**EKS, "capacity_block_id": "cr-0123456789abcdef0"},
    {
        **EKS,
        "kubernetes_version": "1.34",
        "eks_node_image": "1.34.9-20260625",
        "eks_system_image": "1.34.10-20260903",
        "eks_add_on_versions": "vpc-cni=v1.22.4-eksbuild.3",
        "eks_image_registry": "111122223333.dkr.ecr.us-west-2.amazonaws.com/docker-hub",
    },
    {
        **EKS,
        **EXISTING_NETWORK,
        "eks_subnet_ids": "subnet-87654321",
        "security_group_id": "sg-12345678",
    },
]
ON_EKS = [{**EKS, **keys} for keys in matrix() if keys["efa_layout"] == "efa-only"]
FEW = [*matrix()[3:5], ON_EKS[4], *SWITCHES[2:7:4]]
"""Two types on Batch, with different layouts and numbers of interfaces, one on EKS, and two of the
switches."""


def few(combinations: list[dict[str, object]]) -> list[Any]:
    """Leave what is not among the few to `make test-slow`."""
    return [
        keys if keys in FEW else pytest.param(keys, marks=pytest.mark.full) for keys in combinations
    ]


_linted: set[str] = set()


def container(made: Deployment) -> dict[str, Any]:
    definition = made.only("batch", "AWS::Batch::JobDefinition", "allreduce")
    properties: dict[str, Any] = definition["NodeProperties"]["NodeRangeProperties"][0]["Container"]
    return properties


def host_script(made: Deployment) -> str:
    data = made.only("batch", "AWS::EC2::LaunchTemplate", "Node")["LaunchTemplateData"]
    text = data["UserData"]["Fn::Base64"]
    assert isinstance(text, str)
    return text


def findings(made: Deployment) -> list[str]:
    """Lint each distinct template once per session."""
    found = []
    for part in made.templates:
        text = made.text(part)
        digest = hashlib.sha256(text.encode()).hexdigest()
        if digest in _linted:
            continue
        _linted.add(digest)
        found += [
            f"{part}: {match.rule.id} {match.message}"
            for match in findings_of(text, made.config.region)
            if not _is_known(match.rule.id, match.message, made.config)
        ]
    return found


def _is_known(rule: str, message: str, config: AppConfig) -> bool:
    """Return whether a finding is about the CDK's own functions, or a type cfn-lint lacks."""
    # Roles on which their functions depend twice: the CDK makes every function do so.
    of_the_cdk = (
        "CustomS3AutoDeleteObjectsCustomResourceProvider", "KubectlProvider", "NotificationsRole",
        "ZoneMovesRole",
    )  # fmt: skip
    # cfn-lint uses price lists, which lack the rarer types; the catalogue uses the EC2 API.
    unlisted = f"'{config.instance_type}' is not one of"
    return (rule == "W3005" and any(name in message for name in of_the_cdk)) or (
        rule == "E3628" and message.startswith(unlisted)
    )


@pytest.mark.parametrize("keys", few([*matrix(), *ON_EKS, *SWITCHES]), ids=name_of)
def test_cfn_lint_finds_nothing(keys: dict[str, object]) -> None:
    assert findings(checked(**keys)) == []


def test_cfn_lint_detects_planted_fault() -> None:
    made = checked()
    made.only("batch", "AWS::Batch::ComputeEnvironment", "ComputeEnvironment")["ComputeResources"][
        "MaxVcpus"
    ] = 1

    assert [line for line in findings(made) if "MaxVcpus" in line]


def refused(made: Deployment) -> list[str]:
    """Apply the table of refusals to all stacks of a deployment together."""
    account = TemplateAccount(
        {made.config.stack_name(part): text for part, text in made.templates.items()},
        made.config.region,
    )
    return [
        f"{name}: {row.id}: {row.message}"
        for name, kind, request in account.requests()
        for row in TABLE
        if row.on == kind and row.refuses(request)
    ]


@pytest.mark.parametrize("keys", few([*matrix(), *ON_EKS, *SWITCHES]), ids=name_of)
def test_aws_refuses_nothing(keys: dict[str, object]) -> None:
    assert refused(checked(**keys)) == []


def test_table_detects_planted_fault_across_stacks() -> None:
    made = checked()
    nodes = made.only("batch", "AWS::EC2::LaunchTemplate", "Node")["LaunchTemplateData"]
    assert nodes["NetworkInterfaces"]
    environment = made.only("batch", "AWS::Batch::ComputeEnvironment", "ComputeEnvironment")
    groups = nodes["NetworkInterfaces"][0]["Groups"]
    environment["ComputeResources"]["SecurityGroupIds"] = groups

    assert [line.split(": ")[1] for line in refused(made)] == ["batch-groups-and-interfaces"]


# With cdk-nag, cdk-preflight and the CDK's own rules (a flag in cdk.json), a finding raises.
def test_cdk_validates_templates_against_its_own_rules() -> None:
    assert FLAGS["@aws-cdk/core:validateAgainstDefaultRules"] is True


def judge_containers(made: Deployment, folder: Path) -> None:
    """Synthesize the containers of multi-node jobs as those of single-node jobs, and check them.

    cdk-preflight 1.9.1 has its rules on containers for single-node jobs only.
    """
    app = cdk.App(outdir=str(folder), builtin_cloud_formation_validation=False)
    stack = cdk.Stack(app, "Containers")
    for index, job in enumerate(made.resources("batch", "AWS::Batch::JobDefinition")):
        (nodes,) = job["NodeProperties"]["NodeRangeProperties"]
        shared = {
            name: given for name, given in nodes["Container"].items() if name != "InstanceType"
        }
        properties = {"Type": "container", "ContainerProperties": shared}
        cdk.CfnResource(
            stack, f"Job{index}", type="AWS::Batch::JobDefinition", properties=properties
        )
    Preflight.apply(app)
    app.synth()


@pytest.mark.parametrize(
    "keys", few([keys for keys in matrix() if keys["efa_layout"] == "efa-only"]), ids=name_of
)
def test_third_party_rules_accept_node_containers(keys: dict[str, object], tmp_path: Path) -> None:
    judge_containers(checked(**keys), tmp_path)


def test_third_party_rules_detect_planted_fault_in_node_container(tmp_path: Path) -> None:
    made = checked()
    container(made)["LogConfiguration"]["Options"]["awslogs-colour"] = "red"

    with pytest.raises(RuntimeError, match="ValidationFailed"):
        judge_containers(made, tmp_path)


def test_cdk_nag_detects_planted_fault() -> None:
    app = cdk.App(context=FLAGS)
    s3.Bucket(cdk.Stack(app, "Test"), "Open")
    add_validations(app, cdk_preflight=True)

    with pytest.raises(RuntimeError, match="ValidationFailed"):
        app.synth()


def test_every_acknowledgement_matches_a_finding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    acknowledged: list[str] = []

    def withhold(_: cdk.Validations, *rules: cdk.Acknowledgment) -> None:
        acknowledged.extend(rule.id for rule in rules)

    monkeypatch.setattr(cdk.Validations, "acknowledge", withhold)
    app = cdk.App(context=FLAGS, outdir=str(tmp_path))
    keys: dict[str, object] = {**EKS, "orchestrators": "both", "retain_data": False}
    build(app, AppConfig.from_mapping({f"trainium:{name}": keys[name] for name in keys}))
    add_validations(app, cdk_preflight=True)

    with pytest.raises(RuntimeError):
        app.synth()

    reports = json.loads((tmp_path / "validation-report.json").read_text())["pluginReports"]
    found = [each for report in reports for each in report["violations"]]
    assert set(acknowledged) == {
        each["ruleName"] for each in found if not each["ruleName"].startswith("Annotation")
    }


@pytest.mark.full
@pytest.mark.parametrize("keys", [*REGIONS, *RELEASES], ids=name_of)
def test_every_region_and_release_gives_valid_templates(keys: dict[str, object]) -> None:
    assert findings(checked(**keys)) == []


@pytest.mark.parametrize("keys", few([*matrix(), *ON_EKS]), ids=name_of)
def test_hosts_have_one_interface_for_every_efa_card(keys: dict[str, object]) -> None:
    made = checked(**keys)
    part = "eks" if "orchestrators" in keys else "batch"
    data = made.only(part, "AWS::EC2::LaunchTemplate", "Node")["LaunchTemplateData"]

    interfaces = [
        (nic["NetworkCardIndex"], nic["DeviceIndex"], nic["InterfaceType"])
        for nic in data.get("NetworkInterfaces", ())
    ]

    # A type without EFA has the one interface that EC2 adds, and needs none listed.
    assert bool(interfaces) == made.config.instance.supports_multi_node
    assert not interfaces or interfaces == [
        (nic.card_index, nic.device_index, nic.interface_type)
        for nic in made.config.instance.network_interfaces(made.config.efa_layout)
    ]


@pytest.mark.parametrize("keys", few(matrix()), ids=name_of)
def test_mapped_efa_devices_match_host_interfaces(keys: dict[str, object]) -> None:
    made = checked(**keys)
    data = made.only("batch", "AWS::EC2::LaunchTemplate", "Node")["LaunchTemplateData"]
    efa = [
        nic for nic in data.get("NetworkInterfaces", ()) if nic["InterfaceType"].startswith("efa")
    ]

    mapped = [device["HostPath"] for device in container(made)["LinuxParameters"]["Devices"]]

    assert len([path for path in mapped if "uverbs" in path]) == len(efa)
    assert mapped == [
        *made.config.instance.neuron_device_paths(),
        *made.config.instance.efa_device_paths(),
    ]


@pytest.mark.parametrize("keys", few(matrix()), ids=name_of)
def test_container_fits_on_its_host(keys: dict[str, object]) -> None:
    made = checked(**keys)
    instance = made.config.instance
    asked = {r["Type"]: int(r["Value"]) for r in container(made)["ResourceRequirements"]}

    assert asked == {
        "VCPU": instance.container_vcpus,
        "MEMORY": instance.container_memory_mib,
    }
    assert asked["VCPU"] < instance.num_vcpus
    assert asked["MEMORY"] < instance.memory_mib
    assert container(made)["LinuxParameters"]["SharedMemorySize"] < asked["MEMORY"]


@pytest.mark.parametrize("keys", few(matrix()), ids=name_of)
def test_hosts_verify_what_containers_map(keys: dict[str, object]) -> None:
    made = checked(**keys)
    instance = made.config.instance
    script = host_script(made)

    assert f"readonly NEURON_DEVICES={instance.num_neuron_devices}\n" in script
    assert f"readonly EFA_INTERFACES={instance.num_efa_interfaces}\n" in script


@pytest.mark.parametrize("keys", few(matrix()), ids=name_of)
def test_job_definition_is_within_batch_limits(keys: dict[str, object]) -> None:
    definition = checked(**keys).only("batch", "AWS::Batch::JobDefinition", "allreduce")

    # 24 KiB (AWS Batch service quotas).
    assert len(str(definition)) < 24 * 1024
