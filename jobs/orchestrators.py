"""Common protocol of the services that run a deployment's jobs, and the search for runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from jobs.aws import Aws
from jobs.batch.service import BatchService
from jobs.batch.zones import ended_recently
from jobs.deployment import Deployment
from jobs.errors import Refusal, as_refusal
from jobs.job import Job, JobKind, JobRequest, RunSummary, Shape
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.suggest import did_you_mean

if TYPE_CHECKING:
    from jobs.aws import LogsClient
    from jobs.job import Explanation, NodeLog, ZonePosition


class JobService(Protocol):
    """A service that runs jobs: Batch or a cluster. A deployment has one or both."""

    @property
    def orchestrator(self) -> Orchestrator:
        """The orchestrator of the service."""
        ...

    @property
    def log_group(self) -> str:
        """Log group of the jobs."""
        ...

    def runs(self, run: str | None = None) -> list[RunSummary]:
        """List all jobs, or those of one run, newest first."""
        ...

    def describe(self, job_id: str, shape: Shape | None = None) -> Job | None:
        """Describe a job with its nodes; None if it is unknown."""
        ...

    def logs(self) -> LogsClient:
        """Return the client for the jobs' logs."""
        ...

    def find_logs(self, job: Job, nodes: Collection[int] | None = None) -> Sequence[NodeLog]:
        """Find log streams that the job's description lacks, of all nodes or of ``nodes``."""
        ...

    def check(self, request: JobRequest) -> None:
        """Refuse a request that this service would reject or execute differently."""
        ...

    def check_place(self, request: JobRequest, note: Callable[[str], None]) -> None:
        """Refuse a job that could not start, or whose nodes could not reach each other."""
        ...

    def payload(self, request: JobRequest) -> dict[str, Any]:
        """Return the request as ``submit`` sends it, for review."""
        ...

    def submit(
        self, request: JobRequest, *, earlier: set[str], sleep: Callable[[float], None]
    ) -> str:
        """Submit the request exactly once; return the job's id.

        Args:
            request: The request.
            earlier: Ids of the run's previous jobs.
            sleep: Waits between attempts, as ``time.sleep`` does.
        """
        ...

    def stop(self, summary: RunSummary, reason: str) -> None:
        """Stop a job."""
        ...

    def why_waiting(self, job: Job) -> Explanation | None:
        """Explain why a job does not start if its status gives no reason."""
        ...

    def zone(self, job: Job) -> ZonePosition | None:
        """Return the job's zone and the next one; None with a single zone."""
        ...

    def is_moving(self, job: Job) -> bool:
        """Return whether a job ended only to be resubmitted in another zone."""
        ...

    def waits_for(self, job: Job) -> Explanation | None:
        """Name the jobs that must succeed before this one starts; None if there are none."""
        ...


@dataclass(slots=True)
class Services:
    """The services that a command searches for runs: Batch, then the cluster if there is one.

    An unresponsive cluster must not hide Batch's runs: it is reported once and skipped from then
    on.
    """

    services: tuple[JobService, ...]
    note: Callable[[str], None]
    """Prints a note to the user."""
    needed: Orchestrator = Orchestrator.BATCH
    """Orchestrator that the command requires, in addition to Batch."""
    silent: dict[Orchestrator, Refusal] = field(default_factory=dict)
    """Refusals of services that were skipped or did not respond."""

    def runs(self, run: str | None = None) -> Iterator[tuple[JobService, RunSummary]]:
        """Yield the jobs of a run, or of all runs, querying each service lazily."""
        for service in self.services:
            if service.orchestrator in self.silent:
                continue
            try:
                summaries = service.runs(run)
            except Exception as error:
                self._silence(service, error)
                continue
            for summary in summaries:
                yield service, summary

    def find(self, run: str | None = None) -> tuple[JobService, RunSummary] | None:
        """Find the newest job of a run, or of all; prefer an unfinished job of a named run."""
        candidates: list[tuple[JobService, RunSummary]] = []
        for service, summary in self.runs(run):
            if run is not None and not summary.ended:
                return service, summary  # no need to query the remaining services
            candidates.append((service, summary))
        return max(candidates, key=lambda pair: pair[1].created_at_ms, default=None)

    def newest_first(self) -> list[RunSummary]:
        """List the jobs of all services, newest first."""
        summaries = [summary for _, summary in self.runs()]
        return sorted(summaries, key=lambda summary: summary.created_at_ms, reverse=True)

    def of(self, orchestrator: Orchestrator) -> JobService:
        """Return the service of an orchestrator."""
        (service,) = (item for item in self.services if item.orchestrator is orchestrator)
        return service

    def _silence(self, service: JobService, error: Exception) -> None:
        """Note that the cluster did not respond; re-raise if the command requires it."""
        refusal = as_refusal(error, region=None)
        if refusal is None or service.orchestrator in (Orchestrator.BATCH, self.needed):
            raise error
        self.silent[service.orchestrator] = refusal
        self.note(f"the cluster's jobs could not be listed: {refusal.message}")


