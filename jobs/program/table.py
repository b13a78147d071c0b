"""Typed access to tables of a TOML file, with refusals."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.errors import Refusal
from trainium_catalogue.suggest import did_you_mean

CODE = "workload-file"
"""Code of all refusals of a workload.toml."""


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a file; refuse one that is not TOML."""
    import tomllib  # imported here to keep other commands fast

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Refusal(
            CODE, f"{path} cannot be read: {error.strerror or error}; fix its permissions"
        ) from None
    except UnicodeDecodeError:
        raise Refusal(CODE, f"{path} is not UTF-8; save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        reason = str(error)
        raise Refusal(
            CODE, f"{path} is not valid TOML: {reason[:1].lower()}{reason[1:]}; fix that line"
        ) from None


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the file; a value that does not have the expected type is refused."""

    path: Path
    prefix: str
    values: Mapping[str, Any]

    def invalid(self, key: str, value: object, reason: str, remedy: str) -> Refusal:
        """Build the refusal of a value, or of a key without one."""
        what = "" if value is None else f" = {shown(value)}"
        return Refusal(CODE, f"{self.path}: {self.prefix}{key}{what}: {reason}; {remedy}")

    def check_keys(self, known: Collection[str]) -> None:
        """Refuse unknown keys."""
        for key, value in self.values.items():
            if key not in known:
                raise self.invalid(
                    key,
                    None if isinstance(value, dict) else value,
                    "unknown key",
                    did_you_mean(key, known),
                )

    def text(self, key: str) -> str | None:
        """Read a string; None if it is missing."""
        value = self.values.get(key)
        if value is None or (isinstance(value, str) and value):
            return value
        raise self.invalid(key, value, "it must be a non-empty string", f'write {key} = "..."')

    def flag(self, key: str, *, default: bool) -> bool:
        """Read a boolean."""
        value = self.values.get(key, default)
        if isinstance(value, bool):
            return value
        raise self.invalid(
            key, value, "it must be a boolean", "write true or false, without quotes"
        )

    def words(self, key: str) -> tuple[str, ...]:
        """Read a list of strings."""
        value = self.values.get(key, [])
        if isinstance(value, list) and all(isinstance(item, str) and item for item in value):
            return tuple(value)
        raise self.invalid(
            key, value, "it must be a list of strings", f'write {key} = ["...", "..."]'
        )

    def one_of(self, key: str, known: Mapping[str, str], default: str) -> str:
        """Read a string that must be one of ``known``."""
        value = self.values.get(key, default)
        if isinstance(value, str) and value in known:
            return value
        choice = ", ".join(f'"{name}" ({what})' for name, what in known.items())
        raise self.invalid(key, value, "unknown value", f"choose {choice}")

    def integer(self, key: str, default: int, *, minimum: int) -> int:
        """Read an integer."""
        value = self.values.get(key, default)
        if isinstance(value, int) and not isinstance(value, bool) and value >= minimum:
            return value
        raise self.invalid(
            key, value, f"it must be an integer of at least {minimum}", f"write {key} = {minimum}"
        )

    def number(self, key: str, default: float, *, minimum: float) -> float:
        """Read a number."""
        value = self.values.get(key, default)
        if is_number(value) and value >= minimum:
            return float(value)
        raise self.invalid(
            key,
            value,
            f"it must be a number of at least {minimum:.3g}",
            f"write {key} = {default:g}",
        )

    def tables(self, key: str) -> Mapping[str, Any]:
        """Read a table of tables."""
        value = self.values.get(key, {})
        if isinstance(value, dict):
            return value
        raise self.invalid(key, value, "it must be a table", f"write [{key}.NAME] above each entry")


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number."""
    return type(value) in (int, float) and math.isfinite(value)


def shown(value: object) -> str:
    """Format a value as in TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
