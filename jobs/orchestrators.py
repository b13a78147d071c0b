"""The places where a deployment's jobs go behind one protocol, and which of them has a run."""

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
    from jobs.job import Explanation


class JobService(Protocol):
    """A place where jobs go: Batch or a cluster; a deployment has one or two."""

    @property
    def orchestrator(self) -> Orchestrator:
        """Which one this is."""
        ...

    @property
    def log_group(self) -> str:
        """Log group of its jobs' lines; empty where they go with the pods."""
        ...

    def runs(self, run: str | None = None) -> list[RunSummary]:
        """Its jobs, or those of one run, newest first."""
        ...

    def describe(self, job_id: str, shape: Shape | None = None) -> Job | None:
        """A job with its nodes; None when it is not known (any more)."""
        ...

    def logs(self, *, follow: bool) -> LogsClient:
        """Client that reads its jobs' lines."""
        ...

    def check(self, request: JobRequest) -> None:
        """Refuse a request that this place would refuse, or carry out otherwise."""
        ...

    def check_place(self, request: JobRequest, note: Callable[[str], None]) -> None:
        """Look, and refuse a job that could not begin, or whose nodes could not meet."""
        ...

    def payload(self, request: JobRequest) -> dict[str, Any]:
        """The request as ``submit`` sends it, for people to read first."""
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
        """Explain why a job does not start although nobody gives a reason."""
        ...

    def waits_for(self, job: Job) -> Explanation | None:
        """Name the jobs that have to succeed before this one begins, and how they stand."""
        ...


@dataclass(slots=True)
class Services:
    """The places that a command asks for runs: Batch first, then the cluster where there is one.

    A cluster that does not answer hides no run of Batch: that is said once, and it is not asked
    again.
    """

    services: tuple[JobService, ...]
    note: Callable[[str], None]
    """Says something to the user."""
    needed: Orchestrator = Orchestrator.BATCH
    """The place that the command cannot do without, beside Batch."""
    silent: dict[Orchestrator, Refusal] = field(default_factory=dict)
    """Refusals of places that were not asked, or did not answer."""

    def runs(self, run: str | None = None) -> Iterator[tuple[JobService, RunSummary]]:
        """The jobs of a run, or of all, place by place; a place is asked when it is its turn."""
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
        """The newest job of a run, or of all; of a named run, one that has not ended first."""
        found: list[tuple[JobService, RunSummary]] = []
        for service, summary in self.runs(run):
            if run is not None and not summary.ended:
                return service, summary  # the places after this one need not be asked
            found.append((service, summary))
        return max(found, key=lambda pair: pair[1].created_at_ms, default=None)

    def newest_first(self) -> list[RunSummary]:
        """The jobs of all places."""
        found = [summary for _, summary in self.runs()]
        return sorted(found, key=lambda summary: summary.created_at_ms, reverse=True)

    def of(self, orchestrator: Orchestrator) -> JobService:
        """The place of this kind."""
        (service,) = (item for item in self.services if item.orchestrator is orchestrator)
        return service

    def _silence(self, service: JobService, error: Exception) -> None:
        """Note that the cluster does not answer; raise where the command needs it."""
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
    """Batch, which every deployment has for its CPU jobs, and the cluster where there is one."""
    cluster = (Orchestrator.EKS,) if Orchestrator.EKS in target.orchestrators else ()
    places = (service_for(aws, target, on) for on in (Orchestrator.BATCH, *cluster))
    return Services(tuple(places), note, needed)


def service_for(
    aws: Aws, target: Deployment, orchestrator: Orchestrator, *, submits: bool = False
) -> JobService:
    """The place for a job; ``submits`` makes a client that repeats nothing by itself."""
    if orchestrator is Orchestrator.BATCH:
        return BatchService(aws, target, once=submits)
    from jobs.eks.service import EksService

    return EksService(aws, target)


def found_summary(
    services: Services, target: Deployment, run: str | None, *, others: Sequence[str] = ()
) -> tuple[JobService, RunSummary]:
    """Find the run, or the newest one when none is named; refuse when there is none.

    ``others`` may be meant as well, beside the runs that have jobs.
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
    """The refusal for a run that Batch does not know."""
    hint = f"; {did_you_mean(run, others)}" if others else ""
    return Refusal(
        "unknown-run",
        f"no run {run!r} in deployment {deployment.name!r} in {deployment.region} (a job is "
        "forgotten 7 days after its end; the log lines of Batch's stay in log group "
        f"{deployment.log_group}){hint}",
    )
