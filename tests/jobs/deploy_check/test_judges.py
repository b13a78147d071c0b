"""The CLI's database, CloudFormation's registry and Batch's user guide agree on our templates."""

from __future__ import annotations

from pathlib import Path

import pytest
from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER

from jobs.deploy_check.assembly import read_assembly
from jobs.deploy_check.changes import Fate, Update
from jobs.deploy_check.effects import INFRASTRUCTURE
from jobs.deploy_check.replacements import Certainty, Replacements, read_replacements
from jobs.errors import Refusal
from tests.stacks.synthesis import deployment

EVERYTHING = {
    "orchestrators": "both",
    "lustre_gib": 1200,
    "eks_admin_arns": "arn:aws:iam::111122223333:role/admin",
    "eks_endpoint_cidrs": "203.0.113.7/32",
}
NOT_IN_THE_DATABASE = {
    # A scaling update (AWS Batch User Guide, scaling-updates.html), whatever the registry says.
    ("AWS::Batch::ComputeEnvironment", ("ComputeResources", "ScalingPolicy")),
    # Newer than the database; no template here has it.
    ("AWS::Lambda::Function", ("DurableConfig",)),
}


def types() -> list[str]:
    """What our templates are made of, custom resources aside."""
    templates = deployment(**EVERYTHING).templates.values()
    found = {entry["Type"] for template in templates for entry in template["Resources"].values()}
    return sorted(kind for kind in found if kind.startswith("AWS::") and "CDK" not in kind)


def pointers(kind: str, key: str) -> set[tuple[str, ...]]:
    """A list of property paths of CloudFormation's registry."""
    schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-west-2", kind).schema
    return {tuple(pointer.split("/")[2:]) for pointer in schema.get(key) or ()}


def test_what_the_registry_calls_create_only_is_replaced(replacements: Replacements) -> None:
    missed = {
        (kind, path)
        for kind in types()
        for path in pointers(kind, "createOnlyProperties")
        if replacements.of(kind, path) is not Certainty.YES
    }

    assert missed == set()


def test_what_the_registry_calls_conditional_may_be_replaced(replacements: Replacements) -> None:
    missed = {
        (kind, path)
        for kind in types()
        for path in pointers(kind, "conditionalCreateOnlyProperties")
        if replacements.of(kind, path) is Certainty.NO
    }

    assert missed <= NOT_IN_THE_DATABASE


def test_infrastructure_updates_are_what_would_replace_an_environment(
    replacements: Replacements,
) -> None:
    """The user guide's list, and that of properties that replace it where it is not updated."""
    conditional = replacements.conditional("AWS::Batch::ComputeEnvironment")
    settings = {path[1] for path in conditional if path[0] == "ComputeResources"}

    # Batch reads a change of this one too; CloudFormation replaces nothing for it.
    assert settings == INFRASTRUCTURE - {"UpdateToLatestImageVersion"}


def test_the_registry_gives_an_environments_update_no_time_of_its_own() -> None:
    def update(kind: str) -> dict[str, object]:
        schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-west-2", kind).schema
        found: dict[str, object] = schema["handlers"]["update"]
        return found

    assert "timeoutInMinutes" not in update("AWS::Batch::ComputeEnvironment")
    # Where there is one, the registry's copy here has it: 36 hours, for nodes that drain.
    assert update("AWS::EKS::Nodegroup")["timeoutInMinutes"] == 2160


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        (("SubnetIds",), Certainty.YES),
        (("LustreConfiguration", "DeploymentType"), Certainty.YES),
        (("LustreConfiguration",), Certainty.MAYBE),
        (("StorageCapacity",), Certainty.NO),
        (("Unheard", "Of"), Certainty.NO),
    ],
)
def test_a_path_is_judged_by_what_is_on_it_and_below(
    replacements: Replacements, path: tuple[str, ...], answer: Certainty
) -> None:
    assert replacements.of("AWS::FSx::FileSystem", path) is answer


def test_a_type_that_the_database_lacks_is_not_judged(replacements: Replacements) -> None:
    assert replacements.of("Custom::Anything", ("X",)) is Certainty.NO


@pytest.mark.parametrize("content", [None, b"no gzip"])
def test_a_database_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "db.json.gz"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(Refusal, match="make setup"):
        read_replacements(path)


@pytest.mark.parametrize(
    ("change", "replaced"),
    [
        ({"lustre_gib": 0}, set()),
        ({"availability_zone_id": "usw2-az1"}, {"AWS::EKS::Nodegroup"}),
    ],
    ids=["no file system", "another zone"],
)
def test_a_part_of_ours_goes_or_moves_without_a_refusal(
    replacements: Replacements, change: dict[str, object], replaced: set[str]
) -> None:
    old = deployment(**EVERYTHING)
    planned = read_assembly(
        deployment(**{**EVERYTHING, **change}).folder, deployment="default", region=None
    )
    deployed = {old.config.stack_name(part): each for part, each in old.templates.items()}
    update = Update(deployed, planned.templates, replacements)
    locked = [
        export.name
        for export in update.exports()
        if export.still_imported or not planned.before[export.stack] >= set(export.importers)
    ]

    assert locked == []
    assert {c.resource_type for c in update.changes() if c.fate is Fate.REPLACED} == replaced
