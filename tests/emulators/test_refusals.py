"""The table of what AWS refuses: each row against a template or a request, and its judges."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.emulators.refusal_examples.example import Example, Json, att, closure, ref, resource
from tests.emulators.refusal_examples.index import EXAMPLES, SUBMISSIONS, TEMPLATES
from tests.support.linting import findings_of
from trainium_emulators.aws.refusals import TABLE
from trainium_emulators.aws.refusals.refusal import SUBMIT, TEMPLATE, AwsOutcome, AwsRefusal
from trainium_emulators.aws.refusals.request import (
    UNKNOWN,
    AwsRequest,
    PartialText,
    ResourceReference,
)
from trainium_emulators.aws.refusals.templates import TemplateAccount

ROOT = Path(__file__).resolve().parents[2]
ROWS = {row.id: row for row in TABLE}
LIMITS = "the rehearsal cannot"
"""Beginning of messages about changes that the emulator does not know, which say nothing of AWS."""


def said(row: AwsRefusal, template: Json, *, region: str, before: Json | None = None) -> list[str]:
    """Return a row's messages to a template, or to an update of another one."""
    account = TemplateAccount(templates={"stack": template}, region=region)
    old = TemplateAccount(templates={"stack": before or {}}, region=region)
    found: list[str] = []
    for logical_id, kind, request in account.requests():
        if kind == row.on:
            known = before is not None and logical_id in before["Resources"]
            previous = old.properties("stack", logical_id) if known else None
            asked = AwsRequest(properties=request.properties, account=account, previous=previous)
            found += row.messages(asked)
    if row.on == TEMPLATE:
        found += [message for _, request in account.whole() for message in row.messages(request)]
    return found


def begins(row: AwsRefusal) -> str:
    """The words of a row up to the first value of a request."""
    return row.words.partition("{")[0]


def test_every_row_is_tried() -> None:
    assert {*EXAMPLES, *SUBMISSIONS, *TEMPLATES} == {*ROWS}
    assert len(ROWS) == len(TABLE)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.id)
def test_every_row_has_a_public_source(row: AwsRefusal) -> None:
    assert row.source.startswith("https://")


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_template_that_aws_refuses_meets_its_row(name: str) -> None:
    example = EXAMPLES[name]
    before = {"Resources": example.passes()} if example.update else None

    found = said(ROWS[name], {"Resources": example.fails()}, region=example.region, before=before)

    assert any(message.startswith(begins(ROWS[name])) for message in found)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_template_that_aws_takes_meets_no_row(name: str) -> None:
    example = EXAMPLES[name]
    template = {"Resources": example.passes()}

    assert [m for row in TABLE for m in said(row, template, region=example.region)] == []


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_row_on_whole_templates_tells_bad_from_good(name: str) -> None:
    bad, good = TEMPLATES[name]

    assert said(ROWS[name], bad, region="us-west-2")
    assert [m for row in TABLE for m in said(row, good, region="us-west-2")] == []


@pytest.mark.parametrize("name", SUBMISSIONS)
def test_a_row_on_submissions_tells_bad_from_good(name: str) -> None:
    account = TemplateAccount(templates={}, region="us-west-2")

    def met(request: Json) -> list[str]:
        asked = AwsRequest(properties=request, account=account)
        return [row.id for row in TABLE if row.on == SUBMIT and row.messages(asked)]

    bad, good = SUBMISSIONS[name]
    assert (met(bad), met(good)) == ([name], [])


# --- what is not known ---------------------------------------------------------------------------


def resolve(value: Any) -> Any:
    account = TemplateAccount(
        templates={
            "one": {"Resources": {"Group": resource("AWS::EC2::SecurityGroup")}},
            "two": {
                "Outputs": {"Out": {"Value": "text", "Export": {"Name": "two:out"}}},
            },
        },
        region="us-west-2",
    )
    return account.resolve(value, "one")


