"""Which service runs a job on nodes, and what the helper asks of either."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from trainium_catalogue.contract import Orchestrator

if TYPE_CHECKING:
    from jobs.aws import LogsClient
    from jobs.batch.reasons import Explanation
    from jobs.batch.runs import Job, RunSummary, Shape
    from jobs.submit.request import JobRequest


class JobService(Protocol):
    """Where jobs go: a deployment has one or two."""

    @property
    def orchestrator(self) -> Orchestrator:
        """Which one this is."""
        ...

    @property
    def log_group(self) -> str:
        """Where the lines of its jobs are kept; empty where they go with the pods."""
        ...

    def runs(self, run: str | None = None) -> list[RunSummary]:
        """Its jobs, or those of one run, newest first."""
        ...

    def describe(self, job_id: str, shape: Shape | None = None) -> Job | None:
        """A job with its nodes; None when it is not known (any more)."""
        ...

    def logs(self, *, follow: bool) -> LogsClient:
        """Where its jobs' lines are read."""
        ...

    def payload(self, request: JobRequest) -> dict[str, Any]:
        """What ``submit`` sends, for people to read first."""
        ...

    def submit(
        self, request: JobRequest, *, earlier: set[str], sleep: Callable[[float], None]
    ) -> str:
        """Send it exactly once; returns the job's id."""
        ...

    def stop(self, summary: RunSummary, reason: str) -> None:
        """End a job."""
        ...

    def why_waiting(self, job: Job) -> Explanation | None:
        """Why a job does not start although nobody gives a reason."""
        ...

    def waits_for(self, job: Job) -> Explanation | None:
        """Which jobs have to succeed before this one begins, and how they stand."""
        ...
