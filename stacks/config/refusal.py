"""The one shape of a refusal: the value, the reason, and what would work."""

from __future__ import annotations

import json

PREFIX = "trainium:"
"""Every context key of this app begins with it."""

_SHOWN_CHARACTERS = 80


class Unfit(ValueError):
    """A value that cannot be used; whoever knows its key makes a ``ConfigError`` of it."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy


class ConfigError(ValueError):
    """A configuration that is refused, in one line for the person who wrote it."""

    def __init__(self, key: str, value: object, reason: str, remedy: str) -> None:
        super().__init__(f"{spell(key)}={spell(value)} {reason}; {remedy}")


def refuse(config: object, key: str, reason: str, remedy: str) -> ConfigError:
    """Refuse the value that ``config`` has for ``key``."""
    return ConfigError(PREFIX + key, getattr(config, key), reason, remedy)


def setting(key: str, value: object) -> str:
    """``trainium:key=value``, as a user would type it after ``-c``."""
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
