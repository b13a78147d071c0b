"""The launchers' first lines in `submit --follow`."""

from __future__ import annotations

import pytest

from jobs.output.startup import SLOW_S, NodeReady, StartupFilter
from jobs.output.streams import LogLine

FIRST = (
    "launch: node 0 of 2 (main) at 10.0.0.1: program",
    "launch: preflight passed: torch",
    "launch: start: python -m torch.distributed.run",
)


def line(message: str, *, node: int = 0, at_s: float = 0.0, attempt: int = 1) -> LogLine:
    return LogLine(timestamp_ms=int(at_s * 1000), node=node, attempt=attempt, message=message)


def shown(startup: StartupFilter, *lines: LogLine, now_s: float = 0.0) -> list[str]:
    found = [event for each in lines for event in startup.add(each, now_s)]
    return [_text(event) for event in found]


def _text(event: LogLine | NodeReady) -> str:
    if isinstance(event, LogLine):
        return event.message
    return f"{event.node}, {event.attempt}: {event.seconds:.0f} s, {event.lines} lines"


def test_startup_lines_of_node_and_attempt_are_folded() -> None:
    startup = StartupFilter()
    for node in (0, 1):
        lines = [line(text, node=node, at_s=3 * i) for i, text in enumerate(FIRST)]
        assert shown(startup, *lines) == [f"{node}, 1: 6 s, 3 lines"]
    assert shown(startup, line("step 1"), line("launch: program: reads")) == [
        "step 1",
        "launch: program: reads",
    ]
    again = [line(text, attempt=2) for text in FIRST]
    assert shown(startup, *again) == ["0, 2: 0 s, 3 lines"]


def test_launcher_failure_during_startup_shows_its_lines() -> None:
    broken = "Traceback (most recent call last):"
    assert shown(StartupFilter(), line(FIRST[0]), line(broken)) == [FIRST[0], broken]
    assert shown(StartupFilter(), line("a0"), line("launch: late")) == ["a0", "launch: late"]


def test_news_does_not_end_startup() -> None:
    news = "program: took over run x from job y"
    assert shown(StartupFilter(), line(FIRST[0]), line(news), line(FIRST[2])) == [
        news,
        "0, 1: 0 s, 2 lines",
    ]


def test_failure_of_one_node_shows_lines_of_all() -> None:
    startup = StartupFilter()
    assert shown(startup, line("launch: one"), line("launch: two", node=1)) == []
    ending = line("launch: exit 70 (a node failed preflight): node 1", node=1)
    assert shown(startup, ending) == ["launch: one", "launch: two", ending.message]


@pytest.mark.parametrize(
    "news",
    [
        "launch: preflight FAILED: EFA; remedy: x",
        "launch: snapshot 3 of 02:30:53, 1 file, restored in 0.1 s",
        "launch: NEURON_CC_FLAGS=-O1 --x y is kept; the launcher would set -O2",
    ],
)
def test_news_is_not_folded(news: str) -> None:
    assert shown(StartupFilter(), line(FIRST[0]), line(news)) == [news]


def test_slow_startup_and_lines_of_killed_node_are_shown() -> None:
    startup = StartupFilter()
    assert shown(startup, line("launch: one"), now_s=0.0) == []
    assert list(startup.slow(SLOW_S)) == []
    assert [each.message for each in startup.slow(SLOW_S + 1)] == ["launch: one"]
    assert shown(startup, line("launch: two")) == ["launch: two"]
    assert shown(startup, line("launch: three", node=1)) == []
    assert [each.message for each in startup.release(1)] == ["launch: three"]
    assert list(startup.release(1)) == []
    assert shown(startup, line("launch: four", attempt=2)) == []
    assert [each.message for each in startup.release()] == ["launch: four"]
