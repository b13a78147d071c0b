"""What a rehearsal prints while it runs."""

from __future__ import annotations

import io

from rich.console import Console

from rehearsal.receipt import PhaseRecord
from rehearsal.report.progress import ProgressDisplay


def test_a_phase_is_named_when_it_begins() -> None:
    said = io.StringIO()
    phase = PhaseRecord(name="server and synth", seconds=0.0, outcome="failed")

    with ProgressDisplay(Console(file=said)).phase(phase):
        assert said.getvalue() == "begins server and synth\n"
        phase.outcome = "ok"

    assert said.getvalue().splitlines()[1].startswith("ok     server and synth")
