"""The node and attempt of a pod's log stream after the pod is gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jobs.eks.log_streams import list_streams
from tests.jobs.samples import ATTEMPT, JOB, NODE


class Listing:
    """CloudWatch's streams, one per page."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def get_log_events(self, **kwargs: Any) -> dict[str, Any]:
        raise AssertionError(kwargs)

    def describe_log_streams(self, **kwargs: Any) -> dict[str, Any]:
        assert kwargs["logGroupName"] == "group"
        # Sorted by name, as in CloudWatch; the creation time is the index in the test's list.
        chosen = sorted(n for n in self._names if n.startswith(kwargs["logStreamNamePrefix"]))
        page = int(kwargs.get("nextToken", 0))
        more = {"nextToken": str(page + 1)} if page + 1 < len(chosen) else {}
        found = [
            {"logStreamName": name, "creationTime": self._names.index(name)}
            for name in chosen[page : page + 1]
        ]
        return {"logStreams": found, **more}


def stream(node: int, uid: str) -> str:
    return f"pod/job-node-{node}-0/{uid}"


def found(*names: str, alive: dict[str, int] | None = None) -> list[tuple[int, int]]:
    """Return node and attempt of the streams by time; ``alive`` maps existing pods to attempts."""
    nodes = tuple(
        replace(NODE, attempts=(replace(ATTEMPT, number=number, log_stream=name),))
        for name, number in (alive or {}).items()
    )
    listed = list_streams(Listing(*names), "group", replace(JOB, job_id="job", nodes=nodes))
    return [(each.node, each.attempt) for each in listed]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([stream(1, "z"), stream(0, "b")], [(1, 1), (0, 1)]),
        (
            [stream(0, "z"), stream(1, "y"), stream(1, "b"), stream(0, "a")],
            [(0, 1), (1, 1), (1, 2), (0, 2)],
        ),
        # Node 1 was terminated before it printed anything in the first attempt.
        ([stream(0, "z"), stream(0, "y"), stream(1, "a")], [(0, 1), (0, 2), (1, 2)]),
    ],
)
def test_second_stream_of_node_starts_next_attempt(
    names: list[str], expected: list[tuple[int, int]]
) -> None:
    assert found(*names) == expected


def test_existing_pod_provides_attempt() -> None:
    names = [stream(0, "z"), stream(0, "y"), stream(1, "x")]

    # Nothing was printed in the second attempt.
    assert found(*names, alive={stream(0, "y"): 3}) == [(0, 1), (0, 3), (1, 3)]


def test_job_with_same_name_prefix_is_ignored() -> None:
    names = [stream(0, "a"), "pod/job-node-2-x-node-0-0/b", "pod/job-node-x/c"]

    assert found(*names) == [(0, 1)]
