"""`jobs submit`: check, show what it may cost, ask, submit once."""

import secrets
import time
from dataclasses import replace
from typing import Annotated

import typer

from jobs import documents
from jobs.aws import Aws
from jobs.bucket import Bucket
from jobs.checks import check_size, checked_request, known_workload, valid_run_name
from jobs.commands.submit_send import finish, send, send_first
from jobs.commands.submit_show import ask, show_payload, show_plan
from jobs.deployment import Deployment, read_deployment
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
from jobs.parameters import parsed_parameters
from jobs.prepared import Prepared, check_compile, num_ranks_of, prepared
from jobs.runs import RunSummary, list_runs
from trainium_catalogue.workloads import Hardware

_SHOWN_IN_A_DRY_RUN = "JOB-ID-OF-THE-COMPILE-JOB"


@command
def submit(
    context: typer.Context,
    workload: Annotated[str, typer.Argument(help="What to run; `catalogue` lists it.")],
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            help="Number of nodes; of tokenize: of instances that share the work.",
            show_default="the workload's",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="RUN",
            help="Run name: checkpoints and results belong to it, a name that is running is not "
            "submitted again, and training continues from its newest checkpoint.",
            show_default="workload and time",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show the log of all nodes until the job ends.")
    ] = False,
    compiles: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="Compile the graphs of a training workload first, as a job of its own that the "
            "training job waits for.",
        ),
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
        typer.Option(
            "--set", metavar="KEY=VALUE", help="The same as --KEY VALUE, for scripts; repeatable."
        ),
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
    """Submit a workload; its parameters are options too: `submit WORKLOAD --help` lists them.

    Checks parameters, dataset and run before anything is spent, shows the plan and an estimate of
    the price, and asks before a job of more than one node.

    Exit codes: 0 submitted (with --follow: succeeded), 1 the job failed, 2 refused,
    130 interrupted with Ctrl-C (the job goes on).

    \b
    Examples:
      python -m jobs submit all-reduce --nodes 4 --follow
      python -m jobs submit prepare --dataset wikicorpus
      python -m jobs submit tokenize --input wikicorpus --tokenizer tokenizer.model --dataset wiki
      python -m jobs submit llama2-7b --nodes 4 --dataset wiki --name my-run --compile --follow
      python -m jobs submit llama2-7b --nodes 4 --name my-run --lr 1e-4 --dry-run
      python -m jobs submit export --run my-run
    """
    # What needs no network is refused first.
    wanted = known_workload(workload)
    parameters = parsed_parameters(wanted, context.args, assignments or [])
    run = valid_run_name(name) if name is not None else _generated_name(wanted.name)
    num_nodes = wanted.default_nodes if nodes is None else nodes
    check_size(wanted, num_nodes)
    if compiles:
        check_compile(wanted, parameters, run)

    given = chosen(context, deployment, region)
    aws = Aws(given.region)
    target = read_deployment(aws.ssm(), given.deployment, region=aws.region, workload=wanted.name)
    request = checked_request(
        target,
        wanted,
        run=run,
        num_nodes=num_nodes,
        time_limit_hours=time_limit,
        parameters=parameters,
    )
    batch = aws.batch_once()
    earlier: list[RunSummary] = []
    # A generated name is new, and a dry run submits nothing: there is nothing to look for.
    if name is not None and not dry_run:
        earlier = list_runs(batch, target.queues, run=run)
        going_on = next((summary for summary in earlier if not summary.ended), None)
        if going_on is not None:
            note(
                f"run {run} is {going_on.status} already, job {going_on.job_id}: nothing was "
                "submitted"
            )
            only = Prepared(request=request)
            return finish(
                aws, target, only, going_on.job_id, None, going_on.status, follow, as_json
            )
    ready = prepared(
        request,
        wanted,
        bucket=Bucket(client=aws.s3(), name=target.bucket),
        num_ranks=num_ranks_of(target, num_nodes, given.processes_per_node),
        compiles=compiles,
    )
    if not (dry_run and as_json):
        show_plan(target, ready, processes_per_node=given.processes_per_node)
    if dry_run:
        return _dry_run(target, ready, as_json=as_json)
    if num_nodes > 1 and wanted.hardware is not Hardware.CPU and not yes:
        ask(request)
    compile_id = None
    if ready.compile_request is not None:
        compile_id = send_first(ready.compile_request, batch, target)
        ready = replace(ready, request=replace(request, depends_on=(compile_id,)))
    job_id = send(ready.request, batch, earlier={summary.job_id for summary in earlier})
    note(f"submitted run {run}, job {job_id}")
    return finish(aws, target, ready, job_id, compile_id, None, follow, as_json)


def _generated_name(workload: str) -> str:
    return f"{workload}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def _dry_run(target: Deployment, ready: Prepared, *, as_json: bool) -> int:
    if ready.compile_request is not None:
        request = replace(ready.request, depends_on=(_SHOWN_IN_A_DRY_RUN,))
        ready = replace(ready, request=request)
    if as_json:
        document = documents.submit_document(
            target, ready, action="dry-run", job_id=None, compile_id=None, status=None, job=None
        )
        print_document(document)
    else:
        show_payload(ready)
    return EXIT_OK
