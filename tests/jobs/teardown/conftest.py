"""A deployment of two small stacks in moto, with its assembly, for `jobs down`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from moto.cloudformation.parsing import ResourceMap
from moto.ec2.responses import EC2Response
from moto.ssm.models import ssm_backends
from typer.testing import Result

from tests.jobs.conftest import ACCOUNT, REGION, Cli
from tests.jobs.test_check_deploy import assemble
from trainium_catalogue import contract
from trainium_emulators.aws.cloudformation import ec2

Json = dict[str, Any]
STORAGE, DATA = "trainium-default-storage", "trainium-default-data"
DATA_BUCKET = "trainium-default-storage-databucket-a1b2"
SETTINGS = {"instance_type": "trn1.32xlarge", "max_nodes": "4"}


def storage(*, kept: bool, bucket: str = DATA_BUCKET) -> Json:
    """Return the bucket's template, as far as `jobs down` reads it."""
    policy = "Retain" if kept else "Delete"
    resource = {
        "Type": "AWS::S3::Bucket",
        "Properties": {"BucketName": bucket},
        "DeletionPolicy": policy,
    }
    return {"Resources": {"Bucket": resource}}


def data(published: Mapping[str, str]) -> Json:
    """Return the template that publishes the deployment."""
    group = {"LogGroupName": "/trainium/default/jobs"}
    parameters = {
        f"Parameter{number}": {
            "Type": "AWS::SSM::Parameter",
            "Properties": {"Name": name, "Type": "String", "Value": value},
        }
        for number, (name, value) in enumerate(published.items())
    }
    logs = {"Type": "AWS::Logs::LogGroup", "Properties": group}
    return {"Resources": {"Logs": logs, **parameters}}


def published(cli: Cli, settings: Json | None = SETTINGS) -> dict[str, str]:
    """Delete the parameters of the fixture `cli`; return them and the settings, for a stack."""
    backend = ssm_backends[ACCOUNT][REGION]
    pages = cli.client("ssm").get_paginator("get_parameters_by_path")
    values = {
        parameter["Name"]: parameter["Value"]
        for page in pages.paginate(Path=contract.ssm_root("default"), Recursive=True)
        for parameter in page["Parameters"]
    }
    for name in values:
        backend.delete_parameter(name)
    name_of_settings = contract.ssm_parameter("default", contract.SSM_SETTINGS)
    return {**values, name_of_settings: json.dumps(settings)}


@dataclass(slots=True)
class Deployed:
    """The deployment, and `jobs down` as a user runs it."""

    cli: Cli
    folder: Path
    assembly: Path

    @property
    def receipt(self) -> Path:
        return self.folder / "receipt.json"

    def words(self, *more: str) -> list[str]:
        return [
            *("down", "--receipt", str(self.receipt), "--assembly", str(self.assembly)),
            *more,
        ]

    def down(self, *more: str) -> Result:
        return self.cli.run(*self.words("--yes", *more))

    def document(self) -> Json:
        document: Json = json.loads(self.receipt.read_text(encoding="utf-8"))
        return document

    def table(self) -> str:
        return self.receipt.with_suffix(".txt").read_text(encoding="utf-8")

    def stacks(self) -> set[str]:
        described = self.cli.client("cloudformation").describe_stacks()["Stacks"]
        return {stack["StackName"] for stack in described}

    def create(self, name: str, template: Json) -> None:
        body = json.dumps(template)
        self.cli.client("cloudformation").create_stack(StackName=name, TemplateBody=body)

    def buckets(self) -> set[str]:
        return {item["Name"] for item in self.cli.client("s3").list_buckets()["Buckets"]}

    def fill(self, bucket: str = DATA_BUCKET) -> None:
        """Put two versions of an object and a delete marker into the bucket."""
        s3 = self.cli.client("s3")
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        for body in (b"1", b"22"):
            s3.put_object(Bucket=bucket, Key="runs/a/x", Body=body)
        s3.delete_object(Bucket=bucket, Key="runs/a/x")


def deploy(cli: Cli, folder: Path, *, kept: bool, settings: Json | None = SETTINGS) -> Deployed:
    """Deploy both stacks, and write their assembly."""
    templates = {STORAGE: storage(kept=kept), DATA: data(published(cli, settings))}
    deployed = Deployed(cli, folder, folder / "cdk.out")
    for name, template in templates.items():
        deployed.create(name, template)
    deployed.assembly.mkdir()
    named = {stack.replace("-", "_"): template for stack, template in templates.items()}
    assemble(deployed.assembly, region="us-west-2", **named)
    manifest = json.loads((deployed.assembly / "manifest.json").read_text())
    # Complete the manifest, so that the CDK CLI can read the assembly.
    manifest["version"] = "36.0.0"
    del manifest["artifacts"]["Tree"]
    manifest["artifacts"][DATA]["dependencies"] = [STORAGE]
    (deployed.assembly / "manifest.json").write_text(json.dumps(manifest))
    return deployed


@pytest.fixture(autouse=True)
def _placement_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the emulator's placement groups, because moto has none."""
    monkeypatch.setattr(
        EC2Response, "describe_placement_groups", ec2.describe_placement_groups, raising=False
    )


@pytest.fixture(autouse=True)
def _deleted_stacks_stay_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep moto's records of a deleted stack's resources: it would recreate those that it lists.

    The emulator does the same (``_delete_stack_resources``).
    """
    delete = ResourceMap.delete

    def keeping(resources: Any) -> None:
        known = dict(resources._parsed_resources)
        delete(resources)
        resources._parsed_resources.update(known)

    monkeypatch.setattr(ResourceMap, "delete", keeping)


@pytest.fixture
def deployed(cli: Cli, tmp_path: Path) -> Deployed:
    """The deployment, whose bucket is retained."""
    return deploy(cli, tmp_path, kept=True)
