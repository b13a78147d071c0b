"""Nothing else changed: one snapshot for every stack and family."""

from __future__ import annotations

import re
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.json import JSONSnapshotExtension

from tests.stacks.cluster_objects import with_cluster
from tests.stacks.synthesis import deployment

FAMILIES = {
    "trn1": {"instance_type": "trn1.32xlarge", "region": "us-west-2"},
    "trn1n": {"instance_type": "trn1n.32xlarge", "region": "us-west-2"},
    "trn2": {"instance_type": "trn2.48xlarge", "region": "us-east-2"},
}

ON_BATCH = ("network", "storage", "lustre", "image", "data", "batch")
CASES = [
    *((family, part) for family in FAMILIES for part in ON_BATCH),
    *(("eks", part) for part in ("lustre", "eks")),
]

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


@pytest.mark.parametrize(("family", "part"), CASES)
def test_template_is_as_before(family: str, part: str, snapshot: SnapshotAssertion) -> None:
    made = deployment(**FAMILIES[family]) if family in FAMILIES else with_cluster()

    assert stable(made.templates[part]) == snapshot(extension_class=JSONSnapshotExtension)
