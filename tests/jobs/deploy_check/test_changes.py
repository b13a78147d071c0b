"""Changes according to the pinned CDK CLI, across references, and their effect on resources."""

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
from jobs.deploy_check.effects import (
    ENVIRONMENT,
    NAMED,
    REMOVAL_EFFECTS,
    REPLACES_INSTANCES,
    STATEFUL,
)
from jobs.errors import Refusal
from tests.stacks.synthesis import deployment

Json = dict[str, Any]
EVERYTHING = {
    "orchestrators": "both",
    "lustre_gib": 1200,
    "eks_admin_arns": "arn:aws:iam::111122223333:role/admin",
    "eks_endpoint_cidrs": "203.0.113.7/32",
}


def resource(kind: str, **properties: Any) -> Json:
    return {"Type": kind, "Properties": properties}


def nodes(size: int = 200, block: str = "a", **tags: str) -> Json:
    """A launch template, and references to its version and placement group."""
    version = {"Fn::GetAtt": ["Template", "LatestVersionNumber"]}
    data = {"Size": size, "Placement": {"GroupName": {"Ref": "Group"}}}
    return {
        "Group": resource("AWS::EC2::PlacementGroup", Strategy=block),
        "Template": resource(changes.LAUNCH_TEMPLATE, LaunchTemplateData=data, **tags),
        "Nodes": resource(ENVIRONMENT, ComputeResources={"LaunchTemplate": {"Version": version}}),
    }


def lustre(**configuration: Any) -> Json:
    return {"Files": resource("AWS::FSx::FileSystem", LustreConfiguration=configuration)}


VPC, SUBNET = resource("AWS::EC2::VPC"), resource("AWS::EC2::Subnet")
CASES: dict[str, tuple[Json, Json]] = {
    "types": ({"Old": VPC, "Other": VPC}, {"New": VPC, "Other": SUBNET}),
    "read-back": (
        {
            "Vpc": resource("AWS::EC2::VPC", EnableDnsSupport="true"),
            "E": resource("X::Y::Z", P={"Kept": "true", "Changed": "5"}),
        },
        {
            "Vpc": resource("AWS::EC2::VPC", EnableDnsSupport=True),
            "E": resource("X::Y::Z", P={"Kept": True, "Changed": 6}),
        },
    ),
    "metadata": (
        {"Vpc": VPC},
        {
            "Vpc": {**VPC, "Metadata": {"a": "b"}},
            "CDKMetadata": resource("AWS::CDK::Metadata", Analytics="1"),
        },
    ),
    "reference": (
        {"Subnet": resource("AWS::EC2::Subnet", VpcId={"Ref": "A"})},
        {"Subnet": resource("AWS::EC2::Subnet", VpcId={"Ref": "B"})},
    ),
    "launch-template": (nodes(200), nodes(300)),
    "launch-template-tags": (nodes(VersionDescription="a"), nodes(VersionDescription="b")),
    "placement-group": (nodes(block="cluster"), nodes(block="partition")),
    "replacing-part": (lustre(DeploymentType="SCRATCH_2"), lustre(DeploymentType="PERSISTENT_2")),
    "updating-part": (lustre(AutoImportPolicy="NEW"), lustre(AutoImportPolicy="NONE")),
}
"""Resources of a stack before and after."""


Found = dict[str, dict[str, Change]]


@pytest.fixture(scope="module")
def found() -> Found:
    """Changes of all stacks by logical id, from one comparison: the CLI takes a second to start."""
    old, new = (
        {name: {"Resources": pair[side]} for name, pair in CASES.items()} for side in (0, 1)
    )
    update = compare(old, new)
    return {
        name: {change.logical_id: change for change in update.changes if change.stack == name}
        for name in CASES
    }


def test_changes_are_created_removed_and_replaced_resources(found: Found) -> None:
    fates = {name: change.fate for name, change in found["types"].items()}
    assert fates == {"Old": Fate.REMOVED, "New": Fate.ADDED, "Other": Fate.REPLACED}


def test_equivalent_templates_have_no_changes(found: Found) -> None:
    """The CLI sends small templates as YAML, which is read back as text."""
    reasons = {name: change.reasons for name, change in found["read-back"].items()}
    assert reasons == {"E": ("P.Changed",)}


def test_template_metadata_and_policies_change_no_resource(found: Found) -> None:
    assert found["metadata"] == {}


def test_reference_is_compared_as_single_value(found: Found) -> None:
    assert found["reference"]["Subnet"].reasons == ("VpcId",)


