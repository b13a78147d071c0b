"""`jobs stop`: end a run."""

import getpass
import time
from typing import Annotated

import typer

from jobs import documents
from jobs.aws import Aws, BatchClient
from jobs.commands.find import found_summary
from jobs.deployment import read_deployment
from jobs.describe import describe_job
from jobs.errors import EXIT_OK
from jobs.options import (
    DeploymentOption,
    JsonOption,
    RegionOption,
    chosen,
    command,
    note,
    print_document,
)
from jobs.runs import ON_HOSTS, Job, RunSummary
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

    The nodes get SIGTERM and may end cleanly; ECS kills what is left after the stop time-out of
    the hosts. A job that still waits for hosts is cancelled. The run can be submitted again, and
    continues where its last complete checkpoint is.

    \b
    Example:
      python -m jobs stop nightly --grace 120
    """
    given = chosen(context, deployment, region)
    aws = Aws(given.region)
    target = read_deployment(aws.ssm(), given.deployment, region=aws.region)
    batch = aws.batch()
    summary = found_summary(batch, target, run)
    reason = None
    job: Job | None = None
    if summary.ended:
        note(f"run {run} has ended already ({summary.status}); nothing to stop")
    else:
        reason = f"stopped by {_user()} with jobs stop"
        batch.terminate_job(jobId=summary.job_id, reason=reason)
        note(_announcement(run, summary.job_id, summary.status))
        if summary.status == "PENDING":
            _say_what_holds_it(batch, summary)
        if grace > 0:
            job = _wait(batch, summary.job_id, grace)
            if job is not None:
                note(_report(job, grace, bucket=target.bucket))
    if as_json:
        action = "already-ended" if reason is None else "stopping"
        print_document(
            documents.stop_document(target, summary, action=action, reason=reason, job=job)
        )
    return EXIT_OK


def _announcement(run: str, job_id: str, status: str) -> str:
    if status not in ON_HOSTS:
        return f"run {run}, job {job_id}, is {status}: it is cancelled before it starts"
    (grace,) = (p.default for p in LAUNCH_PARAMETERS if p.name == "stop-grace-s")
    return (
        f"stopping run {run}, job {job_id}: its nodes get SIGTERM, the launcher gives its workers "
        f"{grace:g} s (parameter stop-grace-s), then ECS kills what is left"
    )


def _say_what_holds_it(batch: BatchClient, summary: RunSummary) -> None:
    """Batch cancels a job that waits for others when those have ended (API, CancelJob)."""
    job = describe_job(batch, summary.job_id, shape=summary.shape)
    if job is None or not job.depends_on:
        return
    for item in batch.describe_jobs(jobs=list(job.depends_on))["jobs"]:
        note(
            f"Batch carries that out when run {item['jobName']} ({item['status']}) has ended; stop "
            f"it too with: python -m jobs stop {item['jobName']}"
        )


def _wait(batch: BatchClient, job_id: str, grace_s: float) -> Job | None:
    deadline = time.monotonic() + grace_s
    while True:
        job = describe_job(batch, job_id)
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
    from jobs.show import verdict

    return verdict(job, bucket=bucket)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no name for this user id, as in some containers
        return "somebody"
