"""Two submissions of one name at the same time: one holds it, the other ends without a job."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from jobs.bucket.objects import Bucket
from jobs.errors import Refusal
from jobs.submit.hold import hold_name
from tests.jobs.conftest import Desk
from tests.jobs.programs import record, running, submitted
from trainium_catalogue import contract

KEY = contract.run_key("x", contract.RUN_SUBMISSION)
RACES, RACERS = 25, 4


def holder(*, age: timedelta = timedelta(0), **fields: Any) -> dict[str, Any]:
    at = (datetime.now(UTC) - age).isoformat(timespec="seconds")
    return {"by": "ana@desk", "at": at, "job_id": None, "ended": False} | fields


def assert_held(result: Result) -> None:
    """The plan was shown before."""
    assert result.exit_code == 2, (result.stderr, result.exception)
    refusal = result.stderr.splitlines()[-1]
    assert refusal.startswith("refused: run x is being submitted twice at the same time")


def test_of_submissions_at_the_same_time_one_wins(desk: Desk) -> None:
    for race in range(RACES):
        won: list[int] = []
        refused: list[str] = []
        barrier = threading.Barrier(RACERS)

        def submit(
            racer: int,
            run: str = f"race-{race}",
            barrier: threading.Barrier = barrier,
            won: list[int] = won,
            refused: list[str] = refused,
        ) -> None:
            bucket = Bucket(client=desk.client("s3"), name="bucket")
            barrier.wait()
            try:
                with hold_name(bucket, run, known=()) as mine:
                    won.append(racer)
                    mine.job_id = f"job-{racer}"
            except Refusal as refusal:
                refused.append(str(refusal))

        threads = [threading.Thread(target=submit, args=(racer,)) for racer in range(RACERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert (len(won), len(refused)) == (1, RACERS - 1), race


def test_a_job_that_is_missing_in_the_list_is_not_submitted_again(
    desk: Desk, program: Path
) -> None:
    desk.put(KEY, holder(job_id="1234-5678"))

    result = desk.run("submit", "./train.py", "--name", "x", "--yes")

    assert_held(result)
    assert "ana@desk submitted job 1234-5678" in result.stderr
    assert desk.jobs("x") == []
    assert desk.keys("runs/x/") == [KEY], "nothing of the second one's is in the bucket"


def test_a_job_that_was_submitted_while_the_user_read_the_plan_is_seen(
    desk: Desk, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_slowly(submission: object) -> None:
        submitted(desk, "./train.py", "--name", "x", "--", "--epochs", "3")
        running(desk)

    monkeypatch.setattr("jobs.commands.submit.ask", read_slowly)
    result = desk.run("submit", "./train.py", "--name", "x")

    assert_held(result)
    assert len(desk.jobs("x")) == len(record(desk)) == 1


@pytest.mark.parametrize(
    "found",
    [
        # Made when the test runs: an age is counted from then.
        lambda: holder(ended=True),
        lambda: holder(age=timedelta(minutes=6)),
        lambda: holder(age=timedelta(minutes=-6)),
        lambda: holder(age=timedelta(minutes=6), job_id="1234-5678"),
        lambda: {"by": "something else"},
        dict,
    ],
)
def test_a_name_that_nobody_holds_any_more_is_free(
    desk: Desk, program: Path, found: Callable[[], dict[str, Any]]
) -> None:
    desk.put(KEY, found())

    submitted(desk, "./train.py", "--name", "x")

    assert len(desk.jobs("x")) == 1


def test_the_holder_names_its_job_and_the_same_user_may_submit_the_next(
    desk: Desk, program: Path
) -> None:
    submitted(desk, "./train.py", "--name", "x")
    first = json.loads(desk.client("s3").get_object(Bucket="bucket", Key=KEY)["Body"].read())

    assert first["job_id"] == desk.jobs("x")[0]["jobId"]
    submitted(desk, "./train.py", "--name", "x")
    assert len(desk.jobs("x")) == 2


def test_a_submission_that_fails_gives_the_name_back(
    desk: Desk, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object, **__: object) -> str:
        raise Refusal("quota", "no room")

    with monkeypatch.context() as failing:
        failing.setattr("jobs.submit.send._send", no_room)
        assert desk.run("submit", "./train.py", "--name", "x", "--yes").exit_code == 2

    submitted(desk, "./train.py", "--name", "x")
    assert len(desk.jobs("x")) == 1
