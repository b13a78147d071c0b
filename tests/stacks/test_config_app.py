"""app.py: a context becomes stacks, or one line and exit status 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import aws_cdk as cdk
import pytest
from aws_cdk.assertions import Annotations, Match

from app import build
from stacks.config import AppConfig
from tests.stacks.synthesis import FLAGS, ROOT
from tests.support.limits import scaled

CDK = Path(sys.executable).with_name("cdk")
WITHOUT_AN_ACCOUNT = {
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
    "CDK_DISABLE_CLI_TELEMETRY": "true",
}


def stacks_of(tmp_path: Path, **keys: object) -> list[cdk.Stack]:
    app = cdk.App(context=FLAGS, outdir=str(tmp_path))
    config = AppConfig.from_mapping({f"trainium:{name}": value for name, value in keys.items()})
    build(app, config)
    return [child for child in app.node.children if isinstance(child, cdk.Stack)]


def run(*command: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **WITHOUT_AN_ACCOUNT, **env},
        capture_output=True,
        text=True,
        timeout=scaled(120),
        check=False,
    )


def test_keys_are_recorded_from_every_source() -> None:
    given = {"trainium:deployment": "team-a", "trainium:max_nodes": "8"}
    app = cdk.App(context={**FLAGS, "trainium:instance_type": "trn1.32xlarge", **given})

    config = AppConfig.from_context(app.node)

    assert dict(config.settings) == {
        "deployment": "team-a",
        "instance_type": "trn1.32xlarge",
        "max_nodes": "8",
    }


def test_stack_names_contain_deployment_name(tmp_path: Path) -> None:
    stacks = stacks_of(tmp_path, deployment="team-a")

    assert [stack.stack_name for stack in stacks] == [
        "trainium-team-a-network",
        "trainium-team-a-storage",
        "trainium-team-a-lustre",
        "trainium-team-a-image",
        "trainium-team-a-data",
        "trainium-team-a-batch",
    ]


def test_stacks_have_region_but_no_account(tmp_path: Path) -> None:
    stacks = stacks_of(tmp_path)

    assert {stack.region for stack in stacks} == {"us-west-2"}
    assert all(cdk.Token.is_unresolved(stack.account) for stack in stacks)


def test_warning_of_the_configuration_reaches_the_user(tmp_path: Path) -> None:
    network, *_ = stacks_of(tmp_path, availability_zone_id="us-west-2a")

    Annotations.from_stack(network).has_warning(
        "*", Match.string_like_regexp("us-west-2a cannot be checked")
    )


PLANTED = """
import sys
import aws_cdk as cdk
import app

def build(cdk_app, config):
    values = {"ClusterName": "one", "AddonName": "vpc-cni", "AddonVersion": "1.20"}
    cdk.CfnResource(cdk.Stack(cdk_app, "S"), "A", type="AWS::EKS::Addon", properties=values)

app.build, app.warn_about_build_host, app.warn_about_dates = build, lambda *_: None, lambda *_: None
sys.exit(app.main())
"""


# test_config_properties reads the key that turns it off, and test_matrix runs cdk-preflight.
@pytest.mark.full
@pytest.mark.parametrize("keys", [{}, {"cdk_preflight": "false"}], ids=["default", "off"])
def test_synthesis_fails_on_what_cdk_preflight_finds(keys: dict[str, str], tmp_path: Path) -> None:
    context = {**FLAGS, **{f"trainium:{name}": value for name, value in keys.items()}}

    surroundings = {"CDK_CONTEXT_JSON": json.dumps(context), "CDK_OUTDIR": str(tmp_path)}

    done = run(sys.executable, "-c", PLANTED, **surroundings)

    said = "AddonVersion 1.20 is not of the form vX.Y.Z-eksbuild.N" in done.stdout + done.stderr
    assert ((done.returncode != 0), said) == (not keys, not keys)


def test_refusal_is_one_line_on_stderr_and_status_2() -> None:
    context = {"trainium:instance_type": "trn1.33xlarge"}

    refused = run(sys.executable, "app.py", CDK_CONTEXT_JSON=json.dumps(context))

    assert refused.returncode == 2
    assert refused.stderr == (
        "refused: trainium:instance_type=trn1.33xlarge is not a known instance type; "
        "did you mean 'trn1.32xlarge'?\n"
    )


def test_refusal_is_readable_through_cdk_cli(tmp_path: Path) -> None:
    done = run(str(CDK), "synth", "--output", str(tmp_path / "out"), "-c", "trainium:max_nodes=0")

    assert done.returncode != 0
    assert "refused: trainium:max_nodes=0 is out of range" in done.stderr
    assert "Traceback" not in done.stderr
