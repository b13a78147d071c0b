"""Two submissions of one name at the same time: one holds it, the other ends without a job."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ReadTimeoutError
from moto.s3.models import s3_backends
from typer.testing import Result

from jobs.bucket.objects import Bucket
from jobs.errors import Refusal
from jobs.program import bundle
from jobs.submit.choose import Submission
from jobs.submit.hold import hold_name
from tests.jobs.conftest import ACCOUNT, REGION, Desk
from tests.jobs.programs import record, running, snapshot, submitted
from tests.training.checkpoint.faulty import Fault, faulty_proxy, first_time
from trainium_catalogue import contract

KEY = contract.run_key("x", contract.RUN_SUBMISSION)
UPLOAD = "jobs.program.bundle.upload"


def holder(**fields: Any) -> dict[str, Any]:
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return {"by": "ana@desk", "at": at, "job_id": None, "ended": False} | fields


def age(minutes: float) -> None:
    """Have the bucket say that the name was taken some time ago."""
    found = s3_backends[ACCOUNT]["aws"].get_object("bucket", KEY)
    assert found is not None
    found.last_modified -= timedelta(minutes=minutes)


def held_by(desk: Desk) -> dict[str, Any]:
    body = desk.client("s3").get_object(Bucket="bucket", Key=KEY)["Body"].read()
    found: dict[str, Any] = json.loads(body)
    return found


def assert_held(result: Result) -> None:
    """The plan was shown before."""
    assert result.exit_code == 2, (result.stderr, result.exception)
    refusal = result.stderr.splitlines()[-1]
    assert refusal.startswith("refused: run x is being submitted twice at the same time")


def test_a_job_that_is_missing_in_the_list_is_not_submitted_again(
    desk: Desk, program: Path
) -> None:
    desk.put(KEY, holder(job_id="1234-5678"))

    result = desk.run("submit", "./train.py", "--name", "x", "--yes")

    assert_held(result)
    assert "ana@desk submitted job 1234-5678" in result.stderr
    assert desk.jobs("x") == []
    assert desk.keys("runs/x/") == [KEY], "nothing of the second one's is in the bucket"


@pytest.mark.parametrize("minutes", [0, 6])
def test_a_job_that_was_submitted_while_the_user_read_the_plan_is_seen(
    desk: Desk, program: Path, monkeypatch: pytest.MonkeyPatch, minutes: float
) -> None:
    def read_slowly(submission: Submission) -> None:
        submitted(desk, "./train.py", "--name", "x", "--", "--epochs", "3")
        running(desk)
        age(minutes)
        object.__setattr__(submission, "listed_at", submission.listed_at - 60 * minutes)

    monkeypatch.setattr("jobs.commands.submit.ask", read_slowly)
    result = desk.run("submit", "./train.py", "--name", "x")

    assert_held(result)
    assert len(desk.jobs("x")) == len(record(desk)) == 1


@pytest.mark.parametrize(
    ("found", "minutes"),
    [
        (holder(ended=True), 0),
        (holder(), 6),
        (holder(job_id="1234-5678"), 6),
        ({"by": "something else"}, 0),
        ({}, 0),
    ],
)
def test_a_name_that_nobody_holds_any_more_is_free(
    desk: Desk, program: Path, found: dict[str, Any], minutes: float
) -> None:
    desk.put(KEY, found)
    age(minutes)

    submitted(desk, "./train.py", "--name", "x")

    assert len(desk.jobs("x")) == 1


@pytest.mark.parametrize("minutes", [-10, 10])
def test_a_submitter_whose_clock_is_wrong_holds_the_name_as_well(
    desk: Desk, program: Path, minutes: float
) -> None:
    at = (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat(timespec="seconds")
    desk.put(KEY, holder(at=at))

    assert_held(desk.run("submit", "./train.py", "--name", "x", "--yes"))
    assert desk.jobs("x") == []


def test_a_submission_that_took_longer_than_it_holds_the_name_adds_no_second_job(
    desk: Desk, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = contract.run_prefix("x", "snapshots")
    for number in (1, 2):
        desk.put(f"{prefix}{number:08d}.json", snapshot(number, 1))
    before, upload = desk.keys(prefix), bundle.upload

    def upload_slowly(*words: Any) -> bool:
        monkeypatch.setattr(UPLOAD, upload)
        age(6)
        submitted(desk, "./train.py", "--name", "x")
        return upload(*words)

    monkeypatch.setattr(UPLOAD, upload_slowly)
    words = ("./train.py", "--name", "x", "--yes", "--from-snapshot", "1")
    result = desk.run("submit", *words)

    assert_held(result)
    (job,) = desk.jobs("x")
    assert f"submitted job {job['jobId']}" in result.stderr
    assert held_by(desk)["job_id"] == job["jobId"], "the first one has not written over it"
    assert desk.keys(prefix) == before, "the first one has not gone back"


@pytest.mark.parametrize(
    "error", [ReadTimeoutError(endpoint_url="https://batch"), KeyboardInterrupt()]
)
def test_a_name_whose_submission_may_have_come_through_stays_held(
    desk: Desk, program: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def lose_the_answer(*_: object, **__: object) -> str:
        raise error

    with monkeypatch.context() as failing:
        failing.setattr("jobs.submit.send._send", lose_the_answer)
        assert desk.run("submit", "./train.py", "--name", "x", "--yes").exit_code != 0

    assert_held(desk.run("submit", "./train.py", "--name", "x", "--yes"))


def test_an_interrupted_upload_gives_the_name_back(
    desk: Desk, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as failing:
        failing.setattr(UPLOAD, interrupt)
        assert desk.run("submit", "./train.py", "--name", "x", "--yes").exit_code != 0

    submitted(desk, "./train.py", "--name", "x")


def test_a_repeated_put_whose_first_answer_was_lost_is_no_other_submission(
    desk: Desk, endpoint: str
) -> None:
    with faulty_proxy(endpoint) as proxy:
        proxy.plan = first_time(Fault.LOST_ANSWER)
        client = boto3.client("s3", region_name=REGION, endpoint_url=proxy.url)
        bucket = Bucket(client=client, name="bucket")
        with hold_name(bucket, "lossy", known=()) as hold:
            hold.renew()

    assert proxy.injected


def test_the_holder_names_its_job_and_the_same_user_may_submit_the_next(
    desk: Desk, program: Path
) -> None:
    submitted(desk, "./train.py", "--name", "x")

    assert held_by(desk)["job_id"] == desk.jobs("x")[0]["jobId"]
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
