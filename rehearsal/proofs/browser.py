"""Checks in a headless browser that TensorBoard's page draws a run's curve."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rehearsal.deployment.state import ROOT
from trainium_catalogue.contract import LOSS_SCALAR

LIMIT_S = 60.0
"""Time limit for a curve to appear on a loaded page."""
_START_S = 180.0
"""Time limit for the browser to start and load pages on a busy machine."""
LOOK = ROOT / "tools" / "browser" / "look.mjs"
_CHROMIUM = LOOK.parent / "node_modules" / ".chromium"


def is_installed() -> bool:
    """Return whether a browser is installed; only `make setup-tests` installs one."""
    return _CHROMIUM.is_dir()


class BrowserError(RuntimeError):
    """Raised if the browser does not start or cannot open the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarCurve:
    """A run's curve in a scalar's card."""

    card: bool
    """True if the page has a card for the scalar, of any run."""
    value: float | None
    """Value at the last step in the card's table, to three or four digits; None if absent."""
    step: int | None
    width: int
    """Width of the chart in pixels."""
    columns: int
    """Number of pixel columns that contain the run's color."""
    first_height: float | None = None
    """Height of the curve in its first column, in pixels above the chart's bottom."""
    last_height: float | None = None

    @property
    def has_curve(self) -> bool:
        """Return whether a line in the run's color spans most of the chart."""
        return 2 * self.columns > self.width

    @property
    def falls(self) -> bool:
        """Return whether the curve ends lower than it starts."""
        if self.first_height is None or self.last_height is None:
            return False
        return self.last_height < self.first_height

    def __str__(self) -> str:
        if not self.has_curve:
            return "no curve"
        direction = "that falls" if self.falls else "that does not fall"
        return f"a curve of {self.columns} pixels {direction}, {self.value} at step {self.step}"


def look(
    addresses: Sequence[str],
    *,
    runs: Sequence[str],
    limit_s: float = LIMIT_S,
    picture: Path | None = None,
    script: Path = LOOK,
) -> list[dict[str, ScalarCurve]]:
    """Read the loss's card on each page, by run.

    Reading stops when a page shows the first run's curve, or after ``limit_s``.

    Args:
        addresses: Time-series pages of TensorBoards.
        runs: Prefixes of TensorBoard's names for the runs' folders.
        limit_s: Seconds to wait for the curve on a loaded page.
        picture: PNG file for a screenshot of the first page.
        script: Script that drives the browser installed next to it.

    Raises:
        BrowserError: With the browser's message.
    """
    request = {
        "addresses": list(addresses),
        "runs": list(runs),
        "tag": LOSS_SCALAR,
        "limit_s": limit_s,
        "picture": None if picture is None else str(picture),
    }
    node = Path(sys.executable).parent / "node"
    try:
        done = subprocess.run(
            [node, script, json.dumps(request)],
            capture_output=True,
            text=True,
            timeout=limit_s + _START_S,
        )
    except FileNotFoundError:
        raise BrowserError(f"{node} is missing; make setup-tests installs it") from None
    except subprocess.TimeoutExpired as error:
        raise BrowserError(
            f"the headless browser did not finish within {error.timeout:.0f} s"
        ) from None
    if done.returncode:
        raise BrowserError(
            f"the headless browser cannot show {' and '.join(addresses)} (make setup-tests "
            f"installs it, for x86-64 Linux): {done.stderr.strip()}"
        )
    return [
        {run: ScalarCurve(**chart) for run, chart in json.loads(line).items()}
        for line in done.stdout.splitlines()
    ]
