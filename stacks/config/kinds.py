"""Kinds of values: how each is parsed from ``-c`` text or typed JSON, and its name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Network
from typing import Generic, TypeVar

from stacks.config.refusal import Unfit
from trainium_catalogue.suggest import did_you_mean

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

_ONE_ADDRESS = 32
_MOST_CHARACTERS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueKind(Generic[T]):
    """One kind of value; ``read`` returns its own results unchanged."""

    noun: str
    """The kind's name in tables of keys."""
    read: Callable[[object], T]
    """Parse a value; raises ``Unfit`` and no other exception."""


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
        raise Unfit("is not a boolean", "write true or false")

    return ValueKind(noun="true or false", read=read)


def whole_number(low: int, high: int, *, why: str = "") -> ValueKind[int]:
    """An integer in a closed range; ``why`` says whose range it is, if that is not obvious."""
    span = f"a whole number from {low} to {high}" + (f" ({why})" if why else "")

    def read(value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,12}", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise Unfit("is not a whole number", f"give {span}")
        if not low <= value <= high:
            raise Unfit("is out of range", f"give {span}")
        return value

    return ValueKind(noun=f"whole number, {low} to {high}", read=read)


def one_number_of(allowed: Collection[int], *, whose: str) -> ValueKind[int]:
    """An integer from a list that a service defines."""
    listed = ", ".join(map(str, sorted(allowed)))

    def read(value: object) -> int:
        number = whole_number(0, 10**12).read(value)
        if number not in allowed:
            nearest = min(sorted(allowed), key=lambda choice: abs(choice - number))
            raise Unfit(f"is none of {whose} ({listed})", f"the nearest is {nearest}")
        return number

    return ValueKind(noun="whole number", read=read)


def text(value: object) -> str:
    """Accept any text that is not empty."""
    if not isinstance(value, str):
        raise Unfit("is not text", "write it in quotes")
    if not value.strip():
        raise Unfit("is empty", "give a value, or leave the key out for its default")
    if len(value) > _MOST_CHARACTERS:
        raise Unfit(f"has {len(value)} characters", f"at most {_MOST_CHARACTERS} make sense")
    return value


def matching(pattern: str, *, noun: str, reason: str, remedy: str) -> ValueKind[str]:
    """Text that matches ``pattern``."""
    compiled = re.compile(pattern, re.ASCII)

    def read(value: object) -> str:
        read_text = text(value)
        if not compiled.fullmatch(read_text):
            raise Unfit(reason, remedy)
        return read_text

    return ValueKind(noun=noun, read=read)


def resource_id(prefix: str) -> ValueKind[str]:
    """An id assigned by EC2: older ones have 8 hexadecimal digits, newer ones 17."""
    return matching(
        rf"{prefix}-(?:[0-9a-f]{{8}}|[0-9a-f]{{17}})",
        noun=f"`{prefix}-...` id",
        reason=f"is not an id of the form {prefix}-...",
        remedy=f"give {prefix}- and 17 (or 8) hexadecimal digits, e.g. {prefix}-0123456789abcdef0",
    )


def one_of(choices: type[E]) -> ValueKind[E]:
    """A member of an enumeration, by its value."""
    values = [choice.value for choice in choices]

    def read(value: object) -> E:
        word = text(value)
        if word not in values:
            raise Unfit("is not one of the choices", did_you_mean(word, values))
        return choices(word)

    return ValueKind(noun=" or ".join(f"`{value}`" for value in values), read=read)


def name_in(
    catalogue: Mapping[str, object], *, noun: str, suggested: Collection[str] | None = None
) -> ValueKind[str]:
    """A name in a catalogue; a refusal suggests only ``suggested``, if given."""

    def read(value: object) -> str:
        name = text(value)
        if name not in catalogue:
            raise Unfit(f"is not a known {noun}", did_you_mean(name, suggested or catalogue))
        return name

    return ValueKind(noun=noun, read=read)


def cidr(widest: int, narrowest: int) -> ValueKind[str]:
    """An IPv4 network with a prefix length in a range."""

    def read(value: object) -> str:
        written = text(value)
        example = f"give an address range such as 10.0.0.0/{widest}"
        if narrowest == _ONE_ADDRESS and re.fullmatch(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}", written):
            example = f"write {written}/{_ONE_ADDRESS} for this one address"
        if not re.fullmatch(r"[0-9.]+/[0-9]{1,2}", written):
            raise Unfit("is not an IPv4 range", example)
        try:
            network = IPv4Network(written, strict=False)
        except ValueError:
            raise Unfit("is not an IPv4 range", example) from None
        if not widest <= network.prefixlen <= narrowest:
            raise Unfit(
                f"has the prefix /{network.prefixlen}", f"use one of /{widest} to /{narrowest}"
            )
        if str(network) != written:
            raise Unfit("does not begin at the start of its range", f"write {network}")
        return written

    return ValueKind(noun=f"IPv4 range, /{widest} to /{narrowest}", read=read)


def comma_separated(read_each: Callable[[str], str], *, noun: str) -> ValueKind[tuple[str, ...]]:
    """A list: JSON (typed or as text), or text separated by commas."""

    def read(value: object) -> tuple[str, ...]:
        items = tuple(read_each(text(item)) for item in _items(value))
        if not items:
            raise Unfit("is an empty list", "leave the key out for its default")
        if len(set(items)) < len(items):
            raise Unfit("names something twice", f"write {','.join(dict.fromkeys(items))}")
        return items

    return ValueKind(noun=noun, read=read)


def possibly_empty_list(
    read_each: Callable[[str], str], *, noun: str
) -> ValueKind[tuple[str, ...]]:
    """A list in the form of ``comma_separated`` that may be empty."""
    filled = comma_separated(read_each, noun=noun)

    def read(value: object) -> tuple[str, ...]:
        return () if value in ((), [], "", "[]") else filled.read(value)

    return ValueKind(noun=noun, read=read)


def _items(value: object) -> Iterable[object]:
    if isinstance(value, list | tuple):
        return value
    written = text(value)
    if not written.startswith("["):
        return [part.strip() for part in written.split(",")]
    try:
        # RecursionError: users may also type a long row of brackets.
        parsed = json.loads(written)
    except (ValueError, RecursionError):
        raise Unfit("is not a JSON list", 'write ["a", "b"], or a,b') from None
    return list(parsed)
