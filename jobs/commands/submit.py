"""`jobs submit`: check, show what it may cost, ask, submit once."""

import secrets
import time
from typing import Annotated

import typer

from jobs.aws import Aws
from jobs.batch.default_group import check_default_group
from jobs.bucket.objects import Bucket
from jobs.commands.options import DeploymentOption, JsonOption, RegionOption, chosen, command
from jobs.deployment import read_deployment
from jobs.job import RunSummary
from jobs.orchestrators import service_for, services_of
from jobs.output.console import note
from jobs.submit.checks import check_size, checked_request, known_workload, valid_run_name
from jobs.submit.parameters import parsed_parameters
from jobs.submit.placement import chosen_orchestrator
from jobs.submit.prepared import (
    Prepared,
    check_cache,
    check_compile,
    compile_run,
    num_ranks_of,
    prepared,
)
from jobs.submit.same_job import check_alone
from jobs.submit.send import Sender
from jobs.submit.show import ask, show_plan
from trainium_catalogue.contract import Orchestrator


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
    on: Annotated[
        Orchestrator | None,
        typer.Option(
            "--on",
            help="What runs the nodes; data and export jobs run on Batch everywhere.",
            show_default="the deployment's; of two: batch",
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
            help="Hours after which an attempt is ended, and the job with it.",
            show_default="the workload's",
        ),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="The same as --KEY VALUE, for scripts; repeatable."
        ),
    ] = None,
    releases: Annotated[
        bool,
        typer.Option(
            "--release",
            help="On EKS, with --follow: scale to 0 nodes when the job has ended.",
        ),
    ] = False,
    scales: Annotated[
        bool,
        typer.Option(
            "--scale",
            help="On EKS: let the cluster get the nodes that are missing, instead of refusing.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the exact SubmitJob payload or Volcano job, submit nothing."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Submit a workload; its parameters are options too: `submit WORKLOAD --help` lists them.

    Checks parameters, dataset and run before anything is spent, shows the plan and an estimate of
    the price, and asks before a job that takes Trainium nodes or may cost 10 USD or more at its
    time limit. Where there is no terminal to ask on, such a job needs --yes.

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
      python -m jobs submit bert --on eks --nodes 2 --scale --compile --name bert-1 --follow
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
    if compiles:
        check_cache(target.neuron_release)
    orchestrator = chosen_orchestrator(target, wanted, on)
    on_eks = orchestrator is Orchestrator.EKS
    if releases:
        from jobs.submit.cluster import check_release

        check_release(wanted, orchestrator, follows=follow)
    if scales:
        from jobs.submit.cluster import check_scales

        check_scales(wanted, orchestrator, target)
    request = checked_request(
        target,
        wanted,
        run=run,
        num_nodes=num_nodes,
        time_limit_hours=time_limit,
        parameters=parameters,
        orchestrator=orchestrator,
        scales=scales,
    )
    service = service_for(aws, target, orchestrator, submits=True)
    sender = Sender(service=service, target=target, follows=follow, as_json=as_json)
    if on_eks:
        from jobs.eks.request import check_run_label
        from jobs.submit.cluster import releasing

        check_run_label(compile_run(run) if compiles else run)
        if releases:
            sender = releasing(sender, service)
    earlier: list[RunSummary] = []
    # A generated name is new, and a dry run submits nothing: there is nothing to look for.
    if name is not None and not dry_run:
        services = services_of(aws, target, note, needed=orchestrator)
        earlier = [summary for _, summary in services.runs(run)]
        going_on = next((summary for summary in earlier if not summary.ended), None)
        if going_on is not None:
            return sender.join(Prepared(request=request), going_on, services)
    if not dry_run:
        check_alone(service, request)
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
        return sender.show(ready)
    if on_eks and not scales:
        from jobs.submit.cluster import check_nodes

        check_nodes(service, num_nodes)
    check_default_group(aws.ec2, target, request, note)
    if not yes:
        ask(target, ready)
    return sender.send_all(ready, earlier={summary.job_id for summary in earlier})


def _generated_name(workload: str) -> str:
    return f"{workload}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
