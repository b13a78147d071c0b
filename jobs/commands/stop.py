"""`jobs stop`: end a run."""

import time
from typing import Annotated

import typer

from jobs.commands.options import DeploymentOption, JsonOption, RegionOption, command, opened
from jobs.errors import EXIT_OK
from jobs.job import ON_HOSTS, Job, RunSummary, stop_reason
from jobs.orchestrators import JobService, found_summary, services_of
from jobs.output import documents
from jobs.output.console import note, print_document
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.workloads import LAUNCH_PARAMETERS


@command
def stop(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="Run name.")],
    grace: Annotated[
        float,
        typer.Option(
            "--grace", metavar="SECONDS", min=0, help="Wait so long for the end and report it."
        ),
    ] = 0,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Stop a run.

    The nodes get SIGTERM and may end cleanly; ECS, or the kubelet, kills what is left after the
    stop time-out of the hosts. A job that still waits for hosts is cancelled. The run can be
    submitted again, and continues where its last complete checkpoint is.

    \b
    Example:
      python -m jobs stop nightly --grace 120
    """
    aws, target = opened(context, deployment, region)
    service, summary = found_summary(services_of(aws, target, note), target, run)
    reason = None
    job: Job | None = None
    if summary.ended:
        note(f"run {run} has ended already ({summary.status}); nothing to stop")
    else:
        reason = stop_reason("stop")
        service.stop(summary, reason)
        note(_announcement(summary))
        if summary.status == "PENDING":
            _say_what_holds_it(service, summary)
        if grace > 0:
            job = _wait(service, summary.job_id, grace)
            if job is not None:
                note(_report(job, grace, bucket=target.bucket))
    if as_json:
        print_document(documents.stop_document(target, summary, reason=reason, job=job))
    return EXIT_OK


def _announcement(summary: RunSummary) -> str:
    run, job_id = summary.run, summary.job_id
    if summary.status not in ON_HOSTS:
        return f"run {run}, job {job_id}, is {summary.status}: it is cancelled before it starts"
    killer = "ECS" if summary.orchestrator is Orchestrator.BATCH else "the kubelet"
    (grace,) = (p.default for p in LAUNCH_PARAMETERS if p.name == "stop-grace-s")
    return (
        f"stopping run {run}, job {job_id}: its nodes get SIGTERM, the launcher gives its workers "
        f"{grace:g} s (parameter stop-grace-s; of a program's, a third, at most 30 s, is for its "
        f"last snapshot), then {killer} kills what is left"
    )


def _say_what_holds_it(service: JobService, summary: RunSummary) -> None:
    """Name the jobs it waits for: Batch cancels it only after they end (API, CancelJob)."""
    job = service.describe(summary.job_id, summary.shape)
    for held_by in job.depends_on if job is not None else ():
        other = service.describe(held_by)
        if other is not None:
            note(
                f"Batch carries that out when run {other.run} ({other.status}) has ended; stop it "
                f"too with: python -m jobs stop {other.run}"
            )


def _wait(service: JobService, job_id: str, grace_s: float) -> Job | None:
    deadline = time.monotonic() + grace_s
    while True:
        job = service.describe(job_id)
        left_s = deadline - time.monotonic()
        if job is None or job.ended or left_s <= 0:
            return job
        time.sleep(min(1.0, left_s))


def _report(job: Job, grace_s: float, *, bucket: str) -> str:
    if not job.ended:
        return (
            f"run {job.run} is still {job.status} after {grace_s:g} s; look again with: "
            f"python -m jobs status {job.run}"
        )
    from jobs.output.screen import verdict

    return verdict(job, bucket=bucket)
