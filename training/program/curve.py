"""The losses that a program has printed: few enough to be sent again and again, and drawn."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

from training.core.files import write_whole

CURVE_FILE = "losses.jsonl"
_MOST = 1000
"""Points up to which nothing is left out; a terminal has some 100 columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPoint:
    """A loss that an attempt printed; of many, about a thousand, evenly chosen, and the newest."""

    step: int
    """Number of the loss where lines have no step; steps that restart add to those before."""
    loss: float


class Curve:
    """Losses by step, thinned evenly as they become many."""

    def __init__(self) -> None:
        self._points: list[tuple[int, float]] = []
        self._newest: tuple[int, float] | None = None
        self._every = 1
        self._count = 0
        self._base = 0
        """Steps of earlier epochs, where each of them counts from the beginning."""
        self.changed = False
        """True if the file is older than the newest loss."""

    def add(self, step: int | None, loss: float) -> None:
        """Take a loss; where no line tells steps, losses are counted."""
        if not math.isfinite(loss):
            return
        last = self._newest[0] if self._newest is not None else 0
        at = self._base + step if step is not None else last + 1
        if at < last:
            self._base = last
            at = last + (step or 1)
        if self._newest is not None and at > last:
            if self._count % self._every == 0:
                self._points.append(self._newest)
            self._count += 1
        self.changed = True
        self._newest = (at, loss)  # of several for one step the last
        if len(self._points) > _MOST:
            self._points = self._points[::2]
            self._every *= 2

    def write(self, scratch: Path) -> None:
        """Replace the file."""
        self.changed = False
        points = [*self._points, *([self._newest] if self._newest is not None else [])]
        lines = (json.dumps(asdict(LossPoint(step=step, loss=loss))) for step, loss in points)
        write_whole(scratch / CURVE_FILE, "".join(f"{line}\n" for line in lines).encode())
