"""`jobs submit`: check, show what it may cost, ask, submit once."""

import json
import secrets
import sys
import time
from typing import Annotated

import typer

from jobs import documents
from jobs.aws import Aws, BatchClient
from jobs.checks import checked_request, known_workload, parsed_parameters, valid_run_name
from jobs.deployment import Deployment, read_deployment
from jobs.errors import EXIT_OK, Refusal
from jobs.options import (
    DeploymentOption,
    JsonOption,
    RegionOption,
    chosen,
    command,
    exit_code,
    follow_command,
    note,
    print_document,
)
from jobs.request import ESTIMATE_NOTE, JobRequest
from jobs.runs import RunSummary, list_runs
from jobs.submission import submit_once
from trainium_catalogue.contract import ATTEMPTS


@command
def submit(
    context: typer.Context,
    workload: Annotated[str, typer.Argument(help="What to run; `catalogue` lists it.")],
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", help="Number of nodes.", show_default="the workload's"),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="RUN",
            help="Run name: checkpoints and results belong to it, and a name that is running is "
            "not submitted again.",
            show_default="workload and time",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show the log of all nodes until the job ends.")
    ] = False,
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit",
            metavar="HOURS",
            help="Hours after which Batch ends an attempt.",
            show_default="the workload's",
        ),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set a parameter; repeatable."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the exact SubmitJob payload, submit nothing.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before a multi-node job.")
    ] = False,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Submit a workload.

    Shows nodes, hours and an estimate of the price, and asks before a job of more than one node.

    Exit codes: 0 submitted (with --follow: succeeded), 1 the job failed, 2 refused,
    130 interrupted with Ctrl-C (the job goes on).

    \b
    Examples:
      python -m jobs submit all-reduce --nodes 4 --follow
      python -m jobs submit all-reduce --nodes 2 --name nightly --set max-bytes=67108864 --yes
      python -m jobs submit all-reduce --nodes 4 --dry-run
    """
    # What needs no network is refused first.
    wanted = known_workload(workload)
    parameters = parsed_parameters(wanted, assignments or [])
    run = valid_run_name(name) if name is not None else _generated_name(wanted.name)

    given = chosen(context, deployment, region)
    aws = Aws(given.region)
    target = read_deployment(aws.ssm(), given.deployment, region=aws.region, workload=wanted.name)
    request = checked_request(
        target,
        wanted,
        run=run,
        num_nodes=wanted.default_nodes if nodes is None else nodes,
        time_limit_hours=time_limit,
        parameters=parameters,
    )
    if dry_run:
        return _show_payload(target, request, as_json=as_json)

    batch = aws.batch_once()
    # A generated name is new: there is nothing to look for.
    earlier = list_runs(batch, target.job_queue, run=run) if name is not None else []
    job = next((summary for summary in earlier if not summary.ended), None)
    if job is None:
        _show_plan(target, request)
        if request.num_nodes > 1 and not yes:
            _ask(request)
        job_id = _send(request, batch, earlier={summary.job_id for summary in earlier})
        note(f"submitted run {run}, job {job_id}")
    else:
        job_id = job.job_id
        note(f"run {run} is {job.status} already, job {job_id}: nothing was submitted")
    return _finish(aws, target, request, job_id, going_on=job, follow=follow, as_json=as_json)


def _send(request: JobRequest, batch: BatchClient, *, earlier: set[str]) -> str:
    try:
        return submit_once(request, batch, earlier=earlier, sleep=time.sleep)
    except KeyboardInterrupt:
        note(f"interrupted; whether it was submitted tells: python -m jobs status {request.run}")
        raise


def _finish(
    aws: Aws,
    target: Deployment,
    request: JobRequest,
    job_id: str,
    *,
    going_on: RunSummary | None,
    follow: bool,
    as_json: bool,
) -> int:
    """Follow when asked to, print the document when asked to; return the exit code."""
    outcome = None
    code = EXIT_OK
    if follow:
        from jobs.watch import watch  # rich is not needed before

        outcome, _ = watch(aws, target, run=request.run, job_id=job_id, keep_lines=as_json)
        code = exit_code(outcome)
    else:
        note(f"follow it with: {follow_command(target, request.run)}")
    if as_json:
        document = documents.submit_document(
            target,
            request,
            action="submitted" if going_on is None else "already-running",
            job_id=job_id,
            status=going_on.status if going_on else "SUBMITTED",
            job=outcome,
        )
        print_document(document)
    return code


def _generated_name(workload: str) -> str:
    return f"{workload}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def _show_payload(target: Deployment, request: JobRequest, *, as_json: bool) -> int:
    if as_json:
        document = documents.submit_document(
            target, request, action="dry-run", job_id=None, status=None, job=None
        )
        print_document(document)
    else:
        _show_plan(target, request)
        typer.echo(json.dumps(request.to_submit_kwargs(), indent=2))
    return EXIT_OK


def _show_plan(target: Deployment, request: JobRequest) -> None:
    hours = f"{request.time_limit_hours:g} h"
    note(
        f"{request.workload} as run {request.run}: {request.num_nodes} x "
        f"{target.instance_type.name}, at most {hours} an attempt, at most {ATTEMPTS} attempts\n"
        f"about ${request.usd_at_time_limit:,.2f} for {hours} "
        f"(${request.usd_per_node_hour:,.2f} a node and hour; {ESTIMATE_NOTE})"
    )


def _ask(request: JobRequest) -> None:
    if not sys.stdin.isatty():
        raise Refusal(
            "not-confirmed",
            f"a job of {request.num_nodes} nodes is asked about, and standard input is not a "
            "terminal; add --yes",
        )
    typer.echo("submit it? [y/N] ", nl=False, err=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refusal("declined", "not confirmed; nothing was submitted")
