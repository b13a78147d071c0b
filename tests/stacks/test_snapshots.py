"""A snapshot for every stack, and the differences of the other families."""

from __future__ import annotations

import difflib
import json
import re
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.json import JSONSnapshotExtension

from tests.stacks.cluster_objects import with_cluster
from tests.stacks.synthesis import deployment

BASE = "trn1"
FAMILIES = {
    BASE: {"instance_type": "trn1.32xlarge", "region": "us-west-2"},
    "trn1n": {"instance_type": "trn1n.32xlarge", "region": "us-west-2"},
    "trn2": {"instance_type": "trn2.48xlarge", "region": "us-east-2"},
}
OF_WORKLOADS = (
    "AWS::Batch::JobDefinition",
    "AWS::EKS::PodIdentityAssociation",
    "AWS::IAM::Policy",
    "AWS::IAM::Role",
)
ON_BATCH = ("network", "storage", "lustre", "image", "data", "batch")

_HASH = re.compile(r"\b[0-9a-f]{64}\b")


def stable(value: Any) -> Any:
    """Mask values that change with every edit of the training code; show user data line by line.

    Intrinsic functions take their short form, as in YAML.
    """
    match value:
        case {"Fn::Base64": encoded}:
            text = stable(encoded)
            return {"Fn::Base64": text.splitlines() if isinstance(text, str) else text}
        case {"Ref": str(name)}:
            return f"!Ref {name}"
        case {"Fn::GetAtt": [str(name), str(attribute)]}:
            return f"!GetAtt {name}.{attribute}"
        case {"Fn::ImportValue": str(name)}:
            return f"!ImportValue {name}"
        case {"Fn::Sub": str(text)}:
            return stable(f"!Sub {text}")
        case {"Fn::Join": ["", list(items)]}:
            parts = [
                part if isinstance(item, str) else "${" + part.removeprefix("!Ref ") + "}"
                for item in items
                if isinstance(part := stable(item), str)
            ]
            return "".join(["!Sub ", *parts]) if len(parts) == len(items) else _each(value)
        case str():
            return _HASH.sub("<hash of sources>", value)
    return _each(value)


def _each(value: Any) -> Any:
    match value:
        case dict():
            return {key: stable(item) for key, item in value.items()}
        case list():
            return [stable(item) for item in value]
    return value


def lines(value: Any) -> list[str]:
    return json.dumps(value, indent=2, sort_keys=True).splitlines()


def difference(base: Any, other: Any) -> list[str]:
    """Show the differences, without line numbers, which change with the base."""
    diff = difflib.unified_diff(lines(base), lines(other), n=0, lineterm="")
    return [line.strip() if line[0] != "@" else "@@" for line in diff][2:]


def of_family(family: str, part: str) -> Any:
    return brief(stable(deployment(**FAMILIES[family]).templates[part]))


def brief(template: dict[str, Any]) -> dict[str, Any]:
    """Show the first resource of a type that each workload has in full.

    Of the others, show the differences from the one before, if that is shorter.
    """
    before: dict[str, Any] = {}
    for name, resource in template["Resources"].items():
        kind = resource["Type"]
        if kind in OF_WORKLOADS:
            changes = difference(before.get(kind, {}), resource)
            if len(changes) < len(lines(resource)):
                template["Resources"][name] = changes
            before[kind] = resource
    return template


@pytest.mark.parametrize("part", ON_BATCH)
def test_template_is_as_before(part: str, snapshot: SnapshotAssertion) -> None:
    assert of_family(BASE, part) == snapshot(extension_class=JSONSnapshotExtension)


@pytest.mark.parametrize("part", ["lustre", "eks"])
def test_template_for_eks_is_as_before(part: str, snapshot: SnapshotAssertion) -> None:
    made = brief(stable(with_cluster().templates[part]))

    assert made == snapshot(extension_class=JSONSnapshotExtension)


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {BASE}))
def test_templates_of_another_family_differ_as_before(
    family: str, snapshot: SnapshotAssertion
) -> None:
    differences = {
        part: difference(of_family(BASE, part), of_family(family, part)) for part in ON_BATCH
    }

    assert differences == snapshot(extension_class=JSONSnapshotExtension)
