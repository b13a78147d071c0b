"""Lines of a pod's log: each once, however often the log is opened."""

from jobs.eks.pod_logs import _Tail

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
