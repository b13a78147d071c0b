"""The image stack, and the publication of the image."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.stacks.synthesis import ROOT, Deployment, deployment

PREBUILT = "123456789012.dkr.ecr.us-west-2.amazonaws.com/mine/it:1"


@pytest.fixture
def made() -> Deployment:
    return deployment()


def manifest(made: Deployment) -> dict[str, Any]:
    artifacts: dict[str, Any] = json.loads((made.folder / "manifest.json").read_text())["artifacts"]
    return artifacts


def image_asset(made: Deployment) -> dict[str, Any]:
    name = f"{made.config.stack_name('data')}.assets.json"
    (asset,) = json.loads((made.folder / name).read_text())["dockerImages"].values()
    assert isinstance(asset, dict)
    return asset


def test_each_deployment_has_own_repository() -> None:
    names = [
        deployment(deployment=name).only("image", "AWS::ECR::Repository")["RepositoryName"]
        for name in ("one", "two")
    ]

    assert names == ["trainium-one", "trainium-two"]


def test_role_names_fit_iam() -> None:
    made = deployment(deployment="d" * 24, region="ap-southeast-4", instance_type="trn1.32xlarge")

    assert len(made.only("image", "AWS::IAM::Role")["RoleName"]) <= 64


def test_publishing_role_can_access_only_repository(made: Deployment) -> None:
    statements = made.only("image", "AWS::IAM::Policy")["PolicyDocument"]["Statement"]
    (logical_id,) = made.logical_ids("image", "AWS::ECR::Repository")

    elsewhere = [
        statement["Action"]
        for statement in statements
        if statement["Resource"] != {"Fn::GetAtt": [logical_id, "Arn"]}
    ]

    assert elsewhere == ["ecr:GetAuthorizationToken"]


def test_image_is_pushed_to_repository_with_publishing_role(made: Deployment) -> None:
    (destination,) = image_asset(made)["destinations"].values()
    role = made.only("image", "AWS::IAM::Role")["RoleName"]

    assert destination["repositoryName"] == "trainium-default"
    assert destination["assumeRoleArn"].endswith(f":role/{role}")


def test_job_runs_pushed_image(made: Deployment) -> None:
    (destination,) = image_asset(made)["destinations"].values()
    job = made.only("batch", "AWS::Batch::JobDefinition", "allreduce")
    image = job["NodeProperties"]["NodeRangeProperties"][0]["Container"]["Image"]["Fn::Sub"]

    assert image.endswith(f"/{destination['repositoryName']}:{destination['imageTag']}")


def test_image_is_built_for_trainium_hosts(made: Deployment) -> None:
    assert image_asset(made)["source"]["platform"] == "linux/amd64"


def test_image_is_built_on_base_pinned_by_release(made: Deployment) -> None:
    assert image_asset(made)["source"]["dockerBuildArgs"] == {
        "BASE_IMAGE": made.config.release.base_image
    }


def test_image_is_built_on_custom_base_image() -> None:
    made = deployment(base_image="me/it:1")

    assert image_asset(made)["source"]["dockerBuildArgs"] == {"BASE_IMAGE": "me/it:1"}


def test_torchneuron_image_pins_exact_versions() -> None:
    """Every argument of the Dockerfile's own base stage has a value, and no other is given."""
    made = deployment(instance_type="trn2.48xlarge", neuron_release="2.33.0")
    dockerfile = (ROOT / "docker/neuron/Dockerfile").read_text()
    stage = dockerfile.partition("AS torchneuron")[2].partition("FROM ")[0]
    declared = {line.removeprefix("ARG ") for line in stage.splitlines() if line.startswith("ARG ")}

    args = image_asset(made)["source"]["dockerBuildArgs"]

    assert {*args, "TORCH_DEVICE_BACKEND_AUTOLOAD=0"} == declared
    assert not [value for value in args.values() if "*" in value or not value]


def test_image_waits_for_its_repository(made: Deployment) -> None:
    assets = manifest(made)["trainium-default-data.assets"]

    assert assets["dependencies"] == ["trainium-default-image"]


def test_waiting_leaves_rest_of_manifest_unchanged(made: Deployment) -> None:
    artifacts = manifest(made)
    ours = artifacts["trainium-default-data.assets"]
    usual = artifacts["trainium-default-image.assets"]

    assert {**ours["properties"], "file": ""} == {**usual["properties"], "file": ""}
    assert ours["type"] == usual["type"]


def test_prebuilt_image_needs_no_repository_and_no_build() -> None:
    made = deployment(image_uri=PREBUILT)

    assert "image" not in made.templates
    assets = json.loads((made.folder / "trainium-default-data.assets.json").read_text())
    assert assets["dockerImages"] == {}


def test_prebuilt_image_in_private_repository_may_be_pulled() -> None:
    made = deployment(image_uri=PREBUILT)

    pulled = [
        statement["Resource"]
        for policy in made.resources("data", "AWS::IAM::Policy")
        for statement in policy["PolicyDocument"]["Statement"]
        if "ecr:BatchGetImage" in statement["Action"]
    ]

    assert pulled == ["arn:aws:ecr:us-west-2:123456789012:repository/mine/it"]


def test_prebuilt_image_in_public_repository_needs_no_permission() -> None:
    made = deployment(image_uri="public.ecr.aws/me/it:1")

    assert "ecr:" not in made.text("data")
