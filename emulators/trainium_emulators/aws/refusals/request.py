"""A request to AWS as the rules see it, with the other resources it may refer to.

Nothing is guessed. What a template leaves to the deployment is ``UNKNOWN`` or a ``Reference``; its
text is empty, its number is NaN (every comparison with NaN is false), so a rule stays silent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Properties = Mapping[str, Any]


class Unknown:
    """A value known only at deployment."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = Unknown()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceReference:
    """Another resource or one of its attributes, in a template that is not deployed yet."""

    stack: str
    logical_id: str
    attribute: str


class PartialText(str):
    """Concatenated known parts of a text: a lower bound of its size, not the text itself."""


class Account(Protocol):
    """The account that receives a request, as far as known."""

    @property
    def account_id(self) -> str: ...

    @property
    def region(self) -> str: ...

    def find(self, kind: str, value: Any) -> Properties | None:
        """Return the properties of the resource of a type that ``value`` names; None if unknown."""

    def all(self, kind: str) -> Iterable[Properties]:
        """Return the properties of every known resource of a type."""

    def same(self, one: Any, other: Any) -> bool:
        """Tell whether two values certainly name the same resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsRequest:
    """A resource to create or change, or an API call, with its values resolved."""

    properties: Properties
    account: Account
    previous: Properties | None = None
    """The resource's properties before an update; None for a creation."""

    def get(self, path: str, default: Any = None) -> Any:
        """Return the value at a path of names separated by dots."""
        return get(self.properties, path, default)

    def text(self, path: str) -> str:
        """Return a text; empty if absent or unknown."""
        return text(self.get(path))

    def number(self, path: str, default: float = math.nan) -> float:
        """Return a number; ``default`` if absent, NaN if unknown."""
        return number(self.get(path), default)

    def each(self, path: str) -> list[Any]:
        """Return the entries of a list; none if it is absent or unknown."""
        return each(self.get(path))

    def has(self, path: str) -> bool:
        """Tell whether a value is given, be it known or unknown."""
        return self.get(path) is not None

    def find(self, kind: str, path: str) -> Properties | None:
        """Return the properties of the resource that a value of this request names."""
        return self.account.find(kind, self.get(path))


def get(value: Any, path: str, default: Any = None) -> Any:
    """Return a value nested in ``value``; UNKNOWN below anything unknown."""
    for name in path.split("."):
        if isinstance(value, (Unknown, ResourceReference)):
            return UNKNOWN
        if not isinstance(value, Mapping) or name not in value:
            return default
        value = value[name]
    return default if value is None else value


def text(value: Any) -> str:
    """Return ``value`` if it is a completely known text, else an empty one."""
    return value if isinstance(value, str) and not isinstance(value, PartialText) else ""


def number(value: Any, default: float = math.nan) -> float:
    """Return ``value`` as a number, which CloudFormation also accepts as a text."""
    if value is None:
        return default
    try:
        return float(value) if isinstance(value, (int, float, str)) else math.nan
    except ValueError:
        return math.nan


def true(value: Any) -> bool:
    """Tell whether a flag is certainly on."""
    return value is True or value == "true"


def false(value: Any) -> bool:
    """Tell whether a flag is certainly off, or omitted where off is the default."""
    return value is None or value is False or value == "false"


def each(value: Any) -> list[Any]:
    """Return the entries of a list."""
    return list(value) if isinstance(value, (list, tuple)) else []


def texts(value: Any) -> list[str]:
    """Return the known texts of a list, or a single text, as in policies."""
    entries = [value] if isinstance(value, str) else each(value)
    return [entry for entry in map(text, entries) if entry]


def known(value: Any) -> bool:
    """Tell whether ``value`` is completely known before deployment."""
    if isinstance(value, Mapping):
        return all(known(entry) for entry in value.values())
    if isinstance(value, (list, tuple)):
        return all(known(entry) for entry in value)
    return not isinstance(value, (Unknown, ResourceReference, PartialText))


_FREE_KEYS = frozenset({"tags", "parameters", "options", "labels"})
"""Members of an API request whose keys the caller chooses."""


def from_api(value: Any) -> Any:
    """Convert an API request to CloudFormation's names, which begin with a capital."""
    if isinstance(value, list):
        return [from_api(entry) for entry in value]
    if not isinstance(value, Mapping):
        return value
    return {
        name[:1].upper() + name[1:]: entry if name in _FREE_KEYS else from_api(entry)
        for name, entry in value.items()
    }


def duplicates(values: Iterable[Any]) -> list[Any]:
    """Return each duplicated value once; unknown values never count."""
    seen: list[Any] = []
    again: list[Any] = []
    for value in values:
        if isinstance(value, (Unknown, PartialText)) or value in again:
            continue
        (again if value in seen else seen).append(value)
    return again
