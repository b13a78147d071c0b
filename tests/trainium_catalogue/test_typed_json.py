"""Untrusted JSON becomes dataclasses, or a refusal that names the field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainium_catalogue.typed_json import read_json, read_object


class Kind(StrEnum):
    FILE = "file"
    LINK = "link"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    name: str
    bytes: int

    def __post_init__(self) -> None:
        if self.bytes < 0:
            raise ValueError("bytes is negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    kind: Kind
    at: float
    done: bool
    parts: tuple[Part, ...]
    sums: Mapping[str, int]
    first: Part | None = None
    rest: Any = None


DOCUMENT = {
    "kind": "file",
    "at": 1,
    "done": True,
    "parts": [{"name": "a", "bytes": 1}, {"name": "b", "bytes": 2, "unknown": 3}],
    "sums": {"a": 1},
}


def test_valid_document_is_read() -> None:
    found = read_json(json.dumps(DOCUMENT), Whole)

    assert found == Whole(
        kind=Kind.FILE,
        at=1.0,
        done=True,
        parts=(Part(name="a", bytes=1), Part(name="b", bytes=2)),
        sums={"a": 1},
    )
    assert isinstance(found.at, float)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "pipe"}, "kind is 'pipe', not one of file, link"),
        ({"kind": []}, r"kind is \[\], not one of"),
        ({"at": "now"}, "at is 'now', not a number"),
        ({"at": True}, "at is True, not a number"),
        ({"at": 10**400}, r"at is 1000.*\.\.\., not a finite number"),
        ({"at": float("nan")}, "at is nan, not a finite number"),
        ({"done": 1}, "done is 1, not true or false"),
        ({"parts": {}}, r"parts is {}, not a list"),
        ({"parts": [3]}, r"parts\[0\] is 3, not an object"),
        ({"parts": [{"name": "a"}]}, r"parts\[0\] has no bytes"),
        ({"parts": [{"name": 3, "bytes": 1}]}, r"parts\[0\]\.name is 3, not a string"),
        ({"parts": [{"name": "a", "bytes": 1.5}]}, r"parts\[0\]\.bytes is 1.5, not an integer"),
        ({"parts": [{"name": "a", "bytes": True}]}, r"parts\[0\]\.bytes is True, not an integer"),
        ({"parts": [{"name": "a", "bytes": 2**63}]}, r"not a 64-bit integer"),
        ({"parts": [{"name": "a", "bytes": -1}]}, r"parts\[0\]: bytes is negative"),
        ({"sums": [1]}, r"sums is \[1\], not an object"),
        ({"sums": {"a": None}}, r"sums\['a'\] is None, not an integer"),
        ({"first": 3}, "first is 3, not an object"),
        ({"at": "x" * 1000}, r"\.\.\., not a number"),
    ],
)
def test_invalid_field_is_named(changes: Mapping[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        read_json(json.dumps({**DOCUMENT, **changes}), Whole)

    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "data", ["", "[]", "3", "null", "{", "[" * 100_000, '{"a":' * 100_000, b"\xff\xfe", "1" * 9999]
)
def test_non_object_json_is_refused(data: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_object(data)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*DOCUMENT, "first", "rest"]), values))
def test_any_document_is_read_or_refused(changes: dict[str, Any]) -> None:
    try:
        found = read_json(json.dumps({**DOCUMENT, **changes}), Whole)
    except ValueError:
        return
    assert isinstance(found.kind, Kind)
    assert all(isinstance(part.bytes, int) for part in found.parts)
