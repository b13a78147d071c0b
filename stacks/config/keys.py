"""The declaration of a context key: its kind, default and help."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from stacks.config.kinds import ValueKind
from stacks.config.refusal import PREFIX, ConfigError, InvalidValue
from trainium_catalogue.suggest import nearest

T = TypeVar("T")

_METADATA = "key"
# Minimum similarity, as measured by difflib, at which a key without our prefix is refused: a key
# that is less similar may belong to another tool.
_CERTAIN_MATCH = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedDefault(Generic[T]):
    """A default derived from keys declared earlier."""

    text: str
    """The default as shown in tables of keys."""
    compute: Callable[[Mapping[str, Any]], T]


@dataclass(frozen=True, slots=True, kw_only=True)
class Key(Generic[T]):
    """Declaration of a context key."""

    kind: ValueKind[T]
    default: T | DerivedDefault[T]
    help: str

    def read(self, name: str, value: object) -> T:
        """Parse ``value``; raise a ``ConfigError`` that names the key if it is invalid."""
        try:
            return self.kind.read(value)
        except InvalidValue as invalid:
            # As JSON, because passing a list may be the mistake.
            shown = json.dumps(value) if isinstance(value, list) else value
            raise ConfigError(PREFIX + name, shown, invalid.reason, invalid.remedy) from None

    def default_from(self, earlier: Mapping[str, Any]) -> T:
        """Return the value of an omitted key."""
        if isinstance(self.default, DerivedDefault):
            return self.default.compute(earlier)
        return self.default


def key(kind: ValueKind[T], *, default: T | DerivedDefault[T], help: str) -> T:
    """Declare a dataclass field as a context key; the type checker compares kind and default."""
    declared = Key(kind=kind, default=default, help=help)
    return cast(T, dataclasses.field(metadata={_METADATA: declared}))


def keys_of(config_class: type) -> dict[str, Key[Any]]:
    """Return all keys of a configuration class, in order of declaration."""
    return {
        field.name: field.metadata[_METADATA]
        for field in dataclasses.fields(config_class)
        if _METADATA in field.metadata
    }


def read_all(keys: Mapping[str, Key[Any]], context: Mapping[str, object]) -> dict[str, Any]:
    """Turn CDK context into a value for each of ``keys``."""
    own = _own_values(keys, context)
    values: dict[str, Any] = {}
    for name, declared in keys.items():
        if name in own:
            values[name] = declared.read(name, own[name])
        else:
            values[name] = declared.default_from(values)
    return values


def explicit_settings(context: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """Format every key set with ``-c`` or in cdk.json as text that ``-c`` accepts.

    Keys of cdk.json are included because it may differ in another checkout.
    """
    return tuple(
        (name.removeprefix(PREFIX), value if isinstance(value, str) else json.dumps(value))
        for name, value in sorted(context.items())
        if name.startswith(PREFIX) and value is not None
    )


def _own_values(keys: Mapping[str, Key[Any]], context: Mapping[str, object]) -> dict[str, object]:
    """Select this app's keys and remove their prefix; refuse misspelled ones."""
    own: dict[str, object] = {}
    for context_key, value in context.items():
        name = context_key.removeprefix(PREFIX)
        if context_key != name and name in keys:
            own[name] = value
        elif context_key.lower().startswith(PREFIX.rstrip(":")):
            bare = _bare(context_key.lower().removeprefix(PREFIX.rstrip(":")))
            raise ConfigError(context_key, value, "is not a known key", _suggestion(bare, keys))
        elif closest := nearest(_bare(context_key), keys, cutoff=_CERTAIN_MATCH):
            raise ConfigError(
                context_key,
                value,
                f"lacks the prefix {PREFIX} and would be ignored",
                f"write {PREFIX}{closest}",
            )
    # JSON null is the same as omitting the key; the CDK drops it anyway.
    return {name: value for name, value in own.items() if value is not None}


def _bare(context_key: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", context_key.lower()).strip("_")


def _suggestion(bare: str, names: Iterable[str]) -> str:
    if (closest := nearest(bare, names)) is not None:
        return f"did you mean {PREFIX}{closest}?"
    return f"known keys, without their prefix: {', '.join(names)}"
