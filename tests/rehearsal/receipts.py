"""Receipts of `make rehearse`; `make test-slow` runs it first where they are missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def receipt_of(part: str) -> dict[str, Any]:
    """Read the receipt of a part of the rehearsal, the folder below build."""
    path = ROOT / "build" / part / "receipt.json"
    assert path.exists(), f"{path} does not exist; run make rehearse"
    document: dict[str, Any] = json.loads(path.read_text())
    return document
