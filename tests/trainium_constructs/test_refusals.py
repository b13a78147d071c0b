"""Constructs refuse invalid settings, naming the value and valid ones."""

from __future__ import annotations

import json
from pathlib import Path

import aws_cdk as cdk
import pytest

from trainium_constructs import NodeVpc


@pytest.fixture
def stack() -> cdk.Stack:
    return cdk.Stack(cdk.App(), "Test", env=cdk.Environment(region="us-west-2"))


def test_zone_needs_an_id_or_a_name(stack: cdk.Stack) -> None:
    with pytest.raises(ValueError, match=r"zone_ids=\(\) and zone_names=\(\)"):
        NodeVpc(stack, "Nodes", cidr="10.0.0.0/16")


def test_zones_by_both_id_and_name_are_refused(stack: cdk.Stack) -> None:
    with pytest.raises(ValueError, match="specify either zone_ids or zone_names"):
        NodeVpc(
            stack, "Nodes", cidr="10.0.0.0/16", zone_ids=["usw2-az4"], zone_names=["us-west-2d"]
        )


def test_single_zone_refuses_two_nat_gateways(stack: cdk.Stack) -> None:
    with pytest.raises(ValueError, match=r"must be 0 or 1 \(in the first zone\), got 2"):
        NodeVpc(stack, "Nodes", cidr="10.0.0.0/16", zone_ids=["usw2-az4"], nat_gateways=2)


def test_vpc_needs_no_context_lookup_in_known_account(tmp_path: Path) -> None:
    app = cdk.App(outdir=str(tmp_path))
    env = cdk.Environment(account="111111111111", region="us-west-2")
    NodeVpc(cdk.Stack(app, "Test", env=env), "Nodes", cidr="10.0.0.0/16", zone_ids=["usw2-az4"])

    app.synth()

    assert "missing" not in json.loads((tmp_path / "manifest.json").read_text())
