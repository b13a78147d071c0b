"""Field types of JSON documents, with JSON Schema keywords that Python's types lack.

A document is a dataclass; `tools/schemas.py` generates its schema.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

T = TypeVar("T")

OPTIONAL = MappingProxyType({"optional": True})
"""Metadata of a field that may be missing from a document."""


class Keywords:
    """JSON Schema keywords that a Python type cannot express."""

    def __init__(self, **keywords: object) -> None:
        """Store the keywords."""
        self._keywords = keywords

    def __get_pydantic_json_schema__(
        self, core_schema: Any, handler: Callable[[Any], dict[str, Any]]
    ) -> dict[str, Any]:
        """Add the keywords; called by pydantic, which only the generator imports."""
        return {**handler(core_schema), **self._keywords}


Sha256 = Annotated[str, Keywords(pattern="^[0-9a-f]{64}$")]
Timestamp = Annotated[str, Keywords(format="date-time")]
Natural = Annotated[int, Keywords(minimum=0)]
Positive = Annotated[int, Keywords(minimum=1)]
Amount = Annotated[float, Keywords(minimum=0)]
Measured = Annotated[float, Keywords(type=["number", "null"])]
"""A number, null in JSON if it is not finite."""
DeviceName = Annotated[str, Keywords(enum=["cpu", "xla", "torchneuron"])]


def as_document(value: Any) -> Any:
    """Convert a dataclass to its JSON object, omitting optional fields with default values.

    ``from_`` becomes ``from``, a Python keyword.
    """
    if dataclasses.is_dataclass(value):
        found = {field: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {
            field.name.rstrip("_"): as_document(item)
            for field, item in found.items()
            if not (field.metadata.get("optional") and item == field.default)
        }
    if isinstance(value, Mapping):
        return {name: as_document(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_document(item) for item in value]
    return value


def picked(kind: type[T], source: object, /, **more: Any) -> T:
    """Build a document; fields not in ``more`` are copied from the attributes of ``source``."""
    fields: Any = kind
    names = (field.name for field in dataclasses.fields(fields) if field.name not in more)
    return kind(**{name: getattr(source, name) for name in names}, **more)
