"""Changes as the pinned CDK CLI judges them, across references, and what they do to our parts."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER

from jobs.deploy_check import changes
from jobs.deploy_check.assembly import REPOSITORY
from jobs.deploy_check.changes import REPLACING_PARTS, Change, Fate, compare
from jobs.deploy_check.meaning import (
    ENDS_WITH_IT,
    ENVIRONMENT,
    NAMED,
    REPLACES_MACHINES,
    STATEFUL,
)
from jobs.errors import Refusal
from tests.stacks.synthesis import deployment

Json = dict[str, Any]
STACK = "trainium-default-batch"
EVERYTHING = {
    "orchestrators": "both",
    "lustre_gib": 1200,
    "eks_admin_arns": "arn:aws:iam::111122223333:role/admin",
    "eks_endpoint_cidrs": "203.0.113.7/32",
}


def of(old: Json, new: Json) -> dict[str, Change]:
    """Changes of one stack, given its resources, by logical id."""
    update = compare({STACK: {"Resources": old}}, {STACK: {"Resources": new}})
    return {change.logical_id: change for change in update.changes}


def resource(kind: str, **properties: Any) -> Json:
    return {"Type": kind, "Properties": properties}


def nodes(size: int = 200, block: str = "a", **tags: str) -> Json:
    """A launch template, and what refers to its version and to its placement group."""
    version = {"Fn::GetAtt": ["Template", "LatestVersionNumber"]}
    data = {"Size": size, "Placement": {"GroupName": {"Ref": "Group"}}}
    return {
        "Group": resource("AWS::EC2::PlacementGroup", Strategy=block),
        "Template": resource(changes.LAUNCH_TEMPLATE, LaunchTemplateData=data, **tags),
        "Nodes": resource(ENVIRONMENT, ComputeResources={"LaunchTemplate": {"Version": version}}),
    }


def test_resources_come_go_and_change_their_type() -> None:
    vpc, subnet = resource("AWS::EC2::VPC"), resource("AWS::EC2::Subnet")
    found = of({"Old": vpc, "Other": vpc}, {"New": vpc, "Other": subnet})

    fates = {name: change.fate for name, change in found.items()}
    assert fates == {"Old": Fate.REMOVED, "New": Fate.ADDED, "Other": Fate.REPLACED}


def test_what_cloudformation_reads_alike_is_no_change() -> None:
    """The CLI sends small templates as YAML, which is read back as text."""
    old, new = ({"Kept": kept, "Changed": size} for kept, size in (("true", "5"), (True, 6)))
    found = of(
        {
            "Vpc": resource("AWS::EC2::VPC", EnableDnsSupport="true"),
            "E": resource("X::Y::Z", P=old),
        },
        {"Vpc": resource("AWS::EC2::VPC", EnableDnsSupport=True), "E": resource("X::Y::Z", P=new)},
    )

    assert {name: change.reasons for name, change in found.items()} == {"E": ("P.Changed",)}


def test_metadata_and_policies_of_a_template_change_no_resource() -> None:
    vpc = resource("AWS::EC2::VPC")
    metadata = {"CDKMetadata": resource("AWS::CDK::Metadata", Analytics="1")}

    assert of({"Vpc": vpc}, {"Vpc": {**vpc, "Metadata": {"a": "b"}}, **metadata}) == {}


def test_a_reference_to_another_resource_is_one_value() -> None:
    old, new = (resource("AWS::EC2::Subnet", VpcId={"Ref": name}) for name in ("A", "B"))

    assert of({"Subnet": old}, {"Subnet": new})["Subnet"].reasons == ("VpcId",)


def test_a_launch_template_that_changes_has_another_version() -> None:
    found = of(nodes(200), nodes(300))

    assert (found["Template"].fate, found["Nodes"].fate) == (Fate.UPDATED, Fate.UPDATED)
    assert found["Nodes"].reasons == ("ComputeResources.LaunchTemplate",)


def test_tags_of_a_launch_template_make_no_version() -> None:
    assert set(of(nodes(VersionDescription="a"), nodes(VersionDescription="b"))) == {"Template"}


def test_who_names_a_replaced_resource_gets_another_value() -> None:
    found = of(nodes(block="cluster"), nodes(block="partition"))

    assert found["Group"].fate is Fate.REPLACED
    assert found["Nodes"].reasons == ("ComputeResources.LaunchTemplate",)


def test_a_part_of_a_property_replaces_what_the_whole_does_not() -> None:
    def files(**lustre: Any) -> Json:
        return {"Files": resource("AWS::FSx::FileSystem", LustreConfiguration=lustre)}

    replaced = of(files(DeploymentType="SCRATCH_2"), files(DeploymentType="PERSISTENT_2"))
    updated = of(files(AutoImportPolicy="NEW"), files(AutoImportPolicy="NONE"))

    assert replaced["Files"].fate is Fate.REPLACED
    assert replaced["Files"].reasons == ("LustreConfiguration.DeploymentType",)
    assert updated["Files"].fate is Fate.UPDATED


@pytest.mark.parametrize("script", ["", "throw new TypeError('no such class')"])
def test_a_cli_that_does_not_answer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    path = tmp_path / "differences.cjs"
    path.write_text(script)
    monkeypatch.setattr(changes, "DIFFERENCES", path)

    with pytest.raises(Refusal, match="make setup") as refused:
        of({}, {})
    assert "no such class" in str(refused.value) or not script


# --- the tables, against the CLI's database, CloudFormation's registry and our templates ---------


@cache
def entities(kind: str) -> dict[str, Json]:
    """The CLI's database of resource types ("resource") or property types ("typeDefinition")."""
    path = REPOSITORY / "tools" / "cdk" / "node_modules" / "aws-cdk" / "db.json.gz"
    found = json.loads(gzip.decompress(path.read_bytes()))["schema"][kind]["entities"]
    return {item.get("cloudFormationType", item["$id"]): item for item in found}


