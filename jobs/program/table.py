"""A table of a TOML file, whose values are read with their type, or refused."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.errors import Refusal
from trainium_catalogue.suggest import did_you_mean

CODE = "workload-file"
"""Code of every refusal of such a file."""


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a file; refuse one that is not TOML."""
    import tomllib  # only folders with such a file need it, and every command would wait for it

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Refusal(
            CODE, f"{path} cannot be read: {error.strerror or error}; set its permissions"
        ) from None
    except UnicodeDecodeError:
        raise Refusal(CODE, f"{path} is not UTF-8, as TOML is; save it so") from None
    except tomllib.TOMLDecodeError as error:
        said = str(error)
        raise Refusal(
            CODE, f"{path} is not TOML: {said[:1].lower()}{said[1:]}; mend that place"
        ) from None


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the file, whose values are taken with their type, or refused."""

    path: Path
    prefix: str
    values: Mapping[str, Any]

    def wrong(self, key: str, value: object, reason: str, remedy: str) -> Refusal:
        """Make the refusal of a value, or of a key without one."""
        what = "" if value is None else f" = {shown(value)}"
        return Refusal(CODE, f"{self.path}: {self.prefix}{key}{what}: {reason}; {remedy}")

    def check_keys(self, known: Collection[str]) -> None:
        """Refuse keys that nobody reads."""
        for key, value in self.values.items():
            if key not in known:
                raise self.wrong(
                    key,
                    None if isinstance(value, dict) else value,
                    "there is no such key",
                    did_you_mean(key, known),
                )

    def text(self, key: str) -> str | None:
        """Read a text; None if it is not given."""
        value = self.values.get(key)
        if value is None or (isinstance(value, str) and value):
            return value
        raise self.wrong(key, value, "it is a text, and not empty", f'write {key} = "..."')

    def flag(self, key: str, *, default: bool) -> bool:
        """Read a boolean."""
        value = self.values.get(key, default)
        if isinstance(value, bool):
            return value
        raise self.wrong(key, value, "it is a boolean", "write true or false, without quotes")

    def words(self, key: str) -> tuple[str, ...]:
        """Read a list of texts."""
        value = self.values.get(key, [])
        if isinstance(value, list) and all(isinstance(item, str) and item for item in value):
            return tuple(value)
        raise self.wrong(key, value, "it is a list of texts", f'write {key} = ["...", "..."]')

    def one_of(self, key: str, known: Mapping[str, str], default: str) -> str:
        """Read one of several words."""
        value = self.values.get(key, default)
        if isinstance(value, str) and value in known:
            return value
        choice = ", ".join(f'"{name}" ({what})' for name, what in known.items())
        raise self.wrong(key, value, "there is no such one", f"choose {choice}")

    def whole(self, key: str, default: int, *, least: int) -> int:
        """Read a whole number."""
        value = self.values.get(key, default)
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        raise self.wrong(key, value, f"it is a whole number from {least}", f"write {key} = {least}")

    def number(self, key: str, default: float, *, least: float) -> float:
        """Read a number."""
        value = self.values.get(key, default)
        if is_number(value) and value >= least:
            return float(value)
        raise self.wrong(
            key, value, f"it is a number of at least {least:.3g}", f"write {key} = {default:g}"
        )

    def tables(self, key: str) -> Mapping[str, Any]:
        """Read a table of tables."""
        value = self.values.get(key, {})
        if isinstance(value, dict):
            return value
        raise self.wrong(key, value, "it is a table", f"write [{key}.NAME] above each of them")


def is_number(value: Any) -> bool:
    """Tell whether a value is a finite number."""
    return type(value) in (int, float) and math.isfinite(value)


def shown(value: object) -> str:
    """Spell a value as TOML does."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