def services_of(
    aws: Aws,
    target: Deployment,
    note: Callable[[str], None],
    *,
    needed: Orchestrator = Orchestrator.BATCH,
) -> Services:
    """Return Batch, which every deployment has for CPU jobs, and the cluster if there is one."""
    cluster = (Orchestrator.EKS,) if Orchestrator.EKS in target.orchestrators else ()
    services = (service_for(aws, target, each) for each in (Orchestrator.BATCH, *cluster))
    return Services(tuple(services), note, needed)


def service_for(
    aws: Aws, target: Deployment, orchestrator: Orchestrator, *, submits: bool = False
) -> JobService:
    """Return the service of an orchestrator; with ``submits``, Batch's client never retries."""
    if orchestrator is Orchestrator.BATCH:
        return BatchService(aws, target, once=submits)
    from jobs.eks.service import EksService

    return EksService(aws, target)


def find_summary(
    services: Services, target: Deployment, run: str | None, *, others: Sequence[str] = ()
) -> tuple[JobService, RunSummary]:
    """Find the run, or the newest one if none is named; refuse if there is none.

    ``others`` are further candidates for "did you mean", in addition to the runs with jobs.
    """
    newest = services.find(run)
    if newest is not None:
        return newest
    for refusal in services.silent.values():
        what = "no run" if run is None else f"no run {run!r}"
        raise Refusal(
            refusal.code, (f"{what} on Batch, and the cluster could not be read: {refusal.message}")
        )
    if run is not None:
        known = {summary.run for _, summary in services.runs()}
        raise unknown_run(run, sorted(known | set(others)), target)
    raise Refusal(
        "no-runs",
        f"no runs in deployment {target.name!r} in {target.region}; submit one with "
        "`python -m jobs submit all-reduce --nodes 2`",
    )


def find_job(services: Services, target: Deployment, run: str | None) -> tuple[JobService, Job]:
    """Find the run, and describe its newest job with its nodes."""
    service, summary = find_summary(services, target, run)
    job = service.describe(summary.job_id, summary.shape)
    if job is None:
        raise unknown_run(summary.run, (), target)
    return service, job


def is_moving(service: JobService, summary: RunSummary) -> bool:
    """Return whether the newest job of a run is about to be resubmitted in another zone."""
    if summary.zone is None or summary.status != "FAILED" or not ended_recently(summary):
        return False
    job = service.describe(summary.job_id, summary.shape)
    return job is not None and service.is_moving(job)


def check_node_index(node: int | None, shape: Shape) -> None:
    """Refuse a node, or child of an array job, that the job does not have."""
    if node is not None and not 0 <= node < shape.size:
        last = shape.size - 1
        parts = "children" if shape.kind is JobKind.ARRAY else "nodes"
        have = "only node 0" if last == 0 else f"{parts} 0 to {last}"
        remedy = "omit --node" if last == 0 else "specify one of them"
        raise Refusal("no-such-node", f"--node {node}: the run has {have}; {remedy}")


def unknown_run(run: str, others: Sequence[str], deployment: Deployment) -> Refusal:
    """Build the refusal for a run that no service has."""
    hint = f"; {did_you_mean(run, others)}" if others else ""
    return Refusal(
        "unknown-run",
        f"no run {run!r} in deployment {deployment.name!r} in {deployment.region} (jobs are "
        "deleted 7 days after they end; their logs remain in log group "
        f"{deployment.log_group}){hint}",
    )