def parts(kind: str, answers: set[str]) -> set[str]:
    """Parts of properties that replace a resource where the property as a whole does not."""
    types = entities("typeDefinition")

    def below() -> Iterator[str]:
        for name, known in entities("resource")[kind]["properties"].items():
            if known["type"]["type"] == "ref" and known.get("causesReplacement") != "yes":
                inner = types[known["type"]["reference"]["$ref"]]["properties"]
                for part, it in inner.items():
                    if it.get("causesReplacement") in answers:
                        yield f"{name}.{part}"

    return set(below())


@pytest.mark.parametrize("kind", sorted({*STATEFUL, *ENDS_WITH_IT} - {ENVIRONMENT}))
def test_parts_that_replace_what_holds_data_or_jobs_are_those_of_the_database(kind: str) -> None:
    known = {name for name in parts(kind, {"yes"}) if name.partition(".")[0] in used(kind)}

    assert known == REPLACING_PARTS.get(kind, set())


def used(kind: str) -> set[str]:
    """Properties of a type that our templates set."""
    return {
        name
        for template in deployment(**EVERYTHING).templates.values()
        for entry in template["Resources"].values()
        if entry["Type"] == kind
        for name in entry.get("Properties", {})
    }


def test_infrastructure_updates_are_what_would_replace_an_environment() -> None:
    """The user guide's list, and that of properties that replace it where it is not updated."""
    # Batch reads a change of this one too; CloudFormation replaces nothing for it.
    latest = {"ComputeResources.UpdateToLatestImageVersion"}

    assert parts(ENVIRONMENT, {"maybe"}) == REPLACES_MACHINES[ENVIRONMENT] - latest


def test_names_are_the_registrys_identifiers_of_what_our_templates_name() -> None:
    identifiers: dict[str, tuple[str, ...]] = {}
    for kind in {*NAMED, *STATEFUL} - {"AWS::EC2::Subnet"}:  # its addresses are no identifier
        schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-west-2", kind).schema
        names = tuple(pointer.rpartition("/")[2] for pointer in schema["primaryIdentifier"])
        if set(names) <= set(schema["properties"]) - read_only(schema):
            identifiers[kind] = names

    assert {**NAMED, **identifiers} == dict(NAMED)


def read_only(schema: Any) -> set[str]:
    return {pointer.rpartition("/")[2] for pointer in schema.get("readOnlyProperties", ())}


def test_the_registry_gives_an_environments_update_no_time_of_its_own() -> None:
    def update(kind: str) -> dict[str, object]:
        schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-west-2", kind).schema
        found: dict[str, object] = schema["handlers"]["update"]
        return found

    assert "timeoutInMinutes" not in update(ENVIRONMENT)
    # Where there is one, the registry's copy here has it: 36 hours, for nodes that drain.
    assert update("AWS::EKS::Nodegroup")["timeoutInMinutes"] == 2160
