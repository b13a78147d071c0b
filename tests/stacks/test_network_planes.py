"""The rendezvous and the collectives reach every node: two planes, in and out."""

from __future__ import annotations

import copy

import pytest

from tests.stacks.planes import missing_rules
from tests.stacks.synthesis import deployment, matrix, name_of


@pytest.mark.parametrize("keys", matrix(), ids=name_of)
def test_both_planes_admit_the_cluster_to_itself(keys: dict[str, object]) -> None:
    made = deployment(**keys)

    assert missing_rules(made.templates["network"], made.templates["batch"]) == []


@pytest.mark.parametrize(
    ("rule", "direction"),
    [("AWS::EC2::SecurityGroupIngress", "in"), ("AWS::EC2::SecurityGroupEgress", "out")],
)
def test_removing_any_rule_to_itself_breaks_every_interface(rule: str, direction: str) -> None:
    made = deployment()
    network = made.templates["network"]
    removed = [
        logical_id
        for logical_id, resource in network["Resources"].items()
        if resource["Type"] == rule
    ]

    for logical_id in removed:
        mutant = copy.deepcopy(network)
        del mutant["Resources"][logical_id]

        missing = missing_rules(mutant, made.templates["batch"])

        assert len(missing) == made.config.instance.num_efa_interfaces + 1
        assert all(f"everything {direction} " in line for line in missing)
    assert removed


def test_narrowing_a_rule_to_one_protocol_is_noticed() -> None:
    made = deployment()
    for resource in made.templates["network"]["Resources"].values():
        if resource["Type"] == "AWS::EC2::SecurityGroupEgress":
            resource["Properties"]["IpProtocol"] = "tcp"

    assert missing_rules(made.templates["network"], made.templates["batch"])


def test_every_single_interface_needs_the_group() -> None:
    made = deployment()
    for card in range(made.config.instance.num_efa_interfaces):
        mutant = copy.deepcopy(made.templates["batch"])
        (logical_id,) = made.logical_ids("batch", "AWS::EC2::LaunchTemplate", "Node")
        template = mutant["Resources"][logical_id]["Properties"]["LaunchTemplateData"]
        del template["NetworkInterfaces"][card]["Groups"]

        missing = missing_rules(made.templates["network"], mutant)

        assert {line.partition(":")[0] for line in missing} == {f"host interface on card {card}"}


def test_tasks_need_the_group_of_the_compute_environment() -> None:
    made = deployment()
    compute = made.only("batch", "AWS::Batch::ComputeEnvironment", "ComputeEnvironment")
    del compute["ComputeResources"]["SecurityGroupIds"]

    missing = missing_rules(made.templates["network"], made.templates["batch"])

    assert {line.partition(":")[0] for line in missing} == {"task interface"}


def test_a_template_without_nodes_proves_nothing() -> None:
    made = deployment()

    assert missing_rules(made.templates["network"], {"Resources": {}})
