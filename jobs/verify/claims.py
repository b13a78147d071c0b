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
    """One claim of docs/verification.md."""

    id: str
    subject: str
    claim: str
    evidence: str
    open: str = ""
    """Part that only an account or hardware can settle; empty if nothing is open."""
    probe: tuple[ProbeSite, ...] = ()
    """Places where the probe of this id runs."""
    why: str = ""
    """What would settle it where no probe does; with a probe, the part that stays open."""


@cache
def read_claims() -> tuple[Claim, ...]:
    """Read every claim, subject by subject."""
    tables = tomllib.loads(SOURCE.read_text(encoding="utf-8"))
    return tuple(
        Claim(
            id=name,
            subject=subject,
            **{**row, "probe": tuple(ProbeSite(word) for word in row.get("probe", ()))},
        )
        for key, subject in tables["subjects"].items()
        for name, row in tables[key].items()
    )
