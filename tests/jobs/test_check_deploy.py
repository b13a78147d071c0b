"""`check-deploy` as a user runs it, on stacks of moto's CloudFormation."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from moto.cloudformation.models import cloudformation_backends
from moto.core import DEFAULT_ACCOUNT_ID

from jobs.deploy_check.assembly import newer_source
from tests.jobs.conftest import Cli
from tests.jobs.test_refusals import assert_refused
from tests.support.schemas import conforms

STACK = "trainium-default-data"
Json = dict[str, Any]


def queue(name: str = "one") -> Json:
    properties = {"LogGroupName": f"/{name}", "RetentionInDays": 30}
    return {"Resources": {"Logs": {"Type": "AWS::Logs::LogGroup", "Properties": properties}}}


def assemble(folder: Path, *, region: str = "us-west-2", **templates: Json) -> Path:
    """Write an assembly like `cdk synth`."""
    artifacts: Json = {"Tree": {"type": "cdk:tree", "properties": {"file": "tree.json"}}}
    for name, content in templates.items():
        stack = name.replace("_", "-")
        (folder / f"{stack}.template.json").write_text(json.dumps(content))
        artifacts[stack] = {
            "type": "aws:cloudformation:stack",
            "environment": f"aws://unknown-account/{region}",
            "properties": {"templateFile": f"{stack}.template.json"},
        }
    (folder / "manifest.json").write_text(json.dumps({"artifacts": artifacts}))
    return folder


def check(cli: Cli, folder: Path, *arguments: str) -> Any:
    return cli.run("check-deploy", "--assembly", str(folder), *arguments)


def document(cli: Cli, folder: Path) -> Json:
    found: Json = json.loads(check(cli, folder, "--json").stdout)
    conforms("jobs-check-deploy", found)
    return found


@pytest.fixture
def deployed(cli: Cli) -> Cli:
    """A deployment of one stack, among stacks of others."""
    for name in (STACK, "trainium-default-b-data", "trainium-other-data", "something-else"):
        text = json.dumps(queue(name))
        cli.client("cloudformation").create_stack(StackName=name, TemplateBody=text)
    return cli


def test_unchanged_deployment_has_no_findings(deployed: Cli, tmp_path: Path) -> None:
    folder = assemble(tmp_path, trainium_default_data=queue(STACK))
    result = check(deployed, folder)

    assert (result.exit_code, document(deployed, folder)["findings"]) == (0, [])
    assert "no job ends, no data is lost, nothing is left behind" in result.stdout


@pytest.mark.parametrize("status", ["ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "REVIEW_IN_PROGRESS"])
def test_stack_that_was_never_created_is_created(
    deployed: Cli, tmp_path: Path, status: str
) -> None:
    for region in cloudformation_backends[DEFAULT_ACCOUNT_ID].values():
        for stack in region.stacks.values():
            stack.status = status
    folder = assemble(tmp_path, trainium_default_data=queue("another"))
    found = document(deployed, folder)

    assert [stack["action"] for stack in found["stacks"]] == ["create"]
    assert found["findings"] == []


def test_finding_exits_with_1_and_is_in_document(deployed: Cli, tmp_path: Path) -> None:
    folder = assemble(tmp_path, trainium_default_data=queue("another"))
    result = check(deployed, folder)
    found = document(deployed, folder)

    assert result.exit_code == 1
    assert "loses-data" in result.stdout and "no job ends" not in result.stdout
    assert f"replaced: {STACK}/Logs" in result.stdout
    assert found["stacks"] == [
        {
            "name": STACK,
            "action": "update",
            "changes": [
                {
                    "resource": "Logs",
                    "type": "AWS::Logs::LogGroup",
                    "fate": "replaced",
                    "because": ["LogGroupName"],
                }
            ],
        }
    ]


def test_only_stacks_of_this_deployment_are_left_behind(deployed: Cli, tmp_path: Path) -> None:
    folder = assemble(tmp_path, trainium_default_network={"Resources": {}})
    actions = {stack["name"]: stack["action"] for stack in document(deployed, folder)["stacks"]}

    assert actions == {"trainium-default-network": "create", STACK: "left-behind"}


def test_yaml_template_is_read(cli: Cli, tmp_path: Path) -> None:
    text = (
        "Resources:\n  Logs:\n    Type: AWS::Logs::LogGroup\n    Properties:\n"
        f"      LogGroupName: /{STACK}\n      RetentionInDays: 30\n"
    )
    cli.client("cloudformation").create_stack(StackName=STACK, TemplateBody=text)
    folder = assemble(tmp_path, trainium_default_data=queue(STACK))

    assert document(cli, folder)["stacks"][0]["action"] == "unchanged"


def test_missing_assembly_is_refused(cli: Cli, tmp_path: Path) -> None:
    result = check(cli, tmp_path / "cdk.out")

    assert_refused(result, "is not a cloud assembly", "cdk synth --quiet", "--assembly")


@pytest.mark.parametrize("text", ["{", "{}"])
def test_unreadable_assembly_is_refused(cli: Cli, tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)

    assert_refused(check(cli, tmp_path), "cannot be read", "cdk synth --quiet")


def test_assembly_of_other_deployment_is_refused(cli: Cli, tmp_path: Path) -> None:
    folder = assemble(tmp_path, trainium_team_b_data=queue())

    assert_refused(
        check(cli, folder),
        "stacks that do not belong to deployment 'default': trainium-team-b-data",
        "--deployment",
        "-c trainium:deployment=default",
    )


def test_assembly_without_stacks_is_refused(cli: Cli, tmp_path: Path) -> None:
    assert_refused(check(cli, assemble(tmp_path)), "has no stack")


def test_assembly_of_other_region_is_refused(cli: Cli, tmp_path: Path) -> None:
    folder = assemble(tmp_path, region="us-east-2", trainium_default_data=queue())

    assert_refused(check(cli, folder), "is for us-east-2", "--region us-east-2")


def test_assembly_without_region_uses_region_of_command(cli: Cli, tmp_path: Path) -> None:
    folder = assemble(tmp_path, region="unknown-region", trainium_default_data=queue())

    assert check(cli, folder).exit_code == 0


def test_assembly_older_than_sources_is_noted(cli: Cli, tmp_path: Path) -> None:
    folder = assemble(tmp_path, trainium_default_data=queue())
    os.utime(folder / "manifest.json", (0, 0))
    result = check(cli, folder)

    assert result.exit_code == 0
    assert "was changed after" in result.stderr and "cdk synth --quiet" in result.stderr
    assert document(cli, folder)["newer_source"]


@pytest.mark.parametrize(
    ("path", "counts"),
    [("stacks/a.py", True), ("cdk.json", True), ("jobs/a.py", False), ("stacks/a.pyc", False)],
)
def test_sources_are_files_that_affect_templates(tmp_path: Path, path: str, counts: bool) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_text("{}")
    os.utime(manifest, (0, 0))
    source = tmp_path / path
    source.parent.mkdir(exist_ok=True)
    source.write_text("x")

    assert newer_source(manifest, repository=tmp_path) == (path if counts else None)
