"""The claims about AWS and its hardware that docs/claims.toml lists."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trainium_catalogue.probing import ProbeSite

SOURCE = Path(__file__).resolve().parents[2] / "docs" / "claims.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One row of docs/verification.md."""

    id: str
    section: str
    claim: str
    evidence: str
    open: str = ""
    """Part that only an account or hardware can settle; empty if nothing is open."""
    probe: tuple[ProbeSite, ...] = ()
    """Places where the probe of this id runs."""
    why: str = ""
    """Reason why no probe settles it; with a probe, the part that stays open."""


@cache
def read_claims() -> tuple[Claim, ...]:
    """Read every claim, in document order."""
    rows = tomllib.loads(SOURCE.read_text(encoding="utf-8"))["claim"]
    return tuple(
        Claim(**{**row, "probe": tuple(ProbeSite(word) for word in row.get("probe", ()))})
        for row in rows
    )
