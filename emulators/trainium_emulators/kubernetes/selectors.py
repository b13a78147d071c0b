"""Label and field selectors of lists and watches."""

from __future__ import annotations

import re
from typing import Any

from trainium_emulators.kubernetes.resources import Json

_SET = re.compile(r"(?P<key>\S+)\s+(?P<word>in|notin)\s+\((?P<values>[^)]*)\)")
_EQUAL = re.compile(r"(?P<key>[^=!\s]+)\s*(?P<sign>==|=|!=)\s*(?P<value>.*)")


def matches(entry: Json, *, labels: str = "", fields: str = "") -> bool:
    """Whether an object is selected by both (empty: by everything)."""
    own = entry["metadata"].get("labels") or {}
    return all(_holds(term, own) for term in _terms(labels)) and all(
        _holds_field(term, entry) for term in _terms(fields)
    )


def _terms(selector: str) -> list[str]:
    """The parts between commas that are not inside brackets."""
    return [term.strip() for term in re.split(r",(?![^(]*\))", selector) if term.strip()]


def _holds(term: str, labels: dict[str, str]) -> bool:
    if found := _SET.fullmatch(term):
        values = [value.strip() for value in found["values"].split(",")]
        return (labels.get(found["key"]) in values) == (found["word"] == "in")
    if found := _EQUAL.fullmatch(term):
        return (labels.get(found["key"]) == found["value"]) == (found["sign"] != "!=")
    return term[1:].strip() not in labels if term.startswith("!") else term in labels


def _holds_field(term: str, entry: Json) -> bool:
    found = _EQUAL.fullmatch(term)
    assert found is not None, term
    value: Any = entry
    for step in found["key"].split("."):
        value = (value or {}).get(step)
    return (("" if value is None else str(value)) == found["value"]) == (found["sign"] != "!=")
