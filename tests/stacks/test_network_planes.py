"""The rendezvous and the collectives reach every node: two planes, in and out."""

from __future__ import annotations

import copy

import pytest

from tests.stacks.planes import missing_rules
from tests.stacks.synthesis import Deployment, deployment, matrix, name_of

INGRESS = "AWS::EC2::SecurityGroupIngress"
EGRESS = "AWS::EC2::SecurityGroupEgress"


def named(missing: list[str]) -> set[str]:
    """Collect the interfaces or refusals that begin the lines of ``missing``."""
    return {line.partition(":")[0] for line in missing}


def rules_to_itself(made: Deployment, resource_type: str, group: str) -> list[str]:
    """List the logical ids of a group's rules; ``group`` is the attribute that holds its id."""
    return [
        logical_id
        for logical_id in made.logical_ids("network", resource_type)
        if group in str(made.templates["network"]["Resources"][logical_id]["Properties"]["GroupId"])
        and "CidrIp" not in made.templates["network"]["Resources"][logical_id]["Properties"]
    ]


@pytest.mark.parametrize("keys", matrix(), ids=name_of)
def test_both_planes_admit_the_cluster_to_itself(keys: dict[str, object]) -> None:
    made = deployment(**keys)

    assert missing_rules(made.templates["network"], made.templates["batch"]) == []


@pytest.mark.parametrize(("rule", "direction"), [(INGRESS, "in"), (EGRESS, "out")])
@pytest.mark.parametrize(
    ("group", "plane"), [("GroupId", "host interface"), ("DefaultSecurityGroup", "task interface")]
)
def test_a_plane_without_its_rule_is_closed(
    rule: str, direction: str, group: str, plane: str
) -> None:
    made = deployment()
    network = made.templates["network"]
    (removed,) = rules_to_itself(made, rule, group)
    del network["Resources"][removed]

    missing = missing_rules(network, made.templates["batch"])

    num_interfaces = made.config.instance.num_efa_interfaces if group == "GroupId" else 1
    assert len(missing) == num_interfaces
    assert all(line.startswith(plane) and f" {direction} " in line for line in missing)


def test_efa_needs_more_than_one_protocol() -> None:
    made = deployment()
    (egress,) = rules_to_itself(made, EGRESS, "GroupId")
    made.templates["network"]["Resources"][egress]["Properties"]["IpProtocol"] = "tcp"

    missing = missing_rules(made.templates["network"], made.templates["batch"])

    assert len(missing) == made.config.instance.num_efa_interfaces


def test_tasks_need_every_port_of_tcp() -> None:
    made = deployment()
    (ingress,) = rules_to_itself(made, INGRESS, "DefaultSecurityGroup")
    made.templates["network"]["Resources"][ingress]["Properties"]["ToPort"] = 1023

    missing = missing_rules(made.templates["network"], made.templates["batch"])

    assert missing == ["task interface: no group lets TCP in for itself"]


def test_every_single_interface_needs_the_group() -> None:
    made = deployment()
    for card in range(made.config.instance.num_efa_interfaces):
        mutant = copy.deepcopy(made.templates["batch"])
        (logical_id,) = made.logical_ids("batch", "AWS::EC2::LaunchTemplate", "Node")
        template = mutant["Resources"][logical_id]["Properties"]["LaunchTemplateData"]
        del template["NetworkInterfaces"][card]["Groups"]

        missing = missing_rules(made.templates["network"], mutant)

        assert named(missing) == {f"host interface on card {card}"}


def test_groups_of_the_environment_beside_interfaces_are_what_batch_refuses() -> None:
    made = deployment()
    compute = made.only("batch", "AWS::Batch::ComputeEnvironment", "ComputeEnvironment")
    data = made.only("batch", "AWS::EC2::LaunchTemplate", "Node")["LaunchTemplateData"]
    compute["ComputeResources"]["SecurityGroupIds"] = data["NetworkInterfaces"][0]["Groups"]

    missing = missing_rules(made.templates["network"], made.templates["batch"])

    assert missing == [
        "Batch refuses groups of the environment beside interfaces of its launch template"
    ]


def test_a_type_without_efa_keeps_its_tasks_off_the_default_group() -> None:
    made = deployment(instance_type="trn1.2xlarge")
    compute = made.only("batch", "AWS::Batch::ComputeEnvironment", "ComputeEnvironment")
    data = made.only("batch", "AWS::EC2::LaunchTemplate", "Node")["LaunchTemplateData"]

    assert "NetworkInterfaces" not in data
    assert compute["ComputeResources"]["SecurityGroupIds"] == data["SecurityGroupIds"]


def test_a_change_to_a_type_with_efa_makes_another_environment() -> None:
    # Updated in place, the groups would stay, and Batch would refuse the new template with them.
    without, with_efa = (
        deployment(instance_type=name).logical_ids("batch", "AWS::Batch::ComputeEnvironment")
        for name in ("trn1.2xlarge", "trn1.32xlarge")
    )

    assert set(without).isdisjoint(with_efa)


@pytest.mark.parametrize("keys", matrix(), ids=name_of)
def test_cpu_jobs_have_the_groups_of_a_template_without_interfaces(
    keys: dict[str, object],
) -> None:
    made = deployment(**keys)
    compute = made.only("data", "AWS::Batch::ComputeEnvironment", "CpuCompute")
    data = made.only("data", "AWS::EC2::LaunchTemplate", "CpuCompute")["LaunchTemplateData"]

    assert "SecurityGroupIds" not in compute["ComputeResources"]
    assert "NetworkInterfaces" not in data
    assert len(data["SecurityGroupIds"]) == 1


def test_a_template_without_nodes_proves_nothing() -> None:
    made = deployment()

    assert missing_rules(made.templates["network"], {"Resources": {}})
