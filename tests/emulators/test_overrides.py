"""A submission's overrides are applied, or refused, as Batch does."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainium_emulators.aws.batch.api import UnsupportedOverride, node_properties


def definition(*targets: str, num_nodes: int = 2) -> dict[str, Any]:
    """Node properties with one container per range."""
    container = {"command": ["old"], "environment": [{"name": "A", "value": "1"}]}
    return {
        "numNodes": num_nodes,
        "mainNode": 0,
        "nodeRangeProperties": [{"targetNodes": t, "container": container} for t in targets],
    }


@given(st.integers(1, 64))
def test_open_range_takes_any_number_of_nodes(num_nodes: int) -> None:
    nodes = node_properties(definition("0:"), {"numNodes": num_nodes})["nodes"]

    assert len(nodes) == num_nodes


def test_override_reaches_the_nodes_of_its_range_only() -> None:
    override = {"targetNodes": "1:", "containerOverrides": {"command": ["new"]}}

    nodes = node_properties(definition("0:"), {"nodePropertyOverrides": [override]})["nodes"]

    assert [node["command"] for node in nodes] == [["old"], ["new"]]


def test_environment_overrides_are_merged_by_name() -> None:
    given_environment = [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}]
    override = {"targetNodes": "0:", "containerOverrides": {"environment": given_environment}}

    nodes = node_properties(definition("0:"), {"nodePropertyOverrides": [override]})["nodes"]

    assert nodes[0]["environment"] == given_environment


def test_unsupported_override_is_refused() -> None:
    override = {"targetNodes": "0:", "containerOverrides": {"instanceType": "trn2.48xlarge"}}

    with pytest.raises(UnsupportedOverride, match="instanceType"):
        node_properties(definition("0:"), {"nodePropertyOverrides": [override]})


def test_submission_does_not_change_definition() -> None:
    properties = definition("0:")
    override = {"targetNodes": "0:", "containerOverrides": {"command": ["new"]}}

    node_properties(properties, {"numNodes": 5, "nodePropertyOverrides": [override]})

    assert properties == definition("0:")
