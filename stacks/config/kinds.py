"""Kinds of values, each with a name and a parser for ``-c`` text or JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Network
from typing import Generic, TypeVar

from stacks.config.refusal import InvalidValue, format_value
from trainium_catalogue.suggest import did_you_mean
from trainium_catalogue.wording import either

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

_ONE_ADDRESS = 32
_MAX_CHARACTERS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueKind(Generic[T]):
    """A kind of value; ``read`` is idempotent."""

    noun: str
    """The kind's name in tables of keys."""
    read: Callable[[object], T]
    """Parse a value; raise only ``InvalidValue``."""


def optional(kind: ValueKind[T]) -> ValueKind[T | None]:
    """Allow a key to be omitted."""

    def read(value: object) -> T | None:
        return None if value is None else kind.read(value)

    return ValueKind(noun=kind.noun, read=read)


def boolean() -> ValueKind[bool]:
    """Accept only ``true`` or ``false``: ``bool("False")`` is true in Python."""
    booleans = {"true": True, "false": False}

    def read(value: object) -> bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value in booleans:
            return booleans[value]
        raise InvalidValue("is not a boolean", "write true or false")

    return ValueKind(noun="true or false", read=read)


def whole_number(low: int, high: int, *, why: str = "") -> ValueKind[int]:
    """Accept an integer in a closed range; ``why`` explains the range if it is not obvious."""
    span = f"a whole number from {low:,} to {high:,}" + (f" ({why})" if why else "")

    def read(value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,12}", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidValue("is not a whole number", f"specify {span}")
        if not low <= value <= high:
            raise InvalidValue("is out of range", f"specify {span}")
        return value

    return ValueKind(noun=f"whole number, {low:,} to {high:,}", read=read)


def one_number_of(allowed: Collection[int], *, noun: str) -> ValueKind[int]:
    """Accept an integer from a list defined by a service."""
    listed = ", ".join(map(str, sorted(allowed)))

    def read(value: object) -> int:
        try:
            number = whole_number(0, 10**12).read(value)
        except InvalidValue:
            raise InvalidValue("is not a whole number", f"use one of {listed}") from None
        if number not in allowed:
            nearest = min(sorted(allowed), key=lambda choice: abs(choice - number))
            raise InvalidValue(
                f"is not one of the {noun} ({listed})", f"use the nearest, {nearest}"
            )
        return number

    return ValueKind(noun="whole number", read=read)


def text(value: object) -> str:
    """Accept any non-empty text."""
    if not isinstance(value, str):
        raise InvalidValue("is not a string", "put it in quotes")
    if not value.strip():
        raise InvalidValue("is empty", "set a value, or omit the key to use its default")
    if len(value) > _MAX_CHARACTERS:
        raise InvalidValue(f"has {len(value)} characters", f"use at most {_MAX_CHARACTERS}")
    return value


def matching(pattern: str, *, noun: str, reason: str, remedy: str) -> ValueKind[str]:
    """Accept text that matches ``pattern``."""
    compiled = re.compile(pattern, re.ASCII)

    def read(value: object) -> str:
        read_text = text(value)
        if not compiled.fullmatch(read_text):
            raise InvalidValue(reason, remedy)
        return read_text

    return ValueKind(noun=noun, read=read)


def resource_id(prefix: str) -> ValueKind[str]:
    """Accept an id assigned by EC2: older ones have 8 hexadecimal digits, newer ones 17."""
    return matching(
        rf"{prefix}-(?:[0-9a-f]{{8}}|[0-9a-f]{{17}})",
        noun=f"`{prefix}-...` id",
        reason=f"is not {prefix}- followed by 8 or 17 hexadecimal digits",
        remedy=f"specify an id such as {prefix}-0123456789abcdef0",
    )


