"""The table of context keys, for the pages."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from stacks.config.app_config import AppConfig
from stacks.config.keys import Derived, keys_of
from stacks.config.refusal import PREFIX


def context_table() -> str:
    """Render the table in Markdown."""
    return "\n".join(_rows())


def _rows() -> Iterator[str]:
    yield _row("key", "type", "default", "what it does")
    yield _row("---", "---", "---", "---")
    for name, key in keys_of(AppConfig).items():
        default = key.default.text if isinstance(key.default, Derived) else _default(key.default)
        yield _row(f"`{PREFIX}{name}`", key.kind.noun, default, key.help)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _default(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case ():
            return "none"
        case tuple():
            return f"`{','.join(map(str, value))}`"
        case StrEnum():
            return f"`{value.value}`"
        case str():
            return f"`{value}`"
        case _:
            return str(value)