@pytest.mark.parametrize(
    ("value", "resolved"),
    [
        ({"Ref": "AWS::Region"}, "us-west-2"),
        ({"Fn::Join": ["-", ["a", {"Ref": "AWS::Region"}]]}, "a-us-west-2"),
        ({"Fn::Sub": "arn:${AWS::Partition}:x"}, "arn:aws:x"),
        ({"Fn::ImportValue": "two:out"}, "text"),
        ({"Fn::ImportValue": "three:out"}, UNKNOWN),
        ({"Fn::If": ["Condition", "a", "b"]}, UNKNOWN),
        ({"Ref": "Parameter"}, UNKNOWN),
        (ref("Group"), ResourceReference(stack="one", logical_id="Group", attribute="Ref")),
        ({"a": {"Ref": "AWS::NoValue"}, "b": 1}, {"b": 1}),
    ],
)
def test_a_template_is_resolved_as_far_as_it_says(value: Any, resolved: Any) -> None:
    assert resolve(value) == resolved


def test_a_text_with_a_reference_in_it_is_known_in_part() -> None:
    joined = resolve({"Fn::Join": ["", ["name-", ref("Group")]]})

    assert isinstance(joined, PartialText)
    assert joined == "name-"


@pytest.mark.parametrize("value", [UNKNOWN, PartialText("'"), "{{resolve"])
@pytest.mark.parametrize("name", ["group-description", "batch-vcpus-order", "fsx-capacity"])
def test_what_is_not_known_is_not_refused(name: str, value: Any) -> None:
    example = EXAMPLES[name]
    (path,) = example.bad
    names = path.split(".")[1:]
    properties: Any = value
    for each in reversed(names):
        properties = {each: properties}
    account = TemplateAccount(templates={}, region="us-west-2")

    assert ROWS[name].messages(AwsRequest(properties=properties, account=account)) == []


# --- the emulator --------------------------------------------------------------------------------


