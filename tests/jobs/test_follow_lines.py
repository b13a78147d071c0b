"""Every line of a job is shown once and in order, however late it becomes visible."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.output.streams import LogLine
from tests.jobs.fakes import FakeBatch, FakeClock, FakeLogs, Printed, attempt, child, parent, scene
from tests.jobs.following import T0, follow, messages

Scene = tuple[float, Mapping[str, Mapping[str, Any]]]


@st.composite
def stories(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a job with random nodes, attempts, delays, paging and throttling."""
    num_attempts = draw(st.integers(1, 3))
    num_nodes = draw(st.integers(1, 3))
    gaps = st.lists(st.floats(0, 3), max_size=8)
    return {
        "streams": [[draw(gaps) for _ in range(num_nodes)] for _ in range(num_attempts)],
        "lag_s": draw(st.floats(0, 12)),
        "page_size": draw(st.integers(1, 4)),
        "throttled": draw(st.floats(0, 0.6)),
        "empty_pages": draw(st.floats(0, 0.7)),
        "seed": draw(st.integers(0, 2**32)),
        "join_s": draw(st.floats(0, 60)),
    }


def stage(story: dict[str, Any], clock: FakeClock) -> tuple[FakeBatch, FakeLogs]:
    """Build the fakes for a story; each attempt takes 30 s, with 10 s between two."""
    rng = random.Random(story["seed"])
    num_attempts, num_nodes = len(story["streams"]), len(story["streams"][0])
    streams: dict[str, list[Printed]] = {}
    scenes: list[Scene] = []
    over: list[dict[str, Any]] = []
    for number, of_nodes in enumerate(story["streams"], start=1):
        begin = T0 + (number - 1) * 40
        end = begin + 30
        names = [f"{number}-{node}" for node in range(num_nodes)]
        for name, gaps in zip(names, of_nodes, strict=True):
            # The last line comes with the end, when lines are easily lost.
            at, visible, printed = end - sum(gaps), begin, []
            for index, gap in enumerate(gaps):
                at += gap
                # CloudWatch shows a stream in order, with a varying delay.
                visible = max(visible, at + rng.uniform(0, story["lag_s"]))
                visible = min(visible, end + 2.5)
                printed.append(
                    Printed(
                        timestamp_ms=round(at * 1000),
                        message=f"{name}:{index}",
                        visible_at=visible,
                    )
                )
            streams[name] = printed
        job = parent("RUNNING", num_nodes=num_nodes, attempts=list(over))
        scenes.append((begin, scene(job, *(_node("RUNNING", over, n) for n in names))))
        code = 0 if number == num_attempts else 75
        over.append(attempt(stream=names[0], exit_code=code, started_s=begin, stopped_s=end))
        status = "SUCCEEDED" if number == num_attempts else "RUNNABLE"
        job = parent(status, num_nodes=num_nodes, attempts=list(over), stoppedAt=round(end * 1000))
        scenes.append((end, scene(job, *(_node(status, over, n) for n in names))))
    batch = FakeBatch(clock, scenes=scenes, random=rng, throttled=story["throttled"])
    logs = FakeLogs(
        clock,
        streams=streams,
        page_size=story["page_size"],
        random=rng,
        throttled=story["throttled"],
        empty_pages=story["empty_pages"],
    )
    return batch, logs


def _node(status: str, over: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return a node with current stream ``name``, whose earlier attempts mirror the job's."""
    _, _, node = name.partition("-")
    earlier = []
    for item in over:
        number, _, _ = item["container"]["logStreamName"].partition("-")
        container = {**item["container"], "logStreamName": f"{number}-{node}"}
        earlier.append({**item, "container": container})
    return child(status, stream=name, attempts=earlier)


@settings(max_examples=150)
@given(stories())
def test_every_line_of_node_is_shown_once_and_in_order(story: dict[str, Any]) -> None:
    clock = FakeClock()
    batch, logs = stage(story, clock)
    clock.seconds += story["join_s"]

    shown = messages(follow(clock, batch, logs))

    assert len(shown) == sum(map(len, logs.streams.values()))
    for name, stream in logs.streams.items():
        of_stream = [message for message in shown if message.startswith(f"{name}:")]
        assert of_stream == [line.message for line in stream]


@settings(max_examples=100)
@given(stories())
def test_lines_delayed_less_than_a_round_are_sorted_by_time(story: dict[str, Any]) -> None:
    clock = FakeClock()
    batch, logs = stage({**story, "lag_s": 0.9, "throttled": 0.0, "empty_pages": 0.0}, clock)

    times = [e.timestamp_ms for e in follow(clock, batch, logs) if isinstance(e, LogLine)]

    assert times == sorted(times)
