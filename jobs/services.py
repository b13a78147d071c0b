"""The places where a deployment's jobs go, and which one has a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from jobs.aws import Aws
from jobs.batch.runs import RunSummary
from jobs.batch.service import BatchService
from jobs.deployment import Deployment
from jobs.errors import Refusal, as_refusal
from jobs.orchestrators import JobService
from trainium_catalogue.contract import Orchestrator


@dataclass(slots=True)
class Services:
    """What a command asks for runs: Batch first, then the cluster where there is one.

    A cluster that does not answer hides no run of Batch: that is said once, and it is not asked
    again.
    """

    services: tuple[JobService, ...]
    note: Callable[[str], None]
    """Says something to the user."""
    needed: Orchestrator = Orchestrator.BATCH
    """The place that the command cannot do without, beside Batch."""
    silent: dict[Orchestrator, Refusal] = field(default_factory=dict)
    """Why a place was not asked, or did not answer."""

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
