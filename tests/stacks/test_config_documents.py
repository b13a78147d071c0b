"""cdk.json agrees with the code, and every key has an explanation."""

from __future__ import annotations

import json
from pathlib import Path

from stacks.config import AppConfig
from stacks.config.keys import keys_of

ROOT = Path(__file__).parents[2]
CDK_JSON = json.loads((ROOT / "cdk.json").read_text(encoding="utf-8"))


def test_every_key_explains_itself() -> None:
    assert all(key.help and "|" not in key.help for key in keys_of(AppConfig).values())


def test_cdk_json_states_the_defaults_of_the_code() -> None:
    assert AppConfig.from_mapping(CDK_JSON["context"]) == AppConfig.from_mapping({})


def test_cdk_json_forbids_look_ups() -> None:
    # A look-up would need an account, and synthesis must not need one.
    assert CDK_JSON["lookups"] is False


def test_stacks_refer_to_each_other_by_exports() -> None:
    # "weak", the recommended value, uses a custom resource.
    assert CDK_JSON["context"]["@aws-cdk/core:defaultCrossStackReferences"] == "strong"


def test_no_custom_resource_touches_the_default_security_group() -> None:
    assert CDK_JSON["context"]["@aws-cdk/aws-ec2:restrictDefaultSecurityGroup"] is False
