"""From a run name on the command line to the job that has it."""

from collections.abc import Sequence

from jobs.batch.runs import Job, RunSummary
from jobs.deployment import Deployment
from jobs.errors import Refusal
from jobs.orchestrators import JobService
from jobs.services import Services
from jobs.submit.checks import unknown_run


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
