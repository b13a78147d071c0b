"""Types of the fields of JSON documents, with what docs/schemas states of them beyond Python.

A document is a dataclass, whose schema `tools/schemas.py` generates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

T = TypeVar("T")

OPTIONAL = MappingProxyType({"optional": True})
"""Metadata of a field that a document may lack."""


class Keywords:
    """Keywords of JSON Schema that a type of Python does not carry."""

    def __init__(self, **keywords: object) -> None:
        """Keep them."""
        self._keywords = keywords

    def __get_pydantic_json_schema__(
        self, core_schema: Any, handler: Callable[[Any], dict[str, Any]]
    ) -> dict[str, Any]:
        """Add them; pydantic calls this, which nothing but the generator imports."""
        return {**handler(core_schema), **self._keywords}


Sha256 = Annotated[str, Keywords(pattern="^[0-9a-f]{64}$")]
Timestamp = Annotated[str, Keywords(format="date-time")]
Natural = Annotated[int, Keywords(minimum=0)]
Positive = Annotated[int, Keywords(minimum=1)]
Amount = Annotated[float, Keywords(minimum=0)]
Measured = Annotated[float, Keywords(type=["number", "null"])]
"""A number, which is null in JSON where it is not finite."""
DeviceName = Annotated[str, Keywords(enum=["cpu", "xla", "torchneuron"])]


def as_document(value: Any) -> Any:
    """Return a dataclass as its JSON object, without optional fields that have their default.

    ``from_`` becomes ``from``, a keyword of Python.
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


def picked(kind: type[T], source: object, **more: Any) -> T:
    """Make a document whose fields are those of the same name of ``source``, and ``more``."""
    fields: Any = kind
    names = (field.name for field in dataclasses.fields(fields) if field.name not in more)
    return kind(**{name: getattr(source, name) for name in names}, **more)
