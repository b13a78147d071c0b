"""The table of AWS's refusals: each row against an example, and against the rule packs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import botocore.exceptions
import pytest
from cdk_preflight import Preflight

from tests.emulators.conftest import Client
from tests.emulators.refusal_examples import SUBMISSIONS, TEMPLATES, Example, Json, att, ref
from tests.support.linting import findings_of
from tests.support.templates import TemplateAccount
from trainium_emulators.aws.refusals import messages
from trainium_emulators.aws.refusals.request import UNKNOWN, AwsRequest, ResourceReference
from trainium_emulators.aws.refusals.table import SUBMIT, TABLE

ROWS = {row.id: row for row in TABLE}


def rows_met(example: Example, template: Json, before: Json | None = None) -> set[str]:
    """Return the rows that match a template, or an update to it."""
    account = TemplateAccount({"stack": template}, example.region)
    old = TemplateAccount({"stack": before or {}}, example.region)
    known = {name: request.properties for name, _, request in old.requests()}
    asked = [
        (kind, AwsRequest(properties=r.properties, account=account, previous=known.get(name)))
        for name, kind, r in account.requests()
    ]
    return {row.id for row in TABLE for kind, r in asked if kind == row.on and row.refuses(r)}


def test_every_row_has_an_example_and_a_public_source() -> None:
    assert {*TEMPLATES, *SUBMISSIONS} == {*ROWS}
    assert len(ROWS) == len(TABLE)
    assert [row.id for row in TABLE if not row.source.startswith("https://")] == []


@pytest.mark.parametrize("name", TEMPLATES)
def test_row_separates_refused_from_accepted_template(name: str) -> None:
    example = TEMPLATES[name]
    before = example.passes() if example.update else None

    assert name in rows_met(example, example.fails(), before)
    assert rows_met(example, example.passes()) == set()


@pytest.mark.parametrize("name", SUBMISSIONS)
def test_row_separates_refused_from_accepted_submission(name: str) -> None:
    account = TemplateAccount({}, "us-west-2")

    bad, good = (
        messages(SUBMIT, AwsRequest(properties=given, account=account))
        for given in SUBMISSIONS[name]
    )

    assert (bad, good) == ([ROWS[name].message], [])


# --- templates -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "resolved"),
    [
        ({"Ref": "AWS::Region"}, "us-west-2"),
        ({"Fn::Join": ["-", ["a", {"Ref": "AWS::Region"}]]}, "a-us-west-2"),
        ({"Fn::Join": ["", ["name-", ref("Group")]]}, UNKNOWN),
        ({"Fn::Join": ["", [ref("Group")]]}, ResourceReference("one", "Group")),
        ({"Fn::ImportValue": "two:out"}, "text"),
        ({"Fn::If": ["Condition", "a", "b"]}, UNKNOWN),
        (att("Group"), ResourceReference("one", "Group")),
        ({"a": {"Ref": "AWS::NoValue"}, "b": 1}, {"b": 1}),
    ],
)
def test_template_is_resolved_as_far_as_known(value: Any, resolved: Any) -> None:
    templates: dict[str, Json] = {
        "one": {"Resources": {"Group": {"Type": "AWS::EC2::SecurityGroup"}}},
        "two": {"Outputs": {"Out": {"Value": "text", "Export": {"Name": "two:out"}}}},
    }

    assert TemplateAccount(templates, "us-west-2").resolve(value, "one") == resolved


@pytest.mark.parametrize("name", TEMPLATES)
def test_unknown_value_is_not_refused(name: str) -> None:
    class Everything(dict[str, Any]):
        """Properties that are all unknown before the deployment."""

        def __contains__(self, name: object) -> bool:
            return True

        def __missing__(self, name: str) -> Any:
            return UNKNOWN

    account = TemplateAccount({}, "us-west-2")

    assert not ROWS[name].refuses(AwsRequest(properties=Everything(), account=account))


# --- the emulator --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "batch-groups-and-interfaces",
        "batch-update-best-fit",
        "fsx-port-closed",
        "function-interfaces",
    ],
)
def test_emulated_account_fails_deployment_with_message(client: Client, name: str) -> None:
    """Those that read other resources, of a creation and of an update."""
    example, cloudformation = TEMPLATES[name], client("cloudformation")
    good, bad = json.dumps(example.passes()), json.dumps(example.fails())

    cloudformation.create_stack(StackName=f"{name}-taken", TemplateBody=good)
    with pytest.raises(botocore.exceptions.ClientError) as refusal:
        if example.update:
            cloudformation.update_stack(StackName=f"{name}-taken", TemplateBody=bad)
        else:
            cloudformation.create_stack(StackName=name, TemplateBody=bad)

    assert ROWS[name].message in str(refusal.value)


# --- the rule packs ------------------------------------------------------------------------------

READS_ONE_STACK = {"cluster-zones"}
"""Rows that cdk-preflight has for resources of one stack only, where ours are in two."""


# There is no cheaper test: this one checks the table's size, not behavior.
@pytest.mark.full
def test_no_kept_row_is_covered_by_rule_packs(tmp_path: Path) -> None:
    assert found_by_packs(tmp_path, {n: e.fails() for n, e in TEMPLATES.items()}) == READS_ONE_STACK


def found_by_packs(folder: Path, templates: dict[str, Json]) -> set[str]:
    """Return the templates in which cdk-preflight, the CDK or cfn-lint finds an error."""
    app = cdk.App(outdir=str(folder))
    for name, template in templates.items():
        environment = cdk.Environment(region=TEMPLATES[name].region)
        stack = cdk.Stack(app, name, env=environment)
        for logical_id, made in template["Resources"].items():
            resource = cdk.CfnResource(
                stack, logical_id, type=made["Type"], properties=made["Properties"]
            )
            resource.override_logical_id(logical_id)
    Preflight.apply(app)
    with pytest.raises(RuntimeError):
        app.synth()
    report = json.loads((folder / "validation-report.json").read_text())
    found = {
        construct["constructPath"].partition("/")[0]
        for plugin in report["pluginReports"]
        for violation in plugin["violations"]
        if violation.get("severity") == "error"
        for construct in violation["violatingConstructs"]
    }
    return found | {
        name
        for name, template in templates.items()
        if findings_of(json.dumps(template), TEMPLATES[name].region)
    }
