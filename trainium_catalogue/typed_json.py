"""Parsing of untrusted JSON into dataclasses, with a type check of every field.

msgspec and pydantic are ruled out, because a launcher's image may have only the standard library.
Ranges are checked in ``__post_init__`` where they matter.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
Read = Callable[[Any, str], Any]
"""Function from a value and its path to the typed value; raises ``ValueError``."""

_INT64 = range(-(2**63), 2**63)
_MAX_SHOWN = 80


def read_object(data: bytes | str) -> dict[str, Any]:
    """Parse a JSON object; ``ValueError`` for anything else."""
    try:
        found = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"it is {_abbreviate(found)}, not a JSON object")
    return found


def read_json(data: bytes | str, kind: type[T]) -> T:
    """Parse a JSON object as the dataclass ``kind``; ``ValueError`` names an invalid field."""
    return typed(read_object(data), kind)


def typed(value: object, kind: type[T]) -> T:
    """Convert a parsed value to ``kind``; ``ValueError`` names an invalid field.

    Fields may be integers (64 bits), numbers, strings, booleans, enumerations, dataclasses, tuples
    of any length and mappings from strings to these, and may be optional. Unknown fields are
    ignored.
    """
    hint: Any = kind
    found: T = _reader(hint)(value, "")
    return found


def _abbreviate(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _wrong(value: object, at: str, wanted: str) -> ValueError:
    return ValueError(f"{at or 'it'} is {_abbreviate(value)}, not {wanted}")


@cache
def _reader(hint: Any) -> Read:
    if hint is Any:
        return lambda value, at: value
    if hint is int:
        return _integer
    if hint is float:
        return _number
    if hint is str:
        return lambda value, at: _instance(value, at, str, "a string")
    if hint is bool:
        return _boolean
    if dataclasses.is_dataclass(hint):
        return _dataclass(hint)
    arguments = get_args(hint)
    match get_origin(hint):
        case origin if origin in (Union, UnionType) and len(arguments) == 2:
            (some,) = (_reader(one) for one in arguments if one is not type(None))
            return lambda value, at: None if value is None else some(value, at)
        case origin if origin is tuple and arguments[1:] == (...,):
            return _tuple(_reader(arguments[0]))
        case origin if origin is Mapping and arguments[0] is str:
            return _mapping(_reader(arguments[1]))
    assert isinstance(hint, type) and issubclass(hint, Enum), hint
    return _enumeration(hint)


def _instance(value: Any, at: str, kinds: type | tuple[type, ...], wanted: str) -> Any:
    # True and False are integers in Python, but not in JSON.
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise _wrong(value, at, wanted)
    return value


def _integer(value: Any, at: str) -> int:
    if _instance(value, at, int, "an integer") not in _INT64:
        raise _wrong(value, at, "a 64-bit integer")
    return int(value)


def _number(value: Any, at: str) -> float:
    try:
        found = float(_instance(value, at, (int, float), "a number"))
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise _wrong(value, at, "a finite number")
    return found


def _boolean(value: Any, at: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(value, at, "true or false")
    return value


def _tuple(item: Read) -> Read:
    def read(value: Any, at: str) -> tuple[Any, ...]:
        found = _instance(value, at, (list, tuple), "a list")
        return tuple(item(one, f"{at}[{number}]") for number, one in enumerate(found))

    return read


def _mapping(item: Read) -> Read:
    def read(value: Any, at: str) -> dict[str, Any]:
        found = _instance(value, at, dict, "an object")
        return {name: item(one, f"{at}[{name!r}]") for name, one in found.items()}

    return read


def _enumeration(kind: type[Enum]) -> Read:
    def read(value: Any, at: str) -> Enum:
        try:
            return kind(value)
        except ValueError:
            raise _wrong(value, at, f"one of {', '.join(str(one.value) for one in kind)}") from None

    return read


def _dataclass(kind: Any) -> Read:
    hints = get_type_hints(kind)
    readers = {field.name: _reader(hints[field.name]) for field in dataclasses.fields(kind)}
    required = {
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }

    def read(value: Any, at: str) -> Any:
        found = _instance(value, at, dict, "an object")
        if absent := sorted(required - found.keys()):
            raise ValueError(f"{at + ' has' if at else 'it has'} no {', '.join(absent)}")
        before = f"{at}." if at else ""
        known = {
            name: reader(found[name], f"{before}{name}")
            for name, reader in readers.items()
            if name in found
        }
        try:
            return kind(**known)
        except ValueError as error:
            raise ValueError(f"{at}: {error}" if at else str(error)) from None

    return read
