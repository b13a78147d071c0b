"""The claims about AWS and its hardware in docs/claims.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trainium_catalogue.probing import ProbeSite

SOURCE = Path(__file__).resolve().parents[2] / "docs" / "claims.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim in docs/verification.md."""

    id: str
    subject: str
    claim: str
    evidence: str
    open: str = ""
    """Part that only an account or hardware can settle; empty for a settled claim."""
    probe: tuple[ProbeSite, ...] = ()
    """Where the probe of this id runs."""
    why: str = ""
    """How to settle it without a probe; with one, the part that stays open."""


@cache
def read_claims() -> tuple[Claim, ...]:
    """Read all claims, by subject."""
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
