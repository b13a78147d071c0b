"""The rendezvous and the collectives reach every node: two planes, in and out."""

from __future__ import annotations

import pytest

from tests.stacks.planes import missing_rules
from tests.stacks.synthesis import Deployment, deployment, name_of

INGRESS = "AWS::EC2::SecurityGroupIngress"
EGRESS = "AWS::EC2::SecurityGroupEgress"


def rules_to_itself(made: Deployment, resource_type: str, group: str) -> list[str]:
    """List the logical ids of a group's rules; ``group`` is the attribute that holds its id."""
    return [
        logical_id
        for logical_id in made.logical_ids("network", resource_type)
        if group in str(made.templates["network"]["Resources"][logical_id]["Properties"]["GroupId"])
        and "CidrIp" not in made.templates["network"]["Resources"][logical_id]["Properties"]
    ]


@pytest.mark.parametrize(
    "keys",
    [{"instance_type": "trn1.2xlarge"}, {"efa_layout": "efa"}, {"efa_layout": "efa-only"}],
    ids=name_of,
)
def test_both_planes_allow_traffic_within_cluster(keys: dict[str, object]) -> None:
    made = deployment(**keys)

    assert missing_rules(made.templates["network"], made.templates["batch"]) == []


@pytest.mark.parametrize(("rule", "direction"), [(INGRESS, "in"), (EGRESS, "out")])
@pytest.mark.parametrize(
    ("group", "plane"), [("GroupId", "host interface"), ("DefaultSecurityGroup", "task interface")]
)
def test_missing_rule_closes_plane(rule: str, direction: str, group: str, plane: str) -> None:
    made = deployment()
    network = made.templates["network"]
    (removed,) = rules_to_itself(made, rule, group)
    del network["Resources"][removed]

    missing = missing_rules(network, made.templates["batch"])

    num_interfaces = made.config.instance.num_efa_interfaces if group == "GroupId" else 1
    assert len(missing) == num_interfaces
    assert all(line.startswith(plane) and f" {direction} " in line for line in missing)


def test_type_without_efa_keeps_tasks_off_default_group() -> None:
    made = deployment(instance_type="trn1.2xlarge")
    compute = made.only("batch", "AWS::Batch::ComputeEnvironment", "ComputeEnvironment")
    data = made.only("batch", "AWS::EC2::LaunchTemplate", "Node")["LaunchTemplateData"]

    assert "NetworkInterfaces" not in data
    assert compute["ComputeResources"]["SecurityGroupIds"] == data["SecurityGroupIds"]


def test_change_to_type_with_efa_replaces_environment() -> None:
    # Updated in place, the groups would stay, and Batch would refuse the new template with them.
    without, with_efa = (
        deployment(instance_type=name).logical_ids("batch", "AWS::Batch::ComputeEnvironment")
        for name in ("trn1.2xlarge", "trn1.32xlarge")
    )

    assert set(without).isdisjoint(with_efa)
