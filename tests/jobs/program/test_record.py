"""The record of a run's submissions, with concurrent writers."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.bucket.objects import Bucket
from jobs.errors import Refusal
from jobs.program.record import Submitted, add_record, read_record
from tests.jobs.conftest import Cli
from tests.jobs.test_untrusted_keys import bucket_of


@pytest.fixture
def bucket(cli: Cli) -> Bucket:
    return bucket_of(cli)


def submission(code: str) -> Submitted:
    return Submitted(
        submitted_at="2026-11-22T12:00:00Z",
        code=code,
        script="train.py",
        module=None,
        argv=(),
        num_nodes=1,
    )


def overtaken(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Add another submission just before each of the next puts."""
    put, left = bucket.client.put_object, iter(range(times))

    def put_object(**wanted: Any) -> Any:
        if (number := next(left, None)) is not None:
            text = bucket.read(wanted["Key"])
            monkeypatch.setattr(bucket.client, "put_object", put)
            add_record(bucket, "x", submission(f"other-{number}"))
            monkeypatch.setattr(bucket.client, "put_object", put_object)
            assert text != bucket.read(wanted["Key"])
        return put(**wanted)

    monkeypatch.setattr(bucket.client, "put_object", put_object)


@pytest.mark.parametrize("first", [True, False])
def test_concurrent_submissions_are_both_recorded(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    if not first:
        add_record(bucket, "x", submission("before"))
    overtaken(bucket, monkeypatch, times=1)

    add_record(bucket, "x", submission("mine"))

    codes = [item.code for item in read_record(bucket, "x")]
    assert codes == [*([] if first else ["before"]), "other-0", "mine"]


def test_record_replaced_by_others_repeatedly_is_refused(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    overtaken(bucket, monkeypatch, times=99)

    with pytest.raises(Refusal, match="was replaced by other submissions 5 times"):
        add_record(bucket, "x", submission("mine"))
