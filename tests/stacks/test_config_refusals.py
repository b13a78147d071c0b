"""Every refusal names the value, the reason and the remedy in one line."""

from __future__ import annotations

import ast
import inspect
import tomllib
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

import pytest

from stacks.config import AppConfig, ConfigError, rules
from stacks.config.keys import keys_of
from stacks.config.refusal import PREFIX

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
def test_refusal_is_one_line_with_value_reason_and_remedy(row: dict[str, Any]) -> None:
    message = refusal_of(row["context"])
    assert message.isprintable()

    before, reason, after = message.partition(row["reason"])
    assert row["value"] in before, message
    assert reason, message
    assert row["remedy"] in after.partition("; ")[2], message


def test_refusal_table_has_a_row_for_every_key() -> None:
    messages = [refusal_of(row["context"]) for rows in TABLE.values() for row in rows]
    refused = {message.partition("=")[0] for message in messages}

    assert {f"{PREFIX}{name}" for name in keys_of(AppConfig)} - refused == set()


def _is_rule(node: ast.AST) -> TypeGuard[ast.Expr]:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield)


RULES = [
    pytest.param(subject, node.lineno, id=f"{subject.__name__.rpartition('.')[2]}-{node.lineno}")
    for subject in rules.SUBJECTS
    for node in ast.walk(ast.parse(inspect.getsource(subject)))
    if _is_rule(node)
]


@pytest.mark.parametrize("subject, line", RULES)
def test_refusal_table_covers_every_rule(
    subject: ModuleType, line: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = ast.parse(inspect.getsource(subject))
    for node in ast.walk(without):
        if _is_rule(node) and node.lineno == line:
            node.value = ast.YieldFrom(ast.Tuple([], ast.Load()))
    changed: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(without), str(subject.__file__), "exec"), changed)
    monkeypatch.setattr(subject, "refusals", changed["refusals"])

    assert any(not _is_refused_with_message(row) for row in TABLE["combinations"])


def _is_refused_with_message(row: dict[str, Any]) -> bool:
    """Return whether the row is refused with its own message; otherwise a rule is missing."""
    try:
        AppConfig.from_mapping(row["context"])
    except ConfigError as refusal:
        return row["reason"] in str(refusal)
    except Exception:
        return False
    return False


def test_changed_copy_is_checked_too() -> None:
    config = AppConfig.from_mapping({})

    with pytest.raises(ConfigError, match="is more than trainium:max_nodes=1"):
        replace(config, max_nodes=1, min_nodes=2)
