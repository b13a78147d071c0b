"""A request to AWS as seen by the rules, and the resources it may reference.

Nothing is guessed. A value known only at deployment is ``UNKNOWN`` or a ``ResourceReference``; it
reads as an empty string or as NaN (every comparison with NaN is false), so that no rule applies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

Properties = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ResourceReference:
    """A resource, or one of its attributes, in a template that is not deployed yet."""

    stack: str
    logical_id: str


UNKNOWN: Final = ResourceReference(stack="", logical_id="")
"""A value known only at deployment."""


class Account(Protocol):
    """The account that receives a request, as far as known."""

    @property
    def region(self) -> str: ...

    def find(self, kind: str, value: Any) -> Properties | None:
        """Return the properties of the resource named by ``value``; None if unknown."""

    def all(self, kind: str) -> Iterable[Properties]:
        """Return the properties of every known resource of a type."""

    def same(self, one: Any, other: Any) -> bool:
        """Return whether two values are known to name the same resource."""


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
        """Return a string; empty if absent or unknown."""
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
        """Return whether a value is set, known or unknown."""
        return self.get(path) is not None

    def find(self, kind: str, path: str) -> Properties:
        """Return the properties of the resource named at a path; none if unknown."""
        return self.account.find(kind, self.get(path)) or {}


def get(value: Any, path: str, default: Any = None) -> Any:
    """Return a value nested in ``value``; UNKNOWN inside an unknown value."""
    for name in path.split("."):
        if isinstance(value, ResourceReference):
            return UNKNOWN
        if not isinstance(value, Mapping) or name not in value:
            return default
        value = value[name]
    return default if value is None else value


def text(value: Any) -> str:
    """Return ``value`` if it is a known string, else an empty one."""
    return value if isinstance(value, str) else ""


def number(value: Any, default: float = math.nan) -> float:
    """Return ``value`` as a number, which CloudFormation also accepts as a string.

    ``default`` if None, NaN if unknown.
    """
    if value is None:
        return default
    try:
        return float(value) if isinstance(value, (int, float, str)) else math.nan
    except ValueError:
        return math.nan


def each(value: Any) -> list[Any]:
    """Return the entries of a list; none if it is absent or unknown."""
    return list(value) if isinstance(value, (list, tuple)) else []


def texts(value: Any) -> list[str]:
    """Return a list's strings (empty if unknown), or a single string, as in policies, as a list."""
    return [text(entry) for entry in ([value] if isinstance(value, str) else each(value))]
