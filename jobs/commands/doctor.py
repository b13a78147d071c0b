"""`jobs doctor`: problems that would block a deployment, or a planned run; read-only."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated

import typer

from jobs.aws import Aws
from jobs.capacity import check_wait, check_window, find_window
from jobs.commands.options import (
    PROGRAM_ARGV,
    AssignmentsOption,
    DeploymentOption,
    Globals,
    JsonOption,
    RegionOption,
    WorkdirOption,
    command,
    global_options,
)
from jobs.cost import parse_cap
from jobs.deployment import Deployment, read_deployment
from jobs.diagnosis.cause import Severity
from jobs.diagnosis.doctor import DoctorDocument, examine
from jobs.errors import EXIT_JOB_FAILED, EXIT_OK, Refusal, as_refusal
from jobs.job import CapacityWindow, JobRequest
from jobs.output.console import echo, print_document
from jobs.program.entry import ProgramOptions
from jobs.submit.check import check
from jobs.submit.choose import choose, request_for
from jobs.submit.plan import check_cap, planned
from jobs.submit.read import SubmitOptions, SubmitSpec, read_spec
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.wording import counted
from trainium_catalogue.workloads import WORKLOADS, Hardware

_ON_NODES, _ON_CPU = "verify", "prepare"
"""Workloads that represent all others on their hardware."""


@command
def doctor(
    context: typer.Context,
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="WORKLOAD|FILE",
            help="A workload from `catalogue`, or your own program, such as ./train.py.",
            show_default="any run, on all nodes of the deployment",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="RUN",
            help="Name of a run to resume.",
            show_default="a new one",
        ),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", help="Number of nodes.", show_default="the workload's")
    ] = None,
    on: Annotated[
        Orchestrator | None,
        typer.Option("--on", help="Orchestrator to run on.", show_default="as for `submit`"),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit",
            metavar="HOURS",
            help="Time limit per attempt, in hours.",
            show_default="the workload's",
        ),
    ] = None,
    scales: Annotated[
        bool, typer.Option("--scale", help="On EKS: assume that missing nodes are added.")
    ] = False,
    workdir: WorkdirOption = None,
    assignments: AssignmentsOption = None,
    max_usd: Annotated[
        float | None,
        typer.Option(
            "--max-usd",
            metavar="USD",
            help="Report a problem if the run can cost more than this, with retries and billed "
            "waiting time.",
            show_default="the deployment's max_cost_per_job_usd",
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="List passed checks too.")] = False,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """List the problems that would block a run on this deployment, worst first.

    Read-only: changes nothing and starts nothing. Accepts the parameters of `submit`, and checks
    quotas, zones, IP addresses, queue, compute environment, cluster, nodes, reservation, images,
    bucket, KMS key, endpoints and your permissions. Reports the same causes as `explain`.

    Exit codes: 0 no blocking problem, 1 at least one, 2 invalid arguments. A check that
    could not run is listed, and does not change the exit code.

    \b
    Examples:
      python -m jobs doctor
      python -m jobs doctor llama2-7b --nodes 4 --dataset wiki
      python -m jobs doctor llama2-7b --nodes 4 --name my-run
      python -m jobs doctor ./train.py --nodes 2 --on eks --scale --json
    """
    options = global_options(context, deployment, region)
    parse_cap(max_usd)
    if what is None:
        given_values = (name, nodes, on, time_limit, max_usd, workdir, assignments)
        if context.args or scales or any(value is not None for value in given_values):
            raise Refusal(
                "usage",
                "--name, --nodes and the other options of a run require a workload or a program; "
                "specify one, as in `doctor llama2-7b --nodes 4`",
            )
        document = _examine_deployment(options)
    else:
        spec = read_spec(
            what,
            context.args,
            assignments or (),
            options=SubmitOptions(
                name=name,
                nodes=nodes,
                on=on,
                time_limit_hours=time_limit,
                scales=scales,
                max_usd=max_usd,
                dry_run=True,
                as_json=as_json,
            ),
            own=ProgramOptions(workdir=workdir, arguments=context.meta.get(PROGRAM_ARGV)),
        )
        document = _examine_run(options, spec, what)
    if as_json:
        print_document(document)
    else:
        for line in _lines(document, verbose=verbose):
            echo(line)
    return EXIT_JOB_FAILED if document.stops else EXIT_OK


def _examine_deployment(options: Globals) -> DoctorDocument:
    aws = Aws(options.region)
    target = read_deployment(aws.ssm(), options.deployment, region=aws.region, workload=_ON_NODES)
    window = find_window(aws, target, Hardware.TRAINIUM, _drop_note)
    refusals, data = list(target.unusable.values()), target
    with _collect_refusal(refusals, aws):
        data = read_deployment(aws.ssm(), options.deployment, region=aws.region, workload=_ON_CPU)
    requests = [
        *(_request(target, _ON_NODES, target.max_nodes, on, window) for on in target.usable),
        _request(data, _ON_CPU, 1, Orchestrator.BATCH, None),
    ]
    for request in requests:
        with _collect_refusal(refusals, aws):
            _check_start(aws, target, request)
    return examine(aws, target, requests, refusals=refusals)


def _request(
    target: Deployment,
    workload: str,
    num_nodes: int,
    on: Orchestrator,
    window: CapacityWindow | None,
) -> JobRequest:
    return request_for(
        target,
        WORKLOADS[workload],
        run="RUN",
        num_nodes=num_nodes,
        time_limit_hours=None,
        parameters={},
        orchestrator=on,
        scales=on is Orchestrator.EKS,
        window=window,
    )


def _examine_run(options: Globals, spec: SubmitSpec, what: str) -> DoctorDocument:
    """Check the run as `submit` does, and then its prerequisites."""
    aws = Aws(options.region)
    submission = choose(
        spec, aws, options.deployment, processes_per_node=options.processes_per_node
    )
    refusals: list[Refusal] = []
    with _collect_refusal(refusals, aws):
        submission = planned(check(submission))
    with _collect_refusal(refusals, aws):
        check_cap(submission)
    with _collect_refusal(refusals, aws):
        _check_start(aws, submission.target, submission.request)
    requests: Sequence[JobRequest] = [submission.request]
    wheels = submission.wheels
    if wheels is not None and not wheels.are_collected:
        requests = [submission.request, wheels.request]
    return examine(aws, submission.target, requests, planned=what, refusals=refusals)


@contextmanager
def _collect_refusal(refusals: list[Refusal], aws: Aws) -> Iterator[None]:
    """Collect a refusal, so that the remaining checks run too."""
    try:
        yield
    except Exception as error:
        if (refusal := as_refusal(error, region=aws.region)) is None:
            raise
        refusals.append(refusal)


def _check_start(aws: Aws, target: Deployment, request: JobRequest) -> None:
    """Refuse a job whose reserved capacity is about to end or starts too late, as `submit` does."""
    if request.window is not None and request.window.has_ended(datetime.now(UTC)):
        return  # reported as a separate cause
    check_window(target, request)
    if request.orchestrator is Orchestrator.BATCH:
        check_wait(aws.batch(), target, request, _drop_note)


def _drop_note(text: str) -> None:
    """Drop a note about a failed read: `examine` reads the same data and reports failures."""


def _lines(document: DoctorDocument, *, verbose: bool) -> Iterator[str]:
    what = f"{document.workload} on " if document.workload else "runs on up to "
    yield (
        f"deployment {document.deployment} in {document.region}: {what}"
        f"{counted(document.nodes, 'node')}, {' and '.join(document.orchestrators)}"
    )
    for number, obstacle in enumerate(document.obstacles, start=1):
        yield f"{number}. {obstacle.severity}: {obstacle.cause}: {obstacle.says}"
        yield from (f"   {fact.source.heading}: {fact.text}" for fact in obstacle.evidence)
        yield f"   $ {obstacle.remedy}"
    yield from (f"not checked: {unread}" for unread in document.unread)
    if verbose:
        yield from (f"passed: {fact.source.heading}: {fact.text}" for fact in document.passed)
    counts = (
        f"{sum(each.severity is severity for each in document.obstacles)} {severity}"
        for severity in Severity
    )
    yield (
        f"{', '.join(counts)}; {counted(len(document.passed), 'check')} passed, "
        f"{len(document.unread)} not run"
    )
