"""What one check found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Step = tuple[float, float]
"""Of an optimizer step: loss, and norm of the gradients before clipping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of the check of that name."""

    check: str
    ok: bool
    detail: str


def deviations(found: Sequence[Step], expected: Sequence[Step]) -> tuple[float, float]:
    """The largest of losses and of norms, relative; infinite where one is no number."""

    def worst(index: int) -> float:
        pairs = [(f[index], e[index]) for f, e in zip(found, expected, strict=True)]
        return max(abs(f - e) / abs(e) if math.isfinite(f) else math.inf for f, e in pairs)

    return worst(0), worst(1)
