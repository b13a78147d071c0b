"""The launchers' first lines, as `submit --follow` shows them."""

from __future__ import annotations

import pytest

from jobs.output.beginnings import SLOW_S, Beginnings, NodeReady
from jobs.output.streams import LogLine

FIRST = (
    "launch: node 0 of 2 (main) at 10.0.0.1: program",
    "launch: preflight passed: torch",
    "launch: start: python -m torch.distributed.run",
)


def line(message: str, *, node: int = 0, at_s: float = 0.0, attempt: int = 1) -> LogLine:
    return LogLine(timestamp_ms=int(at_s * 1000), node=node, attempt=attempt, message=message)


def shown(beginnings: Beginnings, *lines: LogLine, now_s: float = 0.0) -> list[str]:
    found = [event for each in lines for event in beginnings.add(each, now_s)]
    return [_text(event) for event in found]


def _text(event: LogLine | NodeReady) -> str:
    if isinstance(event, LogLine):
        return event.message
    return f"{event.node}, {event.attempt}: {event.seconds:.0f} s, {event.lines} lines"


def test_first_lines_of_each_node_and_attempt_become_one() -> None:
    beginnings = Beginnings()
    for node in (0, 1):
        lines = [line(text, node=node, at_s=3 * i) for i, text in enumerate(FIRST)]
        assert shown(beginnings, *lines) == [f"{node}, 1: 6 s, 3 lines"]
    assert shown(beginnings, line("step 1"), line("launch: program: reads")) == [
        "step 1",
        "launch: program: reads",
    ]
    again = [line(text, attempt=2) for text in FIRST]
    assert shown(beginnings, *again) == ["0, 2: 0 s, 3 lines"]


def test_a_launcher_that_breaks_is_not_ready_and_its_lines_are_shown() -> None:
    broken = "Traceback (most recent call last):"
    assert shown(Beginnings(), line(FIRST[0]), line(broken)) == [FIRST[0], broken]
    assert shown(Beginnings(), line("a0"), line("launch: late")) == ["a0", "launch: late"]


def test_news_does_not_end_a_beginning() -> None:
    news = "program: took run x over from job y"
    assert shown(Beginnings(), line(FIRST[0]), line(news), line(FIRST[2])) == [
        news,
        "0, 1: 0 s, 2 lines",
    ]


def test_a_failure_on_one_node_shows_what_all_have_said() -> None:
    beginnings = Beginnings()
    assert shown(beginnings, line("launch: one"), line("launch: two", node=1)) == []
    ending = line("launch: exit 70 (a node failed preflight): node 1", node=1)
    assert shown(beginnings, ending) == ["launch: one", "launch: two", ending.message]


@pytest.mark.parametrize(
    "news",
    [
        "launch: preflight FAILED: EFA; remedy: x",
        "launch: snapshot 3 of 02:30:53, 1 files, restored in 0.1 s",
        "launch: program: resumes, with --resume out",
        "launch: NEURON_CC_FLAGS=-O1 --x y is kept; the launcher would set -O2",
        "launch: NEURON_RT_ROOT_COMM_ID=localhost:1 is removed: on loopback every node would be",
    ],
)
def test_news_is_not_folded(news: str) -> None:
    assert shown(Beginnings(), line(FIRST[0]), line(news)) == [news]


def test_a_slow_beginning_is_shown_and_so_is_what_a_killed_node_has_left() -> None:
    beginnings = Beginnings()
    assert shown(beginnings, line("launch: one"), now_s=0.0) == []
    assert list(beginnings.slow(SLOW_S)) == []
    assert [each.message for each in beginnings.slow(SLOW_S + 1)] == ["launch: one"]
    assert shown(beginnings, line("launch: two")) == ["launch: two"]
    assert shown(beginnings, line("launch: three", node=1)) == []
    assert [each.message for each in beginnings.release(1)] == ["launch: three"]
    assert list(beginnings.release(1)) == []
    assert shown(beginnings, line("launch: four", attempt=2)) == []
    assert [each.message for each in beginnings.release()] == ["launch: four"]
