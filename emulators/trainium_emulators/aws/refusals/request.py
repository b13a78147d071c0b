"""A request to AWS as the rules see it, with the other resources it may refer to.

Nothing is guessed. What a template leaves to the deployment is ``UNKNOWN`` or a ``Reference``; its
text is empty, its number is NaN (every comparison with NaN is false), so a rule stays silent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

Properties = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ResourceReference:
    """Another resource, or one of its attributes, in a template that is not deployed yet."""

    stack: str
    logical_id: str


UNKNOWN: Final = ResourceReference(stack="", logical_id="")
"""A value known only at deployment."""


class Account(Protocol):
    """The account that receives a request, as far as known."""

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

    def mapping(self, path: str) -> Mapping[str, Any]:
        """Return a mapping; empty if absent or unknown."""
        value = self.get(path)
        return value if isinstance(value, Mapping) else {}

    def has(self, path: str) -> bool:
        """Tell whether a value is given, be it known or unknown."""
        return self.get(path) is not None

    def find(self, kind: str, path: str) -> Properties:
        """Return the properties of the resource that a value names; none if it is not known."""
        return self.account.find(kind, self.get(path)) or {}

    def siblings(self, kind: str, path: str) -> list[Properties]:
        """Return the other resources of a type that name the same resource at a path."""
        return [
            other
            for other in self.account.all(kind)
            if other is not self.properties
            and other != self.previous
            and self.account.same(get(other, path), self.get(path))
        ]


def get(value: Any, path: str, default: Any = None) -> Any:
    """Return a value nested in ``value``; UNKNOWN below anything unknown."""
    for name in path.split("."):
        if isinstance(value, ResourceReference):
            return UNKNOWN
        if not isinstance(value, Mapping) or name not in value:
            return default
        value = value[name]
    return default if value is None else value


def text(value: Any) -> str:
    """Return ``value`` if it is a known text, else an empty one."""
    return value if isinstance(value, str) else ""


def number(value: Any, default: float = math.nan) -> float:
    """Return ``value`` as a number, which CloudFormation also accepts as a text."""
    if value is None:
        return default
    try:
        return float(value) if isinstance(value, (int, float, str)) else math.nan
    except ValueError:
        return math.nan


def each(value: Any) -> list[Any]:
    """Return the entries of a list."""
    return list(value) if isinstance(value, (list, tuple)) else []


def texts(value: Any) -> list[str]:
    """Return the known texts of a list, or a single text, as in policies."""
    return [text(entry) for entry in ([value] if isinstance(value, str) else each(value))]
