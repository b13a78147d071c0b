"""From a run name on the command line to the job in Batch."""

from jobs.aws import BatchClient
from jobs.checks import unknown_run
from jobs.deployment import Deployment
from jobs.describe import describe_job
from jobs.errors import Refusal
from jobs.runs import Job, RunSummary, find_run, list_runs


def found_summary(batch: BatchClient, target: Deployment, run: str | None) -> RunSummary:
    """Find the run, or the newest one when none is named; refuse when there is none."""
    if run is not None:
        summary = find_run(batch, target.queues, run)
        if summary is not None:
            return summary
        others = {summary.run for summary in list_runs(batch, target.queues)}
        raise unknown_run(run, sorted(others), target)
    newest = next(iter(list_runs(batch, target.queues)), None)
    if newest is None:
        raise Refusal(
            "no-runs",
            f"no runs in deployment {target.name!r} in {target.region}; submit one with "
            "`python -m jobs submit all-reduce --nodes 2`",
        )
    return newest


def found_job(batch: BatchClient, target: Deployment, run: str | None) -> Job:
    """Find the run and read its job with its nodes."""
    summary = found_summary(batch, target, run)
    job = describe_job(batch, summary.job_id, shape=summary.shape)
    if job is None:
        raise unknown_run(summary.run, (), target)
    return job
