"""Conversion of Batch's descriptions of a job into attempts and nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from jobs.batch.describe import describe_job
from jobs.batch.service import list_runs
from jobs.job import Job, JobKind, RunSummary, Shape
from jobs.orchestrators import JobService, Services
from tests.jobs.fakes import JOB_ID, FakeBatch, FakeClock, attempt, child, parent, scene
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.workloads import Hardware

T0 = 1_000_000.0
QUEUES = {"queue": Hardware.TRAINIUM}


def described(*nodes: Mapping[str, Any], **job: Any) -> Job:
    clock = FakeClock()
    batch = FakeBatch(
        clock, scenes=[(T0, scene(parent("FAILED", num_nodes=len(nodes), **job), *nodes))]
    )
    found = describe_job(batch, JOB_ID)
    assert found is not None
    return found


class Listing(FakeBatch):
    """A listing of three jobs on two pages."""

    def list_jobs(self, **kwargs: Any) -> Mapping[str, Any]:
        self.calls.append(("list_jobs", kwargs))
        first = [_summary("old", "nightly", 1), _summary("case", "NIGHTLY", 9)]
        second = [_summary("new", "nightly", 5), _summary("newest", "nightly", 7, "FAILED")]
        if "nextToken" in kwargs:
            return {"jobSummaryList": second}
        return {"jobSummaryList": first, "nextToken": "more"}


def _summary(job_id: str, name: str, created: int, status: str = "RUNNING") -> dict[str, Any]:
    return {"jobId": job_id, "jobName": name, "status": status, "createdAt": created}


def test_runs_are_listed_newest_first() -> None:
    found = [run.job_id for run in list_runs(Listing(FakeClock()), QUEUES, run="nightly")]

    assert found == ["newest", "new", "old"]


def test_active_job_takes_precedence_over_newer_ended_one() -> None:
    class Service:
        orchestrator = Orchestrator.BATCH

        def runs(self, run: str | None = None) -> list[RunSummary]:
            return list_runs(Listing(FakeClock()), QUEUES, run=run)

    found = Services((cast(JobService, Service()),), note=print).find("nightly")

    assert found is not None
    assert found[1].job_id == "new"


def test_batch_filters_by_name() -> None:
    batch = Listing(FakeClock())

    list_runs(batch, QUEUES, run="nightly")

    assert batch.calls[0][1]["filters"] == [{"name": "JOB_NAME", "values": ["nightly"]}]


def test_job_and_nodes_are_described_in_one_call_if_size_is_known() -> None:
    batch = FakeBatch(FakeClock(), scenes=[(T0, scene(parent("RUNNING"), child("RUNNING")))])

    describe_job(batch, JOB_ID, shape=Shape(kind=JobKind.NODES, size=2))

    assert [kwargs for _, kwargs in batch.calls] == [
        {"jobs": [JOB_ID, f"{JOB_ID}#0", f"{JOB_ID}#1"]}
    ]


def test_stream_of_running_node_is_its_next_attempt() -> None:
    first = attempt(stream="a1", exit_code=75, started_s=T0, stopped_s=T0 + 5)
    job = described(child("RUNNING", stream="a2", attempts=[first]), attempts=[first])

    assert [(a.number, a.log_stream) for a in job.nodes[0].attempts] == [(1, "a1"), (2, "a2")]


def test_attempt_listed_twice_is_counted_once() -> None:
    only = attempt(stream="a1", exit_code=0, started_s=T0, stopped_s=T0 + 5)
    job = described(child("SUCCEEDED", stream="a1", attempts=[only]), attempts=[only])

    assert len(job.nodes[0].attempts) == 1


def test_node_that_missed_an_attempt_is_numbered_by_time() -> None:
    first = attempt(stream="a1", exit_code=70, started_s=T0, stopped_s=T0 + 5)
    second = attempt(stream="a2", exit_code=0, started_s=T0 + 10, stopped_s=T0 + 20)
    late = attempt(stream="b2", exit_code=0, started_s=T0 + 11, stopped_s=T0 + 20)

    job = described(
        child("SUCCEEDED", attempts=[first, second]),
        child("SUCCEEDED", attempts=[late]),
        attempts=[first, second],
    )

    assert [a.number for a in job.nodes[1].attempts] == [2]