def one_of(choices: type[E]) -> ValueKind[E]:
    """Accept the value of an enum member."""
    values = [choice.value for choice in choices]

    def read(value: object) -> E:
        choice = text(value)
        if choice not in values:
            raise InvalidValue("is not one of the allowed values", did_you_mean(choice, values))
        return choices(choice)

    return ValueKind(noun=" or ".join(f"`{value}`" for value in values), read=read)


def name_in(
    catalogue: Mapping[str, object],
    *,
    noun: str,
    suggested: Collection[str] | None = None,
    lists_all: bool = False,
) -> ValueKind[str]:
    """Accept a name in a catalogue.

    A refusal suggests the nearest name, only of ``suggested`` if set; with ``lists_all``, it lists
    all names, because an unknown version, for example, is not a misspelling of another one.
    """

    def read(value: object) -> str:
        name = text(value)
        if name not in catalogue:
            hint = did_you_mean(name, suggested or catalogue)
            if lists_all:
                hint = f"use {either(catalogue)}"
            raise InvalidValue(f"is not a known {noun}", hint)
        return name

    return ValueKind(noun=noun, read=read)


def cidr(widest: int, narrowest: int) -> ValueKind[str]:
    """Accept an IPv4 network with a prefix length in a range."""

    def read(value: object) -> str:
        written = text(value)
        example = f"specify an address range such as 10.0.0.0/{widest}"
        if narrowest == _ONE_ADDRESS and re.fullmatch(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}", written):
            example = f"write {written}/{_ONE_ADDRESS} for this one address"
        if not re.fullmatch(r"[0-9.]+/[0-9]{1,2}", written):
            raise InvalidValue("is not an IPv4 range", example)
        try:
            network = IPv4Network(written, strict=False)
        except ValueError:
            raise InvalidValue("is not an IPv4 range", example) from None
        if not widest <= network.prefixlen <= narrowest:
            raise InvalidValue(
                f"has a /{network.prefixlen} prefix", f"use a prefix from /{widest} to /{narrowest}"
            )
        if str(network) != written:
            raise InvalidValue("has host bits set", f"write {network}")
        return written

    return ValueKind(noun=f"IPv4 range, /{widest} to /{narrowest}", read=read)


def comma_separated(read_each: Callable[[str], str], *, noun: str) -> ValueKind[tuple[str, ...]]:
    """Accept a list, as JSON text or already parsed, or comma-separated text."""

    def read(value: object) -> tuple[str, ...]:
        written = [text(item) for item in _items(value)]
        items = tuple(_read_item(read_each, item, is_alone=len(written) == 1) for item in written)
        if not items:
            raise InvalidValue("is an empty list", "omit the key to use its default")
        if len(set(items)) < len(items):
            raise InvalidValue("lists a value twice", f"write {','.join(dict.fromkeys(items))}")
        return items

    return ValueKind(noun=noun, read=read)


def _read_item(read_each: Callable[[str], str], item: str, *, is_alone: bool) -> str:
    """Read an item of a list; the error names it, unless it is the only one."""
    try:
        return read_each(item)
    except InvalidValue as error:
        if is_alone or item in error.reason:
            raise
        reason = f"contains {format_value(item)}, which {error.reason}"
        raise InvalidValue(reason, error.remedy) from None


def possibly_empty_list(
    read_each: Callable[[str], str], *, noun: str
) -> ValueKind[tuple[str, ...]]:
    """Accept a list like ``comma_separated`` does, or an empty one."""
    non_empty = comma_separated(read_each, noun=noun)

    def read(value: object) -> tuple[str, ...]:
        return () if value in ((), [], "", "[]") else non_empty.read(value)

    return ValueKind(noun=noun, read=read)


def _items(value: object) -> Iterable[object]:
    if isinstance(value, list | tuple):
        return value
    written = text(value)
    if not written.startswith("["):
        return [part.strip() for part in written.split(",")]
    try:
        # Deeply nested brackets raise RecursionError.
        parsed = json.loads(written)
    except (ValueError, RecursionError):
        raise InvalidValue("is not a JSON list", 'write ["a", "b"], or a,b') from None
    return list(parsed)
