"""Concurrent submissions of one name: one holds it, the other ends without a job."""

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

from jobs.bucket.name_hold import hold_name
from jobs.bucket.objects import Bucket
from jobs.errors import Refusal
from jobs.program import bundle
from jobs.submit.choose import Submission
from tests.jobs.conftest import ACCOUNT, REGION, Cli
from tests.jobs.programs import record, running, snapshot, submitted
from tests.training.checkpoint.faulty import Fault, faulty_proxy, first_time
from trainium_catalogue import contract

KEY = contract.run_key("x", contract.RUN_SUBMISSION)
UPLOAD = "jobs.program.bundle.upload"


def holder(**fields: Any) -> dict[str, Any]:
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return {"by": "ana@laptop", "at": at, "job_id": None, "ended": False} | fields


def age(minutes: float) -> None:
    """Backdate the hold of the name in the bucket."""
    found = s3_backends[ACCOUNT]["aws"].get_object("bucket", KEY)
    assert found is not None
    found.last_modified -= timedelta(minutes=minutes)


def held_by(cli: Cli) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cli.read(KEY))
    return found


def assert_held(result: Result) -> None:
    """Check for a refusal after the plan was shown."""
    assert result.exit_code == 2, (result.stderr, result.exception)
    refusal = result.stderr.splitlines()[-1]
    assert refusal.startswith("refused: run x is being submitted twice at the same time")


def test_job_missing_from_list_is_not_submitted_again(cli: Cli, program: Path) -> None:
    cli.put(KEY, holder(job_id="1234-5678"))

    result = cli.run("submit", "./train.py", "--name", "x", "--yes")

    assert_held(result)
    assert "ana@laptop submitted job 1234-5678" in result.stderr
    assert cli.jobs("x") == []
    assert cli.keys("runs/x/") == [KEY], "nothing of the second one's is in the bucket"


@pytest.mark.parametrize("minutes", [0, 6])
def test_job_submitted_while_user_reads_plan_is_detected(
    cli: Cli, program: Path, monkeypatch: pytest.MonkeyPatch, minutes: float
) -> None:
    def read_slowly(submission: Submission) -> None:
        submitted(cli, "./train.py", "--name", "x", "--", "--epochs", "3")
        running(cli)
        age(minutes)
        object.__setattr__(submission, "listed_at", submission.listed_at - 60 * minutes)

    monkeypatch.setattr("jobs.commands.submit.ask", read_slowly)
    result = cli.run("submit", "./train.py", "--name", "x")

    assert_held(result)
    assert len(cli.jobs("x")) == len(record(cli)) == 1


@pytest.mark.parametrize(
    ("found", "minutes"),
    [
        (holder(ended=True), 0),
        (holder(), 6),
        (holder(job_id="1234-5678"), 6),
        ({"by": "something else"}, 0),
    ],
)
def test_expired_hold_is_released(
    cli: Cli, program: Path, found: dict[str, Any], minutes: float
) -> None:
    cli.put(KEY, found)
    age(minutes)

    submitted(cli, "./train.py", "--name", "x")

    assert len(cli.jobs("x")) == 1


def test_submitter_with_wrong_clock_holds_name(cli: Cli, program: Path) -> None:
    at = (datetime.now(UTC) - timedelta(minutes=10)).isoformat(timespec="seconds")
    cli.put(KEY, holder(at=at))

    assert_held(cli.run("submit", "./train.py", "--name", "x", "--yes"))
    assert cli.jobs("x") == []


def test_submission_outlasting_its_hold_adds_no_second_job(
    cli: Cli, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = contract.run_prefix("x", "snapshots")
    for number in (1, 2):
        cli.put(f"{prefix}{number:08d}.json", snapshot(number, 1))
    before, upload = cli.keys(prefix), bundle.upload

    def upload_slowly(*words: Any) -> bool:
        monkeypatch.setattr(UPLOAD, upload)
        age(6)
        submitted(cli, "./train.py", "--name", "x")
        return upload(*words)

    monkeypatch.setattr(UPLOAD, upload_slowly)
    words = ("./train.py", "--name", "x", "--yes", "--from-snapshot", "1")
    result = cli.run("submit", *words)

    assert_held(result)
    (job,) = cli.jobs("x")
    assert f"submitted job {job['jobId']}" in result.stderr
    assert held_by(cli)["job_id"] == job["jobId"], "the first one has not written over it"
    assert cli.keys(prefix) == before, "the first one has not gone back"


@pytest.mark.parametrize(
    "error", [ReadTimeoutError(endpoint_url="https://batch"), KeyboardInterrupt()]
)
def test_name_of_ambiguous_submission_stays_held(
    cli: Cli, program: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def lose_the_answer(*_: object, **__: object) -> str:
        raise error

    with monkeypatch.context() as failing:
        failing.setattr("jobs.submit.send._send", lose_the_answer)
        assert cli.run("submit", "./train.py", "--name", "x", "--yes").exit_code != 0

    assert_held(cli.run("submit", "./train.py", "--name", "x", "--yes"))


def test_interrupted_upload_releases_name(
    cli: Cli, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as failing:
        failing.setattr(UPLOAD, interrupt)
        assert cli.run("submit", "./train.py", "--name", "x", "--yes").exit_code != 0

    submitted(cli, "./train.py", "--name", "x")


def test_retried_put_with_lost_response_is_not_a_conflict(cli: Cli, endpoint: str) -> None:
    with faulty_proxy(endpoint) as proxy:
        proxy.plan = first_time(Fault.LOST_ANSWER)
        client = boto3.client("s3", region_name=REGION, endpoint_url=proxy.url)
        bucket = Bucket(client=client, name="bucket")
        with hold_name(bucket, "lossy", known=()) as hold:
            hold.renew()

    assert proxy.injected


def test_holder_records_job_and_same_user_may_submit_again(cli: Cli, program: Path) -> None:
    submitted(cli, "./train.py", "--name", "x")

    assert held_by(cli)["job_id"] == cli.jobs("x")[0]["jobId"]
    submitted(cli, "./train.py", "--name", "x")
    assert len(cli.jobs("x")) == 2


def test_failed_submission_releases_name(
    cli: Cli, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object, **__: object) -> str:
        raise Refusal("quota", "no room")

    with monkeypatch.context() as failing:
        failing.setattr("jobs.submit.send._send", no_room)
        assert cli.run("submit", "./train.py", "--name", "x", "--yes").exit_code == 2

    submitted(cli, "./train.py", "--name", "x")
    assert len(cli.jobs("x")) == 1
