"""The form of every refusal: the value, the reason, and what would work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TypeAlias

PREFIX = "trainium:"
"""Prefix of this app's context keys."""

_SHOWN_CHARACTERS = 80

Refusals: TypeAlias = Iterator[tuple[str, str, str]]
"""Key, reason and remedy of each refusal of a configuration."""


class Unfit(ValueError):
    """An unusable value; the caller, who knows its key, turns it into a ``ConfigError``."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy


class ConfigError(ValueError):
    """A refused configuration, explained to its author in one line."""

    def __init__(self, key: str, value: object, reason: str, remedy: str) -> None:
        super().__init__(f"{spell(key)}={spell(value)} {reason}; {remedy}")


def setting(key: str, value: object) -> str:
    """Format ``trainium:key=value`` as a user would type it after ``-c``."""
    return f"{PREFIX}{key}={spell(value)}"


def spell(value: object) -> str:
    """Render a value in one short line; text that would be ambiguous is quoted."""
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, str) for item in value):
        value = ",".join(value)  # as it is typed after -c
    if isinstance(value, str) and value.isascii() and value.isprintable() and value.strip():
        text = value
    else:
        text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
