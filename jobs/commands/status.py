"""`jobs status`: how one run stands, node by node, and how far its training is."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from jobs.aws import Aws
from jobs.batch.runs import Job
from jobs.bucket.objects import Bucket
from jobs.bucket.training_run import read_status
from jobs.commands.find import found_job
from jobs.commands.options import (
    DeploymentOption,
    JsonOption,
    RegionOption,
    chosen,
    command,
    exit_code,
    note,
    print_document,
)
from jobs.deployment import Deployment, read_deployment
from jobs.errors import EXIT_JOB_FAILED, EXIT_OK, Refusal
from jobs.orchestrators import JobService
from jobs.output import documents
from jobs.services import Services, services_of
from trainium_catalogue.contract import TRAIN_METRICS, Orchestrator, run_key
from trainium_catalogue.workloads import WORKLOADS


@command
def status(
    context: typer.Context,
    run: Annotated[
        str | None, typer.Argument(help="Run name.", show_default="the newest run")
    ] = None,
    plot: Annotated[
        bool, typer.Option("--plot", help="Draw the loss curve of a training run.")
    ] = False,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Show nodes, attempts and why each ended; of training also step, loss, speed and time left.

    Exit codes: 0 the run goes on or succeeded, 1 it failed, 2 refused.

    \b
    Examples:
      python -m jobs status
      python -m jobs status my-run --plot
      python -m jobs status nightly --json
    """
    given = chosen(context, deployment, region)
    aws = Aws(given.region)
    target = read_deployment(aws.ssm(), given.deployment, region=aws.region)
    bucket = Bucket(client=aws.s3(), name=target.bucket)
    service, job, training = _found(services_of(aws, target, note), target, bucket, run)
    if as_json:
        document = (
            documents.status_document(target, job, training)
            if job is not None
            else documents.forgotten_document(target, str(run), training or {})
        )
        print_document(document)
        return _exit_code(job, training)
    from rich.console import Console

    console = Console(highlight=False)
    if job is not None and service is not None:
        _show_job(console, service, target, job)
    else:
        note(f"no job of run {run} is known (any more); this is what the bucket holds")
    if training is not None:
        from jobs.output.training import describe_training

        now = datetime.now(UTC)
        text = describe_training(training, job_id=job.job_id if job else None, now=now)
        console.print(text, soft_wrap=True, markup=False)
    if plot:
        _plot(console, bucket, job.run if job else str(run))
    return _exit_code(job, training)


def _found(
    services: Services, target: Deployment, bucket: Bucket, run: str | None
) -> tuple[JobService | None, Job | None, dict[str, Any] | None]:
    """The newest job of the run, and how far its training is."""
    try:
        service, job = found_job(services, target, run)
    except Refusal as refusal:
        # Jobs are kept for 7 days, the bucket keeps the run, and so it does when a cluster goes.
        unknown = refusal.code == "unknown-run" or services.silent
        training = read_status(bucket, run) if run and unknown else None
        if training is None:
            raise
        return None, None, training
    workload = WORKLOADS.get(job.workload or "")
    is_training = workload is not None and workload.trains
    return service, job, read_status(bucket, job.run) if is_training else None


def _exit_code(job: Job | None, training: dict[str, Any] | None) -> int:
    if job is not None:
        return exit_code(job)
    failed = training is not None and training.get("state") == "failed"
    return EXIT_JOB_FAILED if failed else EXIT_OK


def _show_job(console: Any, service: JobService, target: Deployment, job: Job) -> None:
    from jobs.output.show import describe_status, verdict
    from jobs.output.tables import node_table

    found = None
    if job.status == "PENDING" and job.depends_on:
        found = service.waits_for(job)
    elif job.waits_unexplained:
        found = service.why_waiting(job)
    console.print(describe_status(job, found), soft_wrap=True)
    if job.nodes:
        console.print(node_table(job))
    if service.orchestrator is Orchestrator.EKS:
        _show_idle(console, service)
    if job.ended:
        console.print(verdict(job, bucket=target.bucket), soft_wrap=True, markup=False)


def _show_idle(console: Any, service: JobService) -> None:
    """When idle nodes of the cluster go."""
    from jobs.eks.idle_nodes import try_idle_remark
    from jobs.eks.service import EksService

    assert isinstance(service, EksService)
    remark = try_idle_remark(service.cluster(), service.target)
    if remark is not None:
        console.print(remark, soft_wrap=True, markup=False)


def _plot(console: Any, bucket: Bucket, run: str) -> None:
    from jobs.output.training import loss_plot

    metrics = bucket.read(run_key(run, TRAIN_METRICS))
    picture = loss_plot(metrics, width=min(console.width, 100)) if metrics else None
    if picture is None:
        note(f"run {run} has not logged two steps yet: there is no curve to draw")
    else:
        console.print(picture, markup=False, highlight=False, soft_wrap=True)
