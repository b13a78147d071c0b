"""Every refusal names the value, the reason and what would work, in one line."""

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


def _is_rule(node: ast.AST) -> TypeGuard[ast.Expr]:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield)


RULES = [
    pytest.param(subject, node.lineno, id=f"{subject.__name__.rpartition('.')[2]}-{node.lineno}")
    for subject in rules.SUBJECTS
    for node in ast.walk(ast.parse(inspect.getsource(subject)))
    if _is_rule(node)
]


@pytest.mark.parametrize("subject, line", RULES)
def test_the_table_of_refusals_provokes_every_rule(
    subject: ModuleType, line: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = ast.parse(inspect.getsource(subject))
    for node in ast.walk(without):
        if _is_rule(node) and node.lineno == line:
            node.value = ast.YieldFrom(ast.Tuple([], ast.Load()))
    changed: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(without), str(subject.__file__), "exec"), changed)
    monkeypatch.setattr(subject, "refusals", changed["refusals"])

    assert any(not _is_refused_alike(row) for row in TABLE["combinations"])


def _is_refused_alike(row: dict[str, Any]) -> bool:
    """Tell whether the row is refused with its own message; otherwise a rule is missing."""
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
