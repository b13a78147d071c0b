"""Batch as a service where jobs go: listing, submitting exactly once, stopping."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs import errors
from jobs.aws import Aws, BatchClient, LogsClient
from jobs.batch.describe import array_status, describe_job
from jobs.batch.request import (
    check_default_group,
    check_grace,
    check_length,
    submit_arguments,
)
from jobs.batch.waiting import waits_for, why_waiting
from jobs.capacity import check_block, check_quota
from jobs.deployment import Deployment
from jobs.job import Explanation, Job, JobRequest, NodeLog, RunSummary, Shape
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.workloads import Hardware

WAITS_S = (1.0, 2.0, 4.0, 8.0)
"""Pauses between attempts; ListJobs shows a new job after a moment, not at once."""


@dataclass(slots=True)
class BatchService:
    """The deployment's job queues."""

    aws: Aws
    target: Deployment
    once: bool = False
    """Use one client for all submit calls, which never retries by itself."""
    _client: BatchClient | None = None

    @property
    def orchestrator(self) -> Orchestrator:
        """Batch."""
        return Orchestrator.BATCH

    @property
    def log_group(self) -> str:
        """The deployment's log group, shared by all its jobs."""
        return self.target.log_group

    def runs(self, run: str | None = None) -> list[RunSummary]:
        """List the queues' jobs, newest first."""
        return list_runs(self._batch(), self.target.queues, run=run)

    def describe(self, job_id: str, shape: Shape | None = None) -> Job | None:
        """Describe a job with its nodes."""
        return describe_job(self._batch(), job_id, shape=shape)

    def logs(self) -> LogsClient:
        """Make a client of CloudWatch Logs."""
        return self.aws.logs()

    def find_logs(self, job: Job) -> Sequence[NodeLog]:
        """Return none: the job's description lists the streams of every attempt."""
        return ()

    def check(self, request: JobRequest) -> None:
        """Refuse what the hosts would cut short, or Batch would not accept."""
        check_grace(request)
        check_length(request)

    def check_place(self, request: JobRequest, note: Callable[[str], None]) -> None:
        """Refuse a job that would wait forever, or whose nodes could not reach each other."""
        check_quota(self.aws, self.target, request, note)
        check_block(self.aws, self._batch(), self.target, request, note)
        check_default_group(self.aws.ec2, self.target, request, note)

    def payload(self, request: JobRequest) -> dict[str, Any]:
        """Build the arguments of SubmitJob."""
        return submit_arguments(request)

    def submit(
        self, request: JobRequest, *, earlier: set[str], sleep: Callable[[float], None]
    ) -> str:
        """Call SubmitJob."""
        assert self.once
        return submit_once(request, self._batch(), earlier=earlier, sleep=sleep)

    def stop(self, summary: RunSummary, reason: str) -> None:
        """Call TerminateJob, which also cancels jobs that have not started."""
        self._batch().terminate_job(jobId=summary.job_id, reason=reason)

    def why_waiting(self, job: Job) -> Explanation | None:
        """Look at queue and compute environment."""
        return why_waiting(self._batch(), self.target, job)

    def waits_for(self, job: Job) -> Explanation | None:
        """Look at the jobs it depends on."""
        return waits_for(self._batch(), job)

    def _batch(self) -> BatchClient:
        if self._client is None:
            self._client = self.aws.batch_once() if self.once else self.aws.batch()
        return self._client


def list_runs(
    batch: BatchClient, queues: Mapping[str, Hardware], *, run: str | None = None
) -> list[RunSummary]:
    """List the queues' jobs, or those of one run; newest first."""
    # A filter returns jobs of every status; without one, Batch lists RUNNING jobs only.
    wanted = (
        {"name": "AFTER_CREATED_AT", "values": ["0"]}
        if run is None
        else {"name": "JOB_NAME", "values": [run]}
    )
    found = [
        _summary(item, hardware)
        for queue, hardware in queues.items()
        for page in _pages(batch, jobQueue=queue, filters=[wanted])
        for item in page["jobSummaryList"]
        # Batch compares names case-insensitively. The children of an array are not runs.
        if (run is None or item["jobName"] == run) and ":" not in item["jobId"]
    ]
    return sorted(found, key=lambda summary: summary.created_at_ms, reverse=True)


def _pages(batch: BatchClient, **kwargs: Any) -> Iterator[Mapping[str, Any]]:
    token: dict[str, str] = {}
    while True:
        page = batch.list_jobs(**kwargs, **token)
        yield page
        if not page.get("nextToken"):
            return
        token = {"nextToken": page["nextToken"]}


def _summary(item: Mapping[str, Any], hardware: Hardware) -> RunSummary:
    array = item.get("arrayProperties") or {}
    size = item.get("nodeProperties", {}).get("numNodes")
    if hardware is Hardware.CPU:
        size = array.get("size", 1)
    return RunSummary(
        run=item["jobName"],
        job_id=item["jobId"],
        status=array_status(item["status"], array.get("statusSummary") or {}),
        status_reason=item.get("statusReason"),
        created_at_ms=int(item.get("createdAt", 0)),
        started_at_ms=item.get("startedAt"),
        stopped_at_ms=item.get("stoppedAt"),
        num_nodes=size,
        hardware=hardware,
        exit_code=(item.get("container") or {}).get("exitCode"),
    )


def submit_once(
    request: JobRequest,
    batch: BatchClient,
    *,
    earlier: Collection[str] = (),
    sleep: Callable[[float], None],
) -> str:
    """Submit and return the job id; retry only if the last call cannot have created a job.

    ``batch`` must not retry by itself (``Aws.batch_once``). ``earlier`` holds the ids of the run's
    previous jobs.
    """
    for wait_s in WAITS_S:
        try:
            return str(batch.submit_job(**submit_arguments(request))["jobId"])
        except Exception as error:
            ambiguous = errors.is_ambiguous(error)
            if not ambiguous and not errors.is_throttled(error):
                raise
            sleep(wait_s)
            if ambiguous:
                # The answer was lost, but perhaps not the job: look before trying again.
                queue = {request.job_queue: request.hardware}
                try:
                    found = list(list_runs(batch, queue, run=request.run))
                except Exception:
                    # Its caller must know that a job may have been added.
                    raise error from None
                for summary in found:
                    if summary.job_id not in earlier:
                        return summary.job_id
    return str(batch.submit_job(**submit_arguments(request))["jobId"])
