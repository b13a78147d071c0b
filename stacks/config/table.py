"""The table of context keys in docs/context.md: ``python -m stacks.config.table`` prints it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import StrEnum

from stacks.config.app_config import AppConfig
from stacks.config.keys import Derived, keys_of
from stacks.config.refusal import PREFIX

_INTRODUCTION = f"""\
# Context keys

Every key can stand in `cdk.json` (typed JSON) and be overridden with `-c`, for example
`cdk deploy --all -c {PREFIX}max_nodes=8`.
A list is given as `a,b` or as a JSON list.
This file is the output of `python -m stacks.config.table`; a test compares it with the code.
"""


def context_document() -> str:
    """Render docs/context.md."""
    return _INTRODUCTION + "\n" + "\n".join(_rows()) + "\n"


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
        case tuple():
            return f"`{','.join(map(str, value))}`"
        case StrEnum():
            return f"`{value.value}`"
        case str():
            return f"`{value}`"
        case _:
            return str(value)


if __name__ == "__main__":
    sys.stdout.write(context_document())
