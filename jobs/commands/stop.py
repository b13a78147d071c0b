"""`jobs stop`: stop a run."""

import time
from typing import Annotated

import typer

from jobs.commands.options import (
    DeploymentOption,
    JsonOption,
    RegionOption,
    command,
    open_deployment,
)
from jobs.errors import EXIT_OK
from jobs.job import ON_HOSTS, Job, RunSummary, stop_reason
from jobs.orchestrators import JobService, find_summary, is_moving, services_of
from jobs.output import documents
from jobs.output.console import note, print_document
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.workloads import LAUNCH_PARAMETERS


@command
def stop(
    context: typer.Context,
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run name.")],
    wait_s: Annotated[
        float,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            min=0,
            help="Wait up to this long for the job to end, and report its outcome.",
        ),
    ] = 0,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Stop a run.

    The nodes receive SIGTERM and can save and exit; after the stop timeout, ECS or the kubelet
    kills the remaining processes. A job still waiting for hosts is cancelled. Submit the run again
    to resume from its last complete checkpoint or snapshot.

    \b
    Example:
      python -m jobs stop nightly --wait 120
    """
    aws, target = open_deployment(context, deployment, region)
    service, summary = find_summary(services_of(aws, target, note), target, run)
    reason = None
    job: Job | None = None
    if summary.ended and not is_moving(service, summary):
        note(f"run {run} has already ended ({summary.status}); nothing to stop")
    else:
        reason = stop_reason("stop")
        service.stop(summary, reason)
        note(_announcement(summary))
        if summary.status == "PENDING":
            _note_dependencies(service, summary)
        if wait_s > 0:
            job = _wait(service, summary.job_id, wait_s)
            if job is not None:
                note(_report(job, wait_s, bucket=target.bucket))
    if as_json:
        print_document(documents.stop_document(target, summary, reason=reason, job=job))
    return EXIT_OK


def _announcement(summary: RunSummary) -> str:
    run, job_id = summary.run, summary.job_id
    if summary.ended:
        return f"run {run}, job {job_id}, will not be moved to another zone"
    if summary.status not in ON_HOSTS:
        return (
            f"run {run}, job {job_id}, is {summary.status} and will be cancelled before it starts"
        )
    killer = "ECS" if summary.orchestrator is Orchestrator.BATCH else "the kubelet"
    (grace,) = (p.default for p in LAUNCH_PARAMETERS if p.name == "stop-grace-s")
    return (
        f"stopping run {run}, job {job_id}: its nodes get SIGTERM, workers have {grace:g} s to "
        "exit (the default of parameter stop-grace-s; for a program, a third of it, at most 30 s, "
        f"is reserved for the last snapshot), then {killer} kills the remaining processes"
    )


def _note_dependencies(service: JobService, summary: RunSummary) -> None:
    """Name the jobs that a run depends on.

    Batch cancels a PENDING job only after they end (API reference, CancelJob).
    """
    job = service.describe(summary.job_id, summary.shape)
    for dependency in job.depends_on if job is not None else ():
        other = service.describe(dependency)
        if other is not None:
            note(
                f"Batch cancels it once run {other.run} ({other.status}) has ended; stop that run "
                f"too with: python -m jobs stop {other.run}"
            )


def _wait(service: JobService, job_id: str, wait_s: float) -> Job | None:
    deadline = time.monotonic() + wait_s
    while True:
        job = service.describe(job_id)
        left_s = deadline - time.monotonic()
        if job is None or job.ended or left_s <= 0:
            return job
        time.sleep(min(1.0, left_s))


def _report(job: Job, wait_s: float, *, bucket: str) -> str:
    if not job.ended:
        return (
            f"run {job.run} is still {job.status} after {wait_s:g} s; check again with: python -m "
            f"jobs status {job.run}"
        )
    from jobs.output.screen import verdict

    return verdict(job, bucket=bucket)
