"""Constructs refuse what cannot work, naming the value and what would be valid."""

from __future__ import annotations

import json
from pathlib import Path

import aws_cdk as cdk
import pytest

from trainium_constructs import NodeVpc


@pytest.fixture
def stack() -> cdk.Stack:
    return cdk.Stack(cdk.App(), "Test", env=cdk.Environment(region="us-west-2"))


def test_a_zone_needs_an_id_or_a_name(stack: cdk.Stack) -> None:
    with pytest.raises(ValueError, match=r"zone_ids=\(\) and zone_names=\(\)"):
        NodeVpc(stack, "Nodes", cidr="10.0.0.0/16")


def test_zones_are_not_given_by_both(stack: cdk.Stack) -> None:
    with pytest.raises(ValueError, match="by their ids or by their names"):
        NodeVpc(
            stack, "Nodes", cidr="10.0.0.0/16", zone_ids=["usw2-az4"], zone_names=["us-west-2d"]
        )


def test_one_way_out_has_no_use_for_two_nat_gateways(stack: cdk.Stack) -> None:
    with pytest.raises(ValueError, match="must be 0 or 1, in the first zone, got 2"):
        NodeVpc(stack, "Nodes", cidr="10.0.0.0/16", zone_ids=["usw2-az4"], nat_gateways=2)


def test_a_vpc_needs_no_look_up_in_a_known_account(tmp_path: Path) -> None:
    app = cdk.App(outdir=str(tmp_path))
    env = cdk.Environment(account="111111111111", region="us-west-2")
    NodeVpc(cdk.Stack(app, "Test", env=env), "Nodes", cidr="10.0.0.0/16", zone_ids=["usw2-az4"])

    app.synth()

    assert "missing" not in json.loads((tmp_path / "manifest.json").read_text())
