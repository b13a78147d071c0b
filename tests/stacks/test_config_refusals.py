"""Every refusal names the value, the reason and what would work, in one line."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stacks.config import AppConfig, ConfigError, rules

TABLE: dict[str, list[dict[str, Any]]] = tomllib.loads(
    Path(__file__).with_name("refusals.toml").read_text(encoding="utf-8")
)
ROWS = [
    pytest.param(row, id=f"{group}-{index}")
    for group, rows in TABLE.items()
    for index, row in enumerate(rows)
]


def refusal_of(context: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        AppConfig.from_mapping(context)
    return str(caught.value)


@pytest.mark.parametrize("row", ROWS)
def test_a_refusal_names_the_value_the_reason_and_what_would_work(row: dict[str, Any]) -> None:
    message = refusal_of(row["context"])

    before, reason, after = message.partition(row["reason"])
    assert row["value"] in before, message
    assert reason, message
    assert row["remedy"] in after.partition("; ")[2], message


@pytest.mark.parametrize("row", ROWS)
def test_a_refusal_is_one_line(row: dict[str, Any]) -> None:
    message = refusal_of(row["context"])

    assert message.isprintable()


@pytest.mark.parametrize("check", rules.RULES, ids=lambda check: check.__name__)
def test_the_table_of_refusals_provokes_every_check(
    check: rules.Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = tuple(each for each in rules.RULES if each is not check)
    monkeypatch.setattr(rules, "RULES", others)

    assert any(not _is_refused_alike(row) for row in TABLE["combinations"])


def _is_refused_alike(row: dict[str, Any]) -> bool:
    """Tell whether the row is refused with its own message; otherwise a check is missing."""
    try:
        AppConfig.from_mapping(row["context"])
    except ConfigError as refusal:
        return row["reason"] in str(refusal)
    except Exception:
        return False
    return False


def test_a_changed_copy_is_checked_too() -> None:
    config = AppConfig.from_mapping({})

    with pytest.raises(ConfigError, match="is more than trainium:max_nodes=1"):
        replace(config, max_nodes=1, min_nodes=2)
