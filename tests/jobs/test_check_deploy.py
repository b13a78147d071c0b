"""`check-deploy` as a user calls it, on stacks of moto's CloudFormation."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from moto.cloudformation.models import cloudformation_backends
from moto.core import DEFAULT_ACCOUNT_ID

from jobs.deploy_check.assembly import newer_source
from tests.jobs.conftest import Desk
from tests.jobs.test_refusals import assert_refused
from tests.support.schemas import conforms

STACK = "trainium-default-data"
Json = dict[str, Any]


def queue(name: str = "one") -> Json:
    properties = {"LogGroupName": f"/{name}", "RetentionInDays": 30}
    return {"Resources": {"Logs": {"Type": "AWS::Logs::LogGroup", "Properties": properties}}}


def assemble(folder: Path, *, region: str = "us-west-2", **templates: Json) -> Path:
    """Write what `cdk synth` writes."""
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


def check(desk: Desk, folder: Path, *arguments: str) -> Any:
    return desk.run("check-deploy", "--assembly", str(folder), *arguments)


def document(desk: Desk, folder: Path) -> Json:
    found: Json = json.loads(check(desk, folder, "--json").stdout)
    conforms("jobs-check-deploy", found)
    return found


@pytest.fixture
def deployed(desk: Desk) -> Desk:
    """The deployment, of one stack, beside stacks of others."""
    for name in (STACK, "trainium-default-b-data", "trainium-other-data", "something-else"):
        text = json.dumps(queue(name))
        desk.client("cloudformation").create_stack(StackName=name, TemplateBody=text)
    return desk


def test_what_is_deployed_already_ends_nothing(deployed: Desk, tmp_path: Path) -> None:
    folder = assemble(tmp_path, trainium_default_data=queue(STACK))
    result = check(deployed, folder)

    assert (result.exit_code, document(deployed, folder)["findings"]) == (0, [])
    assert "no job ends, nothing is lost, nothing is left behind" in result.stdout


@pytest.mark.parametrize("status", ["ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "REVIEW_IN_PROGRESS"])
def test_a_stack_that_was_never_created_is_created(
    deployed: Desk, tmp_path: Path, status: str
) -> None:
    for region in cloudformation_backends[DEFAULT_ACCOUNT_ID].values():
        for stack in region.stacks.values():
            stack.status = status
    folder = assemble(tmp_path, trainium_default_data=queue("another"))
    found = document(deployed, folder)

    assert [stack["action"] for stack in found["stacks"]] == ["create"]
    assert found["findings"] == []


def test_a_finding_ends_with_1_and_is_in_the_document(deployed: Desk, tmp_path: Path) -> None:
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


def test_stacks_of_this_deployment_only_are_left_behind(deployed: Desk, tmp_path: Path) -> None:
    folder = assemble(tmp_path, trainium_default_network={"Resources": {}})
    actions = {stack["name"]: stack["action"] for stack in document(deployed, folder)["stacks"]}

    assert actions == {"trainium-default-network": "create", STACK: "left-behind"}


def test_a_template_that_was_sent_as_yaml_is_read(desk: Desk, tmp_path: Path) -> None:
    text = (
        "Resources:\n  Logs:\n    Type: AWS::Logs::LogGroup\n    Properties:\n"
        f"      LogGroupName: /{STACK}\n      RetentionInDays: 30\n"
    )
    desk.client("cloudformation").create_stack(StackName=STACK, TemplateBody=text)
    folder = assemble(tmp_path, trainium_default_data=queue(STACK))

    assert document(desk, folder)["stacks"][0]["action"] == "unchanged"


def test_nothing_deployed_yet_is_all_created(desk: Desk, tmp_path: Path) -> None:
    folder = assemble(tmp_path, trainium_default_data=queue())

    assert check(desk, folder).exit_code == 0
    assert document(desk, folder)["stacks"][0]["action"] == "create"


def test_an_assembly_that_is_missing_is_refused(desk: Desk, tmp_path: Path) -> None:
    result = check(desk, tmp_path / "cdk.out")

    assert_refused(result, "holds no cloud assembly", "cdk synth --quiet", "--assembly")


@pytest.mark.parametrize("text", ["{", "{}", '{"artifacts": {"a": {"type": "aws:cloudformation:'])
def test_an_assembly_that_cannot_be_read_is_refused(desk: Desk, tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)

    assert_refused(check(desk, tmp_path), "cannot be read", "cdk synth --quiet")


def test_an_assembly_whose_template_is_gone_is_refused(desk: Desk, tmp_path: Path) -> None:
    folder = assemble(tmp_path, trainium_default_data=queue())
    (folder / f"{STACK}.template.json").unlink()

    assert_refused(check(desk, folder), "cannot be read", "cdk synth --quiet")


def test_another_deployment_s_assembly_is_refused(desk: Desk, tmp_path: Path) -> None:
    folder = assemble(tmp_path, trainium_team_b_data=queue())

    assert_refused(
        check(desk, folder),
        "trainium-team-b-data, which is not of deployment 'default'",
        "--deployment",
        "-c trainium:deployment=default",
    )


def test_an_assembly_without_stacks_is_refused(desk: Desk, tmp_path: Path) -> None:
    assert_refused(check(desk, assemble(tmp_path)), "holds no stack")


def test_another_region_s_assembly_is_refused(desk: Desk, tmp_path: Path) -> None:
    folder = assemble(tmp_path, region="us-east-2", trainium_default_data=queue())

    assert_refused(check(desk, folder), "goes to us-east-2", "--region us-east-2")


def test_an_assembly_of_no_region_goes_where_the_command_looks(desk: Desk, tmp_path: Path) -> None:
    folder = assemble(tmp_path, region="unknown-region", trainium_default_data=queue())

    assert check(desk, folder).exit_code == 0


def test_an_assembly_older_than_the_sources_is_said(desk: Desk, tmp_path: Path) -> None:
    folder = assemble(tmp_path, trainium_default_data=queue())
    os.utime(folder / "manifest.json", (0, 0))
    result = check(desk, folder)

    assert result.exit_code == 0
    assert "was changed after" in result.stderr and "cdk synth --quiet" in result.stderr
    assert document(desk, folder)["newer_source"]


@pytest.mark.parametrize(
    ("path", "counts"),
    [("stacks/a.py", True), ("cdk.json", True), ("jobs/a.py", False), ("stacks/a.pyc", False)],
)
def test_sources_are_what_templates_are_made_of(tmp_path: Path, path: str, counts: bool) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_text("{}")
    os.utime(manifest, (0, 0))
    source = tmp_path / path
    source.parent.mkdir(exist_ok=True)
    source.write_text("x")

    assert newer_source(manifest, repository=tmp_path) == (path if counts else None)
