"""Any context gives either a configuration or a refusal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stacks.config import AppConfig, ConfigError
from stacks.config.keys import keys_of
from tests.stacks.test_config_refusals import TABLE

# On a busy laptop with two workers, a slow example is not a failure.
unhurried = settings(deadline=None)

KEYS = sorted(keys_of(AppConfig))

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
# Text that passes the first checks more often than arbitrary text.
NEARLY = st.from_regex(
    r"(\[.*|-?\d+|\d+\.\d+\.\d+\.\d+/\d+|[a-z]{2,6}-[0-9a-f]{8}|[a-z0-9-]{1,12}|[a-z./:@-]{1,20})",
    fullmatch=True,
)
NAMES = st.sampled_from([f"trainium:{key}" for key in KEYS]) | st.text() | st.sampled_from(KEYS)


def outcome(context: dict[str, Any]) -> AppConfig | str:
    try:
        return AppConfig.from_mapping(context)
    except ConfigError as refusal:
        return str(refusal)


def as_typed_after_c(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@unhurried
@given(st.dictionaries(NAMES, JSON | NEARLY, max_size=5))
def test_any_mapping_is_configured_or_refused(context: dict[str, Any]) -> None:
    try:
        config = AppConfig.from_mapping(context)
    except ConfigError as refusal:
        assert str(refusal).isprintable()
    else:
        assert config.warnings is not None


@pytest.mark.parametrize("group", sorted(TABLE.keys() - {"types"}))
def test_values_equal_their_text(group: str) -> None:
    """A key of cdk.json has a type, and one after -c is text."""
    for row in TABLE[group]:
        text = {key: as_typed_after_c(value) for key, value in row["context"].items()}

        assert outcome(text) == outcome(row["context"])


def test_defaults_equal_their_text() -> None:
    config = AppConfig.from_mapping({})
    values = {key: getattr(config, key) for key in KEYS}

    assert config == outcome(
        {
            f"trainium:{key}": as_typed_after_c(value)
            for key, value in values.items()
            if value is not None
        }
    )
