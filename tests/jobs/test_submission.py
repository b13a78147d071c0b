"""A request creates one job, whatever fails on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError, ReadTimeoutError
from hypothesis import given
from hypothesis import strategies as st

from jobs.batch.request import submit_arguments
from jobs.batch.service import WAITS_S, submit_once
from jobs.job import JobRequest
from tests.jobs.fakes import FakeBatch, FakeClock, client_error

REQUEST = JobRequest(
    run="nightly",
    workload="all-reduce",
    num_nodes=2,
    time_limit_hours=1,
    deployment="default",
    job_queue="queue",
    job_definition="definition",
    usd_per_node_hour=1,
)

LOST = ReadTimeoutError(endpoint_url="https://batch")
THROTTLED = client_error("TooManyRequestsException", status=429)


@dataclass(slots=True)
class Flaky(FakeBatch):
    """Responds according to a story: with errors before or after the job is created."""

    story: list[str] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)

    def submit_job(self, **kwargs: Any) -> Mapping[str, Any]:
        event = self.story.pop(0) if self.story else "ok"
        if event == "throttled":
            raise THROTTLED
        if event == "lost-before":
            raise LOST
        self.jobs.append(f"job-{len(self.jobs)}")
        if event == "lost-after":
            raise LOST
        return {"jobId": self.jobs[-1]}

    def list_jobs(self, **kwargs: Any) -> Mapping[str, Any]:
        return {
            "jobSummaryList": [
                {"jobId": job, "jobName": "nightly", "status": "FAILED", "createdAt": index}
                for index, job in enumerate(self.jobs)
            ]
        }


def submit(batch: Flaky, earlier: set[str] | None = None) -> str:
    return submit_once(
        submit_arguments(REQUEST), batch, earlier=earlier or set(), sleep=batch.clock.sleep
    )


@given(st.lists(st.sampled_from(["throttled", "lost-before", "lost-after"]), max_size=len(WAITS_S)))
def test_submission_creates_exactly_one_job(story: list[str]) -> None:
    batch = Flaky(FakeClock(), story=list(story))

    job_id = submit(batch)

    assert batch.jobs == [job_id]


def test_earlier_job_of_run_is_not_mistaken_for_new_one() -> None:
    batch = Flaky(FakeClock(), story=["lost-before"], jobs=["job-old"])

    assert submit(batch, earlier={"job-old"}) == "job-1"


def test_persistent_throttling_is_an_error() -> None:
    batch = Flaky(FakeClock(), story=["throttled"] * 20)

    with pytest.raises(type(THROTTLED)):
        submit(batch)


def test_unreachable_endpoint_is_not_retried() -> None:
    class Nowhere(Flaky):
        def submit_job(self, **kwargs: Any) -> Mapping[str, Any]:
            raise EndpointConnectionError(endpoint_url="https://batch")

    batch = Nowhere(FakeClock())

    with pytest.raises(EndpointConnectionError):
        submit(batch)
    assert batch.clock.seconds == FakeClock().seconds


def test_lost_response_error_is_kept_if_jobs_cannot_be_listed() -> None:
    """The name stays held, since a job may have been added."""

    class Cut(Flaky):
        def list_jobs(self, **kwargs: Any) -> Mapping[str, Any]:
            raise EndpointConnectionError(endpoint_url="https://batch")

    with pytest.raises(ReadTimeoutError):
        submit(Cut(FakeClock(), story=["lost-after"]))
