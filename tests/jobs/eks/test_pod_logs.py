"""Lines of a pod's log: each once, however often the log is opened."""

from typing import Any, cast

import pytest
from kubernetes.client.exceptions import ApiException

from jobs.eks.cluster import Cluster
from jobs.eks.pod_logs import PodLogs, _Tail

FIRST, SECOND = "2026-11-21T12:00:00.000000001Z", "2026-11-21T12:00:00.000000002Z"


def read(*connections: list[str]) -> list[str]:
    tail = _Tail()
    for lines in connections:
        tail.reopen()
        for line in lines:
            tail.take(line)
    return [line["message"] for line in tail.lines]


def test_lines_of_the_same_moment_are_all_there() -> None:
    assert read([f"{FIRST} a", f"{FIRST} b", f"{SECOND} c", f"{SECOND} c"]) == ["a", "b", "c", "c"]


def test_a_log_that_is_opened_again_goes_on_where_it_was() -> None:
    begun = [f"{FIRST} a", f"{SECOND} b"]

    assert read(begun, [*begun, f"{SECOND} c"]) == ["a", "b", "c"]


def test_a_log_whose_beginning_was_rotated_away_goes_on_as_well() -> None:
    assert read([f"{FIRST} a"], [f"{SECOND} b"]) == ["a", "b"]


class Broken:
    """A cluster one of whose nodes is gone, or that lets nobody read logs."""

    def __init__(self, status: int) -> None:
        self.status = status

    def get(self, path: str) -> dict[str, Any]:
        return {"metadata": {"uid": "7"}, "status": {}}

    def open(self, *_: Any, **__: Any) -> Any:
        error = ApiException(status=self.status)
        error.body = '{"message": "dial tcp 10.0.1.5:10250: i/o timeout"}'
        raise error


def test_a_node_that_does_not_answer_hides_no_other_nodes_lines() -> None:
    logs = PodLogs(cast(Cluster, Broken(500)), follow=False)
    (line,) = logs.get_log_events(logStreamName="pod/7")["events"]

    assert line["message"] == (
        "(the log cannot be read: the cluster refuses: dial tcp 10.0.1.5:10250: i/o timeout)"
    )


def test_logs_that_may_not_be_read_are_a_refusal() -> None:
    with pytest.raises(ApiException):
        PodLogs(cast(Cluster, Broken(403)), follow=False).get_log_events(logStreamName="pod/7")
