"""The form of every refusal: value, reason and remedy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TypeAlias

PREFIX = "trainium:"
"""Prefix of this app's context keys."""

_SHOWN_CHARACTERS = 80

Refusals: TypeAlias = Iterator[tuple[str, str, str]]
"""Key, reason and remedy of each refusal of a configuration."""


class InvalidValue(ValueError):
    """An invalid value; ``Key.read`` adds the key and raises a ``ConfigError``."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy


class ConfigError(ValueError):
    """A refused configuration, explained in one line."""

    def __init__(self, key: str, value: object, reason: str, remedy: str) -> None:
        super().__init__(f"{format_value(key)}={format_value(value)} {reason}; {remedy}")


def setting(key: str, value: object) -> str:
    """Format ``trainium:key=value`` as a user would type it after ``-c``."""
    return f"{PREFIX}{key}={format_value(value)}"


def format_value(value: object) -> str:
    """Format a value in one short line; quote ambiguous text."""
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, str) for item in value):
        value = ",".join(value)  # as typed after -c
    if isinstance(value, str) and value.isascii() and value.isprintable() and value.strip():
        text = value
    else:
        text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
