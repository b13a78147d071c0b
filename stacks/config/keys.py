"""The declaration of a context key: its kind, its default and what it does."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from stacks.config.kinds import ValueKind
from stacks.config.refusal import PREFIX, ConfigError, Unfit
from trainium_catalogue.suggest import nearest

T = TypeVar("T")

_METADATA = "key"
# Similarity as measured by difflib. A key without our prefix may belong to another tool.
_SURELY_MEANT = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived(Generic[T]):
    """A default that follows from keys declared earlier."""

    text: str
    """The default as shown in tables of keys."""
    compute: Callable[[Mapping[str, Any]], T]


@dataclass(frozen=True, slots=True, kw_only=True)
class Key(Generic[T]):
    """Declaration of a context key."""

    kind: ValueKind[T]
    default: T | Derived[T]
    help: str

    def read(self, name: str, value: object) -> T:
        """Read ``value``; ``ConfigError`` names the key."""
        try:
            return self.kind.read(value)
        except Unfit as unfit:
            # As JSON: that it is a list may be what is wrong.
            shown = json.dumps(value) if isinstance(value, list) else value
            raise ConfigError(PREFIX + name, shown, unfit.reason, unfit.remedy) from None

    def default_from(self, earlier: Mapping[str, Any]) -> T:
        """Return the value of an omitted key."""
        if isinstance(self.default, Derived):
            return self.default.compute(earlier)
        return self.default


def key(kind: ValueKind[T], *, default: T | Derived[T], help: str) -> T:
    """Declare a dataclass field as a context key; the type checker compares kind and default."""
    declared = Key(kind=kind, default=default, help=help)
    return cast(T, dataclasses.field(metadata={_METADATA: declared}))


def keys_of(config_class: type) -> dict[str, Key[Any]]:
    """All keys of a configuration class, in order of declaration."""
    return {
        field.name: field.metadata[_METADATA]
        for field in dataclasses.fields(config_class)
        if _METADATA in field.metadata
    }


def read_all(keys: Mapping[str, Key[Any]], context: Mapping[str, object]) -> dict[str, Any]:
    """Turn CDK context into a value for each of ``keys``."""
    given = _given(keys, context)
    values: dict[str, Any] = {}
    for name, declared in keys.items():
        if name in given:
            values[name] = declared.read(name, given[name])
        else:
            values[name] = declared.default_from(values)
    return values


def all_given(context: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """Spell every key that was given, by ``-c`` or in cdk.json, as it stands after ``-c``.

    Another checkout may have another cdk.json, so a key is kept wherever it came from.
    """
    return tuple(
        (name.removeprefix(PREFIX), value if isinstance(value, str) else json.dumps(value))
        for name, value in sorted(context.items())
        if name.startswith(PREFIX) and value is not None
    )


def _given(keys: Mapping[str, Key[Any]], context: Mapping[str, object]) -> dict[str, object]:
    """Pick this app's keys, without their prefix; refuse misspelt ones."""
    given: dict[str, object] = {}
    for written, value in context.items():
        name = written.removeprefix(PREFIX)
        if written != name and name in keys:
            given[name] = value
        elif written.lower().startswith(PREFIX.rstrip(":")):
            bare = _bare(written.lower().removeprefix(PREFIX.rstrip(":")))
            raise ConfigError(written, value, "is not a known key", _suggestion(bare, keys))
        elif meant := nearest(_bare(written), keys, cutoff=_SURELY_MEANT):
            raise ConfigError(
                written, value, "lacks the prefix and would be ignored", f"write {PREFIX}{meant}"
            )
    # JSON null means the same as omitting the key; the CDK drops it on its way here anyway.
    return {name: value for name, value in given.items() if value is not None}


def _bare(written: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", written.lower()).strip("_")


def _suggestion(bare: str, names: Iterable[str]) -> str:
    if (meant := nearest(bare, names)) is not None:
        return f"did you mean {PREFIX}{meant}?"
    return f"the known ones, without their prefix: {', '.join(names)}"
