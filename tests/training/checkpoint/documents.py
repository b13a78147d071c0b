"""Documents in storage, judged by the published schemas."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource

SCHEMAS = Path(__file__).resolve().parents[3] / "docs" / "schemas"


def assert_valid(document: Any, schema: str) -> None:
    """Raise unless ``document`` matches ``schema`` as strict JSON."""
    _validator(schema).validate(json.loads(json.dumps(document)))


@cache
def _validator(schema: str) -> Draft202012Validator:
    documents = {file.name: json.loads(file.read_text()) for file in SCHEMAS.glob("*.schema.json")}
    resources = [(name, Resource.from_contents(text)) for name, text in documents.items()]
    registry: Registry[Any] = Registry().with_resources(resources)
    return Draft202012Validator(
        documents[schema], registry=registry, format_checker=FormatChecker()
    )
