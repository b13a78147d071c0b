"""Streams are read once and merged by time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from botocore.exceptions import ClientError

from jobs.output.streams import LogLine, LogStream, Merger
from tests.jobs.fakes import LOG_GROUP, FakeClock, FakeLogs, client_error, lines


def line(timestamp_ms: int, message: str, *, node: int = 0) -> LogLine:
    return LogLine(timestamp_ms=timestamp_ms, node=node, attempt=1, message=message)


def test_lines_of_stream_keep_order_if_clock_goes_back() -> None:
    merger = Merger()
    merger.add(line(20, "first"), stream="a")
    merger.add(line(10, "second"), stream="a")
    merger.add(line(15, "other"), stream="b")

    assert [found.message for found in merger.flush()] == ["other", "first", "second"]


def test_line_is_held_for_at_most_one_round() -> None:
    merger = Merger()
    merger.add(line(20, "a"), stream="a")
    list(merger.end_round())
    merger.add(line(30, "b"), stream="a")

    assert [found.message for found in merger.end_round()] == ["a"]


def test_stream_resumes_after_failure_between_pages() -> None:
    clock = FakeClock()
    clock.seconds += 100

    class Failing(FakeLogs):
        def get_log_events(self, **kwargs: Any) -> Mapping[str, Any]:
            if self.calls == 1:
                self.calls += 1
                raise client_error("ThrottlingException")
            return FakeLogs.get_log_events(self, **kwargs)

    logs = Failing(clock, streams={"a": lines(1_000_000, ["0", "1", "2"])}, page_size=1)
    stream, merger = LogStream(name="a", node=0, attempt=1), Merger()
    with pytest.raises(ClientError):
        stream.read_into(merger, logs, LOG_GROUP)
    stream.read_into(merger, logs, LOG_GROUP)

    assert [found.message for found in merger.flush()] == ["0", "1", "2"]


def test_missing_stream_is_not_an_error() -> None:
    stream = LogStream(name="late", node=0, attempt=1)

    stream.read_into(Merger(), FakeLogs(FakeClock()), LOG_GROUP)

    assert stream.caught_up


def test_oversized_node_number_is_ignored() -> None:
    class Logs:
        """One page with a line printed by a program."""

        def get_log_events(self, **_: Any) -> Mapping[str, Any]:
            message = f"launch: exit 75 (x): node {'9' * 5000}"
            return {"nextForwardToken": "1", "events": [{"timestamp": 1, "message": message}]}

    stream = LogStream(name="a", node=0, attempt=1)
    stream.read_into(Merger(), Logs(), "group")

    assert stream.named_node is None
