"""Batch as a place where jobs go: multi-node jobs where it starts nodes, CPU jobs always."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jobs.aws import Aws, BatchClient, LogsClient
from jobs.batch.describe import describe_job
from jobs.batch.reasons import Explanation
from jobs.batch.runs import Job, RunSummary, Shape, list_runs
from jobs.batch.submission import submit_once
from jobs.batch.waiting import waits_for, why_waiting
from jobs.deployment import Deployment
from jobs.submit.request import JobRequest
from trainium_catalogue.contract import Orchestrator


@dataclass(slots=True)
class BatchService:
    """The deployment's job queues."""

    aws: Aws
    target: Deployment
    once: bool = False
    """Of a submission: one client for all, which never repeats a call by itself."""
    _client: BatchClient | None = None

    @property
    def orchestrator(self) -> Orchestrator:
        """Batch."""
        return Orchestrator.BATCH

    @property
    def log_group(self) -> str:
        """Of all jobs of the deployment."""
        return self.target.log_group

    def runs(self, run: str | None = None) -> list[RunSummary]:
        """Jobs of the queues, newest first."""
        return list_runs(self._batch(), self.target.queues, run=run)

    def describe(self, job_id: str, shape: Shape | None = None) -> Job | None:
        """A job with its nodes."""
        return describe_job(self._batch(), job_id, shape=shape)

    def logs(self, *, follow: bool) -> LogsClient:
        """CloudWatch Logs."""
        return self.aws.logs()

    def payload(self, request: JobRequest) -> dict[str, Any]:
        """Arguments of SubmitJob."""
        return request.to_submit_kwargs()

    def submit(
        self, request: JobRequest, *, earlier: set[str], sleep: Callable[[float], None]
    ) -> str:
        """Call SubmitJob."""
        assert self.once
        return submit_once(request, self._batch(), earlier=earlier, sleep=sleep)

    def stop(self, summary: RunSummary, reason: str) -> None:
        """Call TerminateJob, which also cancels what has not started."""
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
