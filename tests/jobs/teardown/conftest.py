"""A deployment of two small stacks in moto, the assembly that they were deployed from, and down."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from tests.jobs.conftest import Desk
from tests.jobs.test_check_deploy import assemble
from trainium_catalogue import contract

Json = dict[str, Any]
STORAGE, DATA = "trainium-default-storage", "trainium-default-data"
DATA_BUCKET = "trainium-default-storage-databucket-a1b2"
SETTINGS = {"instance_type": "trn1.32xlarge", "max_nodes": "4"}


def storage(*, kept: bool, bucket: str = DATA_BUCKET) -> Json:
    """The template of the bucket, as far as `jobs down` reads it."""
    policy = "Retain" if kept else "Delete"
    resource = {
        "Type": "AWS::S3::Bucket",
        "Properties": {
            "BucketName": bucket,
            "VersioningConfiguration": {"Status": "Enabled"},
        },
        "DeletionPolicy": policy,
    }
    return {"Resources": {"Bucket": resource}}


def data(settings: Json | None = SETTINGS) -> Json:
    """The template that states the settings."""
    properties = {
        "Name": contract.ssm_parameter("default", contract.SSM_SETTINGS),
        "Type": "String",
        "Value": json.dumps(settings),
    }
    group = {"LogGroupName": "/trainium/default/jobs"}
    return {
        "Resources": {
            "Settings": {"Type": "AWS::SSM::Parameter", "Properties": properties},
            "Logs": {"Type": "AWS::Logs::LogGroup", "Properties": group},
        }
    }


@dataclass(slots=True)
class Deployed:
    """The deployment, and `jobs down` as a user calls it."""

    desk: Desk
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
        return self.desk.run(*self.words("--yes", *more))

    def document(self) -> Json:
        found: Json = json.loads(self.receipt.read_text(encoding="utf-8"))
        return found

    def table(self) -> str:
        return self.receipt.with_suffix(".txt").read_text(encoding="utf-8")

    def stacks(self) -> set[str]:
        described = self.desk.client("cloudformation").describe_stacks()["Stacks"]
        return {stack["StackName"] for stack in described}

    def create(self, name: str, template: Json) -> None:
        body = json.dumps(template)
        self.desk.client("cloudformation").create_stack(StackName=name, TemplateBody=body)

    def buckets(self) -> set[str]:
        return {item["Name"] for item in self.desk.client("s3").list_buckets()["Buckets"]}

    def fill(self, bucket: str = DATA_BUCKET) -> None:
        """Put two versions of an object, and a delete marker, into the bucket."""
        s3 = self.desk.client("s3")
        for body in (b"1", b"22"):
            s3.put_object(Bucket=bucket, Key="runs/a/x", Body=body)
        s3.delete_object(Bucket=bucket, Key="runs/a/x")


def deploy(desk: Desk, folder: Path, *, kept: bool, settings: Json | None = SETTINGS) -> Deployed:
    """Deploy both stacks, and write their assembly."""
    templates = {STORAGE: storage(kept=kept), DATA: data(settings)}
    made = Deployed(desk, folder, folder / "cdk.out")
    for name, template in templates.items():
        made.create(name, template)
    made.assembly.mkdir()
    assemble(made.assembly, **{k.replace("-", "_"): v for k, v in templates.items()})
    manifest = json.loads((made.assembly / "manifest.json").read_text())
    # What the CLI demands of an assembly.
    manifest["version"] = "36.0.0"
    del manifest["artifacts"]["Tree"]
    manifest["artifacts"][DATA]["dependencies"] = [STORAGE]
    (made.assembly / "manifest.json").write_text(json.dumps(manifest))
    desk.parameter(contract.SSM_BUCKET, DATA_BUCKET)
    return made


@pytest.fixture
def deployed(desk: Desk, tmp_path: Path) -> Deployed:
    """The deployment, whose bucket stays."""
    return deploy(desk, tmp_path, kept=True)
