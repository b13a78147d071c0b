"""Messages and tables for users."""

from __future__ import annotations

import io
import sys
from dataclasses import replace

import pytest

from jobs.output.console import duration
from jobs.output.follow import AttemptEnded, StatusChanged
from jobs.output.screen import Screen, describe_event
from jobs.output.streams import LogLine
from tests.jobs.samples import ATTEMPT


def test_status_without_news_is_one_word() -> None:
    assert (
        describe_event(StatusChanged(status="RUNNING", reason="Essential container in task exited"))
        == "RUNNING"
    )


def test_retried_attempt_shows_reason() -> None:
    attempt = replace(ATTEMPT, exit_code=75)

    assert describe_event(AttemptEnded(attempt=attempt, max_attempts=3)) == (
        "attempt 1 of 3 ended, exit code 75, a peer was lost, a node hung or a host failed; "
        "Batch starts another attempt"
    )


def test_file_output_keeps_node_lines_verbatim() -> None:
    file = io.StringIO()

    Screen(lines_to=file).line(
        LogLine(timestamp_ms=0, node=1, attempt=2, message="[bold]not markup[/bold] \x1b[31mred")
    )

    assert file.getvalue() == "node 1, attempt 2 | [bold]not markup[/bold] \x1b[31mred\n"


def test_terminal_output_has_colored_labels_and_literal_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", Terminal())
    file = Terminal()

    Screen(lines_to=file).line(
        LogLine(timestamp_ms=0, node=1, attempt=1, message="[bold]not markup[/bold]")
    )

    assert "\x1b[32mnode 1 |" in file.getvalue()
    assert "[bold]not markup[/bold]" in file.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"), [(5.4, "5 s"), (185, "3 min 5 s"), (7800, "2 h 10 min")]
)
def test_durations_are_readable(seconds: float, text: str) -> None:
    assert duration(seconds) == text