def deployed(*arguments: str) -> Json:
    """Collect the emulator's answers to the examples, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.emulators.refusal_examples.deploy", *arguments],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": ".:constructs:emulators"},
        capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    answers: Json = json.loads(done.stdout)
    return answers


@pytest.fixture(scope="module")
def emulator() -> Json:
    examples: Json = deployed()["examples"]
    return examples


@pytest.mark.parametrize("name", [*EXAMPLES, *TEMPLATES])
def test_the_emulator_fails_a_deployment_with_the_words_of_aws(emulator: Json, name: str) -> None:
    answer = emulator[name]["bad"]

    if ROWS[name].outcome is AwsOutcome.IGNORED:
        assert answer is None
    else:
        assert begins(ROWS[name]) in (answer or "")


@pytest.fixture(scope="module")
def compared() -> Json:
    return deployed("all")


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_emulator_takes_what_aws_takes(compared: Json) -> None:
    answers = {name: answer["good"] for name, answer in compared["examples"].items()}

    assert {name: answer for name, answer in answers.items() if answer} == {}


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_table_says_which_rows_moto_knows(compared: Json) -> None:
    answers = {name: answer["without"] for name, answer in compared["examples"].items()}
    answers |= compared["submissions"]
    known = {name for name, answer in answers.items() if answer and LIMITS not in answer}

    assert known == {row.id for row in TABLE if "moto" in row.known_to}


# --- cfn-lint ------------------------------------------------------------------------------------


def merged() -> Iterator[tuple[Json, dict[str, str]]]:
    """Merge all examples of a base into one template, and tell whose each resource is."""
    bases = {id(example.base): example.base for example in EXAMPLES.values()}
    for base in bases.values():
        template = copy.deepcopy(base)
        owners: dict[str, str] = {}
        ours = [(name, e) for name, e in EXAMPLES.items() if e.base is base]
        for index, (name, example) in enumerate(ours):
            for logical_id, text in renamed(example, f"X{index}").items():
                template[logical_id] = text
                owners[logical_id] = name
        yield {"Resources": template}, owners


def renamed(example: Example, suffix: str) -> Json:
    """The changed resources of an example under other ids, which refer to each other."""
    failing = example.fails()
    ids = example.touched() & {*failing}
    text = json.dumps({logical_id: failing[logical_id] for logical_id in ids})
    for each in ids:
        text = text.replace(f'{{"Ref": "{each}"}}', f'{{"Ref": "{each}{suffix}"}}')
        text = text.replace(f'"Fn::GetAtt": ["{each}"', f'"Fn::GetAtt": ["{each}{suffix}"')
    return {f"{logical_id}{suffix}": each for logical_id, each in json.loads(text).items()}


def linted(template: Json) -> list[tuple[str, str]]:
    """Logical id and finding of everything that cfn-lint says to a template."""
    return [
        (
            str(match.path[1]) if len(match.path or ()) > 1 else "",
            f"{match.rule.id} {match.message}",
        )
        for match in findings_of(json.dumps(template), "us-west-2")
    ]


COMPARING = ("E3019", "E3060", "E3064")
"""Rules that compare resources, and find every copy of one in a merged template."""
COMPARED = ("endpoint-private-name-taken", "entry-twice", "addon-twice", "name-twice")
"""Rows that such a rule knows; for the rest see the slow test."""


def test_the_table_says_which_rows_cfn_lint_knows() -> None:
    found: dict[str, list[str]] = {}
    for template, owners in merged():
        for logical_id, finding in linted(template):
            if not finding.startswith(COMPARING):
                found.setdefault(owners.get(logical_id, "the base"), []).append(finding)
    alone = {name: {"Resources": EXAMPLES[name].fails()} for name in COMPARED}
    for name, bad in (alone | {name: bad for name, (bad, _) in TEMPLATES.items()}).items():
        found.setdefault(name, []).extend(finding for _, finding in linted(bad))

    assert {name for name in found if found[name]} == {
        row.id for row in TABLE if "cfn-lint" in row.known_to
    }


@pytest.mark.full
@pytest.mark.timeout(600)
def test_cfn_lint_takes_every_good_example_and_knows_no_other_row_alone() -> None:
    known = {
        name for name, example in EXAMPLES.items() if linted({"Resources": example.fails()})
    } | {name for name, (bad, _) in TEMPLATES.items() if linted(bad)}

    assert known == {row.id for row in TABLE if "cfn-lint" in row.known_to}
    assert [n for n, e in EXAMPLES.items() if linted({"Resources": e.passes()})] == []


def test_most_rows_are_news() -> None:
    assert len([row for row in TABLE if not row.known_to]) >= 60


# --- the published rule pack ---------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.timeout(600)
def test_rules_of_the_pack_were_seen_on_aws_and_agree(tmp_path: Path) -> None:
    """Each rule that a row names refuses the row's template and takes its counterpart."""
    judged = {row.id: row.judge for row in TABLE if row.judge and row.id in EXAMPLES}
    bad = {name: EXAMPLES[name].fails() for name in judged}
    good = {name: EXAMPLES[name].passes() for name in judged}

    against = pack_findings({**{f"{n}-bad": t for n, t in bad.items()},
                             **{f"{n}-good": t for n, t in good.items()}}, tmp_path)  # fmt: skip

    silent = {name for name, judge in judged.items() if judge not in against[f"{name}-bad"]}
    strict = {name for name, judge in judged.items() if judge in against[f"{name}-good"]}
    assert (silent, strict) == (set(), set())


def pack_findings(resources: dict[str, Json], folder: Path) -> dict[str, set[str]]:
    """Ids of the pack's rules that find something, for each template."""
    import aws_cdk as cdk
    from aws_cdk import cloudformation_include as include
    from cdk_preflight import Preflight

    app = cdk.App(outdir=str(folder / "out"))
    for name, template in resources.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps({"Resources": template}))
        region = EXAMPLES[name.rpartition("-")[0]].region
        env = cdk.Environment(account="111111111111", region=region)
        stack = cdk.Stack(app, name, env=env)
        include.CfnInclude(stack, "Template", template_file=str(path))
    Preflight.apply(app)
    with pytest.raises(RuntimeError):
        app.synth()
    report = json.loads((folder / "out" / "validation-report.json").read_text())
    found: dict[str, set[str]] = {name: set() for name in resources}
    for violation in [v for plugin in report["pluginReports"] for v in plugin["violations"]]:
        for construct in violation["violatingConstructs"]:
            stack_name = re.split("/", construct["constructPath"])[0]
            if stack_name in found:
                found[stack_name].add(violation["ruleName"])
    return found


def test_closure_brings_what_a_resource_refers_to() -> None:
    resources = {"A": resource("X", B=att("B", "Arn")), "B": resource("Y"), "C": resource("Z")}

    assert [*closure(resources, {"A"})] == ["A", "B"]
