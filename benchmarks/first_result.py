"""Time to a new user's first result: `make rehearse QUICK=1`, after set-up."""

import sys
import tempfile
from collections.abc import Mapping

from benchmarks.pairs import Comparison
from benchmarks.processes import seconds_of

PROMISED_S = 60.0
"""The README states one minute, on two idle cores."""


def first_result(environment: Mapping[str, str]) -> Comparison:
    """Compare the whole process's time with the promised time."""

    def run() -> float:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "rehearsal", "run", "--quick", "--folder", folder]
            return seconds_of([*command, "--addresses", "127.0.46"], environment)

    return Comparison(
        name="first-result",
        product="python -m rehearsal run --quick, whole process",
        baseline=f"{PROMISED_S:.0f} s",
        target=1.0,
        measure_product=run,
        measure_baseline=lambda: PROMISED_S,
    )
