"""cdk.json agrees with the code, and every key has an explanation."""

from __future__ import annotations

import json
from pathlib import Path

from stacks.config import AppConfig

ROOT = Path(__file__).parents[2]
CDK_JSON = json.loads((ROOT / "cdk.json").read_text(encoding="utf-8"))


def test_cdk_json_matches_code_defaults() -> None:
    assert AppConfig.from_mapping(CDK_JSON["context"]) == AppConfig.from_mapping({})


def test_cdk_json_forbids_look_ups() -> None:
    # A lookup would need an account, and synthesis must not need one.
    assert CDK_JSON["lookups"] is False
