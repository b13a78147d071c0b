"""Documents in storage, judged by the published schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker

SCHEMAS = Path(__file__).resolve().parents[3] / "docs" / "schemas"


def assert_valid(document: Any, schema: str) -> None:
    """Raise unless ``document`` is as ``schema`` says."""
    checker = Draft202012Validator(
        json.loads((SCHEMAS / schema).read_text()), format_checker=FormatChecker()
    )
    checker.validate(document)
