"""Nothing else changed: a snapshot for every stack, and how the other families differ."""

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
ON_BATCH = ("network", "storage", "lustre", "image", "data", "batch")

_HASH = re.compile(r"\b[0-9a-f]{64}\b")


def stable(value: Any) -> Any:
    """Mask what every edit of the training code changes; show user data line by line."""
    match value:
        case {"Fn::Base64": str(text)}:
            return {"Fn::Base64": text.splitlines()}
        case dict():
            return {key: stable(item) for key, item in value.items()}
        case list():
            return [stable(item) for item in value]
        case str():
            return _HASH.sub("<hash of sources>", value)
    return value


def of_family(family: str, part: str) -> Any:
    return stable(deployment(**FAMILIES[family]).templates[part])


@pytest.mark.parametrize("part", ON_BATCH)
def test_template_is_as_before(part: str, snapshot: SnapshotAssertion) -> None:
    assert of_family(BASE, part) == snapshot(extension_class=JSONSnapshotExtension)


@pytest.mark.parametrize("part", ["lustre", "eks"])
def test_template_for_eks_is_as_before(part: str, snapshot: SnapshotAssertion) -> None:
    made = stable(with_cluster().templates[part])

    assert made == snapshot(extension_class=JSONSnapshotExtension)


@pytest.mark.parametrize("part", ON_BATCH)
@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {BASE}))
def test_template_of_another_family_differs_as_before(
    family: str, part: str, snapshot: SnapshotAssertion
) -> None:
    base, other = (
        json.dumps(of_family(name, part), indent=2, sort_keys=True).splitlines()
        for name in (BASE, family)
    )
    # Without the numbers of lines, which change with the base.
    diff = [
        line.strip() if line[0] != "@" else "@@"
        for line in difflib.unified_diff(base, other, n=0, lineterm="")
    ]

    assert diff[2:] == snapshot(extension_class=JSONSnapshotExtension)
