"""One protocol for the services that run a deployment's jobs, and the search for a run in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from jobs.aws import Aws
from jobs.batch.service import BatchService
from jobs.deployment import Deployment
from jobs.errors import Refusal, as_refusal
from jobs.job import Job, JobKind, JobRequest, RunSummary, Shape
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.suggest import did_you_mean

if TYPE_CHECKING:
    from jobs.aws import LogsClient
    from jobs.job import Explanation, NodeLog


class JobService(Protocol):
    """A service where jobs go: Batch or a cluster. A deployment has one or two."""

    @property
    def orchestrator(self) -> Orchestrator:
        """The orchestrator behind the service."""
        ...

    @property
    def log_group(self) -> str:
        """Log group of its jobs."""
        ...

    def runs(self, run: str | None = None) -> list[RunSummary]:
        """List its jobs, or those of one run, newest first."""
        ...

    def describe(self, job_id: str, shape: Shape | None = None) -> Job | None:
        """Describe a job with its nodes; None if it is unknown or no longer known."""
        ...

    def logs(self) -> LogsClient:
        """Make the client that reads its jobs' logs."""
        ...

    def find_logs(self, job: Job) -> Sequence[NodeLog]:
        """Find log streams that the description of the job does not name."""
        ...

    def check(self, request: JobRequest) -> None:
        """Refuse a request that this service would refuse, or carry out differently."""
        ...

    def check_place(self, request: JobRequest, note: Callable[[str], None]) -> None:
        """Check the service; refuse a job that could not start, or whose nodes could not meet."""
        ...

    def payload(self, request: JobRequest) -> dict[str, Any]:
        """Return the request as ``submit`` sends it, for people to review first."""
        ...

    def submit(
        self, request: JobRequest, *, earlier: set[str], sleep: Callable[[float], None]
    ) -> str:
        """Submit the request exactly once; return the job's id."""
        ...

    def stop(self, summary: RunSummary, reason: str) -> None:
        """End a job."""
        ...

    def why_waiting(self, job: Job) -> Explanation | None:
        """Explain why a job does not start if nothing gives a reason."""
        ...

    def waits_for(self, job: Job) -> Explanation | None:
        """Name the jobs that have to succeed before this one starts, and their states."""
        ...


@dataclass(slots=True)
class Services:
    """The services that a command searches for runs: Batch first, then the cluster if there is one.

    A cluster that does not answer must not hide Batch's runs: it is reported once and not asked
    again.
    """

    services: tuple[JobService, ...]
    note: Callable[[str], None]
    """Prints a note to the user."""
    needed: Orchestrator = Orchestrator.BATCH
    """The orchestrator, other than Batch, that the command cannot do without."""
    silent: dict[Orchestrator, Refusal] = field(default_factory=dict)
    """Refusals of services that were skipped or did not answer."""

    def runs(self, run: str | None = None) -> Iterator[tuple[JobService, RunSummary]]:
        """Yield the jobs of a run, or of all runs; each service is asked when its turn comes."""
        for service in self.services:
            if service.orchestrator in self.silent:
                continue
            try:
                found = service.runs(run)
            except Exception as error:
                self._silence(service, error)
                continue
            for summary in found:
                yield service, summary

    def find(self, run: str | None = None) -> tuple[JobService, RunSummary] | None:
        """Find the newest job of a run, or of all; for a named run, prefer an unfinished one."""
        found: list[tuple[JobService, RunSummary]] = []
        for service, summary in self.runs(run):
            if run is not None and not summary.ended:
                return service, summary  # the remaining services need not be asked
            found.append((service, summary))
        return max(found, key=lambda pair: pair[1].created_at_ms, default=None)

    def newest_first(self) -> list[RunSummary]:
        """List the jobs of all services, newest first."""
        found = [summary for _, summary in self.runs()]
        return sorted(found, key=lambda summary: summary.created_at_ms, reverse=True)

    def of(self, orchestrator: Orchestrator) -> JobService:
        """Return the service of this kind."""
        (service,) = (item for item in self.services if item.orchestrator is orchestrator)
        return service

    def _silence(self, service: JobService, error: Exception) -> None:
        """Note that the cluster does not answer; raise if the command needs it."""
        refusal = as_refusal(error, region=None)
        if refusal is None or service.orchestrator in (Orchestrator.BATCH, self.needed):
            raise error
        self.silent[service.orchestrator] = refusal
        self.note(f"jobs on the cluster are not known: {refusal.message}")


def services_of(
    aws: Aws,
    target: Deployment,
    note: Callable[[str], None],
    *,
    needed: Orchestrator = Orchestrator.BATCH,
) -> Services:
    """Return Batch, which every deployment has for CPU jobs, and the cluster if there is one."""
    cluster = (Orchestrator.EKS,) if Orchestrator.EKS in target.orchestrators else ()
    places = (service_for(aws, target, on) for on in (Orchestrator.BATCH, *cluster))
    return Services(tuple(places), note, needed)


def service_for(
    aws: Aws, target: Deployment, orchestrator: Orchestrator, *, submits: bool = False
) -> JobService:
    """Return the service for a job; ``submits`` makes a client that retries nothing by itself."""
    if orchestrator is Orchestrator.BATCH:
        return BatchService(aws, target, once=submits)
    from jobs.eks.service import EksService

    return EksService(aws, target)


def found_summary(
    services: Services, target: Deployment, run: str | None, *, others: Sequence[str] = ()
) -> tuple[JobService, RunSummary]:
    """Find the run, or the newest one if none is named; refuse if there is none.

    ``others`` are further names that may have been meant, besides the runs with jobs.
    """
    found = services.find(run)
    if found is not None:
        return found
    for refusal in services.silent.values():
        what = "no run" if run is None else f"no run {run!r}"
        raise Refusal(refusal.code, f"{what} on Batch, and of the cluster: {refusal.message}")
    if run is not None:
        there = {summary.run for _, summary in services.runs()}
        raise unknown_run(run, sorted(there | set(others)), target)
    raise Refusal(
        "no-runs",
        f"no runs in deployment {target.name!r} in {target.region}; submit one with "
        "`python -m jobs submit all-reduce --nodes 2`",
    )


def found_job(services: Services, target: Deployment, run: str | None) -> tuple[JobService, Job]:
    """Find the run and read its job with its nodes."""
    service, summary = found_summary(services, target, run)
    job = service.describe(summary.job_id, summary.shape)
    if job is None:
        raise unknown_run(summary.run, (), target)
    return service, job


def check_node_index(node: int | None, shape: Shape) -> None:
    """Refuse a node, or child of an array job, that the job does not have."""
    if node is not None and not 0 <= node < shape.size:
        last = shape.size - 1
        parts = "children" if shape.kind is JobKind.ARRAY else "nodes"
        have = "only node 0" if last == 0 else f"{parts} 0 to {last}"
        raise Refusal("no-such-node", f"--node {node}: the run has {have}; choose one of them")


def unknown_run(run: str, others: Sequence[str], deployment: Deployment) -> Refusal:
    """Make the refusal for a run that no service knows."""
    hint = f"; {did_you_mean(run, others)}" if others else ""
    return Refusal(
        "unknown-run",
        f"no run {run!r} in deployment {deployment.name!r} in {deployment.region} (a job is "
        "forgotten 7 days after its end; its log lines stay in log group "
        f"{deployment.log_group}){hint}",
    )
