"""The claims about AWS and its hardware, as docs/claims.toml lists them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trainium_catalogue.probing import Place

SOURCE = Path(__file__).resolve().parents[2] / "docs" / "claims.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One row of docs/verification.md."""

    id: str
    section: str
    claim: str
    evidence: str
    open: str = ""
    """What only an account or hardware can tell; empty where nothing is open."""
    probe: tuple[Place, ...] = ()
    """Where the probe of this id runs."""
    why: str = ""
    """Why no probe tells; beside a probe, what it leaves open."""


@cache
def read_claims() -> tuple[Claim, ...]:
    """Every claim, in the order of the document."""
    rows = tomllib.loads(SOURCE.read_text(encoding="utf-8"))["claim"]
    return tuple(
        Claim(**{**row, "probe": tuple(Place(word) for word in row.get("probe", ()))})
        for row in rows
    )