def test_changed_launch_template_has_new_version(found: Found) -> None:
    changed = found["launch-template"]

    assert (changed["Template"].fate, changed["Nodes"].fate) == (Fate.UPDATED, Fate.UPDATED)
    assert changed["Nodes"].reasons == ("ComputeResources.LaunchTemplate",)


def test_launch_template_tags_create_no_version(found: Found) -> None:
    assert set(found["launch-template-tags"]) == {"Template"}


def test_reference_to_replaced_resource_changes(found: Found) -> None:
    changed = found["placement-group"]

    assert changed["Group"].fate is Fate.REPLACED
    assert changed["Nodes"].reasons == ("ComputeResources.LaunchTemplate",)


def test_nested_property_replaces_resource_though_whole_property_does_not(found: Found) -> None:
    replaced, updated = found["replacing-part"]["Files"], found["updating-part"]["Files"]

    assert replaced.fate is Fate.REPLACED
    assert replaced.reasons == ("LustreConfiguration.DeploymentType",)
    assert updated.fate is Fate.UPDATED


def test_failed_cli_is_refused_with_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "differences.cjs"
    path.write_text("throw new TypeError('no such class')")
    monkeypatch.setattr(changes, "DIFFERENCES", path)

    with pytest.raises(Refusal, match=r"no such class.*make setup"):
        compare({}, {})


# --- the tables, against the CLI's database, CloudFormation's registry and our templates ---------


@cache
def entities(kind: str) -> dict[str, Json]:
    """Return the CLI's resource types ("resource") or property types ("typeDefinition")."""
    path = REPOSITORY / "tools" / "cdk" / "node_modules" / "aws-cdk" / "db.json.gz"
    found = json.loads(gzip.decompress(path.read_bytes()))["schema"][kind]["entities"]
    return {item.get("cloudFormationType", item["$id"]): item for item in found}


def parts(kind: str, answers: set[str]) -> set[str]:
    """Return nested properties that replace a resource though the whole property does not."""
    types = entities("typeDefinition")

    def below() -> Iterator[str]:
        for name, known in entities("resource")[kind]["properties"].items():
            if known["type"]["type"] == "ref" and known.get("causesReplacement") != "yes":
                inner = types[known["type"]["reference"]["$ref"]]["properties"]
                for part, it in inner.items():
                    if it.get("causesReplacement") in answers:
                        yield f"{name}.{part}"

    return set(below())


@pytest.mark.parametrize("kind", sorted({*STATEFUL, *REMOVAL_EFFECTS} - {ENVIRONMENT}))
def test_replacing_parts_match_cdk_database(kind: str) -> None:
    known = {name for name in parts(kind, {"yes"}) if name.partition(".")[0] in used(kind)}

    assert known == REPLACING_PARTS.get(kind, set())


def used(kind: str) -> set[str]:
    """Return the properties of a type that our templates set."""
    return {
        name
        for template in deployment(**EVERYTHING).templates.values()
        for entry in template["Resources"].values()
        if entry["Type"] == kind
        for name in entry.get("Properties", {})
    }


def test_infrastructure_updates_match_cdk_database() -> None:
    """The user guide's list, and the properties that replace an environment if not updated."""
    # Batch also acts on this property; CloudFormation replaces nothing for it.
    latest = {"ComputeResources.UpdateToLatestImageVersion"}

    assert parts(ENVIRONMENT, {"maybe"}) == REPLACES_INSTANCES[ENVIRONMENT] - latest


def test_names_are_registry_identifiers_of_named_resources() -> None:
    identifiers: dict[str, tuple[str, ...]] = {}
    for kind in {*NAMED, *STATEFUL} - {"AWS::EC2::Subnet"}:  # its addresses are not an identifier
        schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-west-2", kind).schema
        names = tuple(pointer.rpartition("/")[2] for pointer in schema["primaryIdentifier"])
        if set(names) <= set(schema["properties"]) - read_only(schema):
            identifiers[kind] = names

    assert {**NAMED, **identifiers} == dict(NAMED)


def read_only(schema: Any) -> set[str]:
    return {pointer.rpartition("/")[2] for pointer in schema.get("readOnlyProperties", ())}


def test_registry_has_no_timeout_for_environment_update() -> None:
    def update(kind: str) -> dict[str, object]:
        schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-west-2", kind).schema
        found: dict[str, object] = schema["handlers"]["update"]
        return found

    assert "timeoutInMinutes" not in update(ENVIRONMENT)
    # If a type has one, the registry's copy contains it: 36 hours, for draining nodes.
    assert update("AWS::EKS::Nodegroup")["timeoutInMinutes"] == 2160
