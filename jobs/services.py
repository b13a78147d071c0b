"""The places where a deployment's jobs go, and which one has a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jobs.aws import Aws
from jobs.batch_service import BatchService
from jobs.deployment import Deployment
from jobs.errors import Refusal
from jobs.orchestrators import JobService, Orchestrator
from jobs.runs import RunSummary


def services_of(aws: Aws, target: Deployment) -> list[JobService]:
    """Batch, which every deployment has for its CPU jobs, and the cluster where there is one."""
    return [service_for(aws, target, on) for on in (Orchestrator.BATCH, *_others(target))]


def service_for(
    aws: Aws, target: Deployment, orchestrator: Orchestrator, *, submits: bool = False
) -> JobService:
    """The place for a job; ``submits`` makes a client that repeats nothing by itself."""
    if orchestrator is Orchestrator.BATCH:
        return BatchService(aws, target, once=submits)
    from jobs.eks.service import EksService

    return EksService(aws, target)


def find_run(
    services: Sequence[JobService], run: str | None = None
) -> tuple[JobService, RunSummary] | None:
    """The newest job of a run, or of all; of a named run, one that has not ended comes first."""
    found: list[tuple[JobService, RunSummary]] = []
    for service in services:
        for summary in service.runs(run):
            if run is not None and not summary.ended:
                # The other one need not be asked.
                return service, summary
            found.append((service, summary))
    return max(found, key=lambda pair: pair[1].created_at_ms, default=None)


def all_runs(services: Sequence[JobService], note: Callable[[str], None]) -> list[RunSummary]:
    """The jobs of all places, newest first; one that does not answer hides no other's."""
    found: list[RunSummary] = []
    for service in services:
        try:
            found += service.runs()
        except Refusal as refusal:
            if service.orchestrator is Orchestrator.BATCH:
                raise
            note(f"jobs on the cluster are not shown: {refusal.message}")
    return sorted(found, key=lambda summary: summary.created_at_ms, reverse=True)


def _others(target: Deployment) -> tuple[Orchestrator, ...]:
    return () if target.eks is None else (Orchestrator.EKS,)
