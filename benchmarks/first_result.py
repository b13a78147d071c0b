"""Time that a newcomer waits for the first result: `make rehearse QUICK=1`, after set-up."""

import sys
import tempfile
from collections.abc import Mapping

from benchmarks.pairs import Comparison
from benchmarks.processes import seconds_of

PROMISED_S = 60.0
"""The README promises a minute, on two idle cores."""


def first_result(environment: Mapping[str, str]) -> Comparison:
    """Time the whole process, against a promise instead of another program."""

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
