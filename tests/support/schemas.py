"""Checks of documents against the published schemas."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schemas"


def conforms(schema: str, document: Any) -> None:
    """Check a document against its published schema."""
    _validator(schema).validate(document)


@cache
def _validator(schema: str) -> jsonschema.Draft202012Validator:
    text = (SCHEMAS / f"{schema}.schema.json").read_text(encoding="utf-8")
    return jsonschema.Draft202012Validator(json.loads(text))
