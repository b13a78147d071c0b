"""`jobs plan`: what a run takes before anything is deployed, for one or several instance types."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from jobs.commands.options import PROGRAM_ARGV, JsonOption, command, given_path
from jobs.errors import EXIT_OK, EXIT_REFUSED, Refusal
from jobs.job import ESTIMATE_NOTE, counted
from jobs.output.console import print_document, printable
from jobs.planning import (
    ASSUMED_UTILIZATION,
    RunEstimate,
    estimate,
    fills_memory,
)
from jobs.program.entry import ProgramOptions
from jobs.submit.read import SubmitOptions, SubmitOrder, read_order
from trainium_catalogue.contract import ATTEMPTS, MAX_JOB_TIME_LIMIT_HOURS, Orchestrator
from trainium_catalogue.instances import InstanceType, find_instance_type
from trainium_catalogue.parameters.plan import GIB
from trainium_catalogue.prices import PRICES_OF
from trainium_catalogue.suggest import did_you_mean
from trainium_catalogue.workloads import Hardware
from trainium_catalogue.zones import ZONES

_DEFAULT_TYPE = "trn1.32xlarge"
_PRICES = f"us-east-1 prices, {ESTIMATE_NOTE}"


@dataclass(frozen=True, kw_only=True)
class PlanDocument:
    """What a run takes on each type and number of nodes that was asked about."""

    workload: str
    time_limit_hours: float
    """Of one attempt."""
    max_attempts: int
    utilization: float
    """Model FLOPs utilization that the hours are computed with."""
    prices_of: str
    """Month of the prices of what is not a node."""
    estimates: tuple[RunEstimate, ...]


@command
def plan(
    context: typer.Context,
    what: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD|FILE",
            help="What to run: a workload that `catalogue` lists, or a program of yours, such as "
            "./train.py.",
        ),
    ],
    nodes: Annotated[
        str | None,
        typer.Option(
            "--nodes",
            metavar="N[,N...]",
            help="Numbers of nodes to plan for.",
            show_default="the workload's",
        ),
    ] = None,
    compare: Annotated[
        str,
        typer.Option(
            "--compare",
            "--instance-type",
            metavar="TYPE[,TYPE...]",
            help="Instance types to plan for.",
        ),
    ] = _DEFAULT_TYPE,
    on: Annotated[
        Orchestrator, typer.Option("--on", help="What runs the nodes.")
    ] = Orchestrator.BATCH,
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit",
            metavar="HOURS",
            min=0.01,
            max=MAX_JOB_TIME_LIMIT_HOURS,
            help="Hours after which an attempt is ended.",
            show_default="the workload's",
        ),
    ] = None,
    utilization: Annotated[
        float,
        typer.Option(
            "--mfu",
            min=0.001,
            max=1.0,
            help="Model FLOPs utilization to compute hours with; take it from the metrics of a "
            "run of yours. The default is an assumption below AWS's published 0.31 for Llama 2 7B.",
        ),
    ] = ASSUMED_UTILIZATION,
    region: Annotated[
        str | None,
        typer.Option(
            "--region", help="Region to plan for.", show_default="any that offers the type"
        ),
    ] = None,
    workdir: Annotated[
        Path | None,
        typer.Option("--workdir", parser=given_path, metavar="DIR", help="Folder of your program."),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="The same as --KEY VALUE, for scripts; repeatable."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Compute memory, quota, addresses, hours and price of a run, before anything is deployed.

    Takes the parameters of `submit`. Needs no AWS account: prices are list prices, and hours follow
    from the model's arithmetic and an assumed utilization. Without a model of the catalogue, as for
    a program of yours, only the time limit bounds the price.

    Exit codes: 0 at least one plan works, 2 none does, or the command line was refused.

    \b
    Examples:
      python -m jobs plan llama2-7b --nodes 4
      python -m jobs plan pretrain --model llama3.1-8b --compare trn1.32xlarge,trn2.48xlarge \\
        --nodes 1,4,16
      python -m jobs plan ./train.py --nodes 2 --time-limit 6
    """
    for option, number in (("--mfu", utilization), ("--time-limit", time_limit)):
        if number is not None and not math.isfinite(number):
            raise Refusal(
                "not-a-number", f"{option} {number} is no number; give one, or leave it out"
            )
    if region is not None and region not in ZONES:
        raise Refusal(
            "region",
            f"--region {region!r} sells no Trainium that is known here; "
            f"{did_you_mean(region, ZONES)}",
        )
    sizes = list(_sizes(nodes)) if nodes is not None else [None]
    orders = [
        _order(context, what, size, on, time_limit, workdir, assignments or (), as_json=as_json)
        for size in sizes
    ]
    workload = orders[0].workload
    if workload.hardware is Hardware.CPU:
        raise Refusal(
            "no-plan",
            f"{workload.name} runs on ordinary instances, not on Trainium nodes; `submit "
            f"{workload.name} --dry-run` shows its price",
        )
    hours = workload.time_limit_hours if time_limit is None else time_limit
    document = PlanDocument(
        workload=what,
        time_limit_hours=hours,
        max_attempts=ATTEMPTS,
        utilization=utilization,
        prices_of=PRICES_OF,
        estimates=tuple(
            estimate(
                order.values,
                kind,
                order.num_nodes,
                orchestrator=on,
                time_limit_hours=hours,
                utilization=utilization,
                region=region,
            )
            for kind in _instance_types(compare)
            for order in orders
        ),
    )
    if as_json:
        print_document(document)
    elif len(document.estimates) == 1:
        for line in _lines(document, document.estimates[0]):
            typer.echo(printable(line))
    else:
        _print_table(document)
    works = any(item.obstacle is None for item in document.estimates)
    return EXIT_OK if works else EXIT_REFUSED


def _sizes(text: str) -> Iterator[int]:
    for word in text.split(","):
        if not re.fullmatch(r"\s*[1-9][0-9]{0,4}\s*", word):
            raise Refusal(
                "nodes-value",
                f"--nodes {text!r}: {word!r} is not a number of nodes; give one, or several as in "
                "--nodes 1,4,16",
            )
        yield int(word)


def _instance_types(text: str) -> list[InstanceType]:
    try:
        return [find_instance_type(word.strip()) for word in text.split(",")]
    except ValueError as error:
        raise Refusal("instance-type", str(error)) from None


def _order(
    context: typer.Context,
    what: str,
    num_nodes: int | None,
    on: Orchestrator,
    time_limit: float | None,
    workdir: Path | None,
    assignments: Sequence[str],
    *,
    as_json: bool,
) -> SubmitOrder:
    """Read the words as `submit` would."""
    return read_order(
        what,
        context.args,
        assignments,
        options=SubmitOptions(
            name=None,
            nodes=num_nodes,
            on=on,
            time_limit_hours=time_limit,
            compiles=False,
            follows=False,
            folds=False,
            releases=False,
            scales=False,
            dry_run=True,
            as_json=as_json,
        ),
        own=ProgramOptions(workdir=workdir, arguments=context.meta.get(PROGRAM_ARGV)),
    )


def _lines(document: PlanDocument, plan: RunEstimate) -> Iterator[str]:
    """Describe one plan."""
    yield (
        f"{document.workload} on {counted(plan.nodes, 'node')} of {plan.instance_type}, "
        f"{counted(plan.ranks, 'rank')}, on {plan.orchestrator}"
    )
    if plan.obstacle is not None:
        yield f"cannot work: {plan.obstacle}"
    if plan.tensor_parallel is not None:
        yield (
            f"ranks: tensor parallel {plan.tensor_parallel} x data parallel {plan.data_parallel}"
        )
    if plan.spans_nodes:
        yield (
            f"the {plan.tensor_parallel} ranks that share a layer are on several nodes, which "
            "takes longer than is computed here; lower --tensor-parallel"
        )
    if (memory := plan.memory) is not None:
        activations = "activations not estimated"
        if memory.activations is not None:
            activations = f"at most {memory.activations / GIB:.1f} of activations"
        tight = "; the compiler may need more than what is left" if fills_memory(memory) else ""
        yield (
            f"memory of a rank: {memory.available / GIB:g} GiB; {memory.state / GIB:.1f} of "
            f"weights, gradients and optimizer, {activations}{tight}"
        )
    if plan.checkpoint_bytes is not None and plan.checkpoint_seconds is not None:
        yield (
            f"checkpoint: {plan.checkpoint_bytes / 1e9:.3g} GB, written in about "
            f"{plan.checkpoint_seconds:.2g} s at 1 GB/s a node (assumed)"
        )
    yield (
        f"quota: {plan.quota_vcpus:,} vCPUs of {plan.quota_code} ({plan.quota_name}); "
        "a Capacity Block needs none"
    )
    yield f"addresses: {plan.addresses:,} of the nodes' subnet"
    if plan.training_hours is not None:
        yield (
            f"training: {_duration(plan.training_hours)} at {document.utilization:.0%} of peak "
            f"FLOPs ({'assumed' if document.utilization == ASSUMED_UTILIZATION else 'given'}), "
            f"about ${plan.training_usd:,.2f}, without compiling and waiting"
        )
        if plan.training_hours > document.time_limit_hours:
            yield (
                f"an attempt ends after {document.time_limit_hours:g} h: submit the same name "
                "again to continue, or give a longer --time-limit"
            )
    standing = "NAT gateway and endpoints"
    if plan.orchestrator is Orchestrator.EKS:
        standing = "NAT gateway, endpoints, cluster and Lustre"
    yield f"price: ${plan.usd_per_hour:,.2f} an hour with {standing}; {_PRICES}"
    idle = " and the idle time of its nodes" if plan.orchestrator is Orchestrator.EKS else ""
    yield (
        f"one submission costs at most ${plan.usd_at_most:,.2f}: {document.max_attempts} attempts "
        f"of {document.time_limit_hours:g} h{idle}; not counted: traffic, and nodes that wait for "
        "others to start"
    )
    if plan.obstacle is None:
        eks = plan.orchestrator is Orchestrator.EKS
        yield f"deploy with{' your account, role and address' if eks else ''}: {plan.deploy}"


def _duration(hours: float) -> str:
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} d"


def _print_table(document: PlanDocument) -> None:
    from rich.table import Table

    from jobs.output.terminal import Terminal

    table = Table(title=f"{document.workload}, {document.time_limit_hours:g} h an attempt")
    table.add_column("type", no_wrap=True)
    for heading in ("nodes", "TP x DP", "GiB", "vCPUs", "time", "USD", "at most"):
        table.add_column(heading, justify="right")
    notes = []
    for plan in document.estimates:
        works = plan.obstacle is None
        if not works:
            notes.append(f"{plan.instance_type} x {plan.nodes}: {plan.obstacle}")
        memory, hours = plan.memory, plan.training_hours
        if works and hours is not None and hours > document.time_limit_hours:
            notes.append(
                f"{plan.instance_type} x {plan.nodes}: continues after each limit, if its name is "
                "submitted again"
            )
        if plan.spans_nodes:
            notes.append(f"{plan.instance_type} x {plan.nodes}: a layer's ranks span nodes")
        table.add_row(
            plan.instance_type,
            str(plan.nodes),
            f"{plan.tensor_parallel} x {plan.data_parallel}" if plan.tensor_parallel else "-",
            f"{memory.needed / GIB:.1f}/{memory.available / GIB:g}" if memory else "-",
            f"{plan.quota_vcpus:,}",
            _duration(hours) if works and hours is not None else "-" if works else "cannot work",
            f"{plan.training_usd:,.0f}" if works and plan.training_usd is not None else "-",
            f"{plan.usd_at_most:,.0f}" if works else "-",
        )
    table.caption = "\n".join(
        [
            f"GiB: of a rank's memory; time: training at {document.utilization:.0%} of peak FLOPs; "
            f"at most: USD of {document.max_attempts} attempts to their limit; {_PRICES}",
            *notes,
        ]
    )
    Terminal().print(table)
    for plan in document.estimates:
        if plan.obstacle is None:
            typer.echo(plan.deploy)  # whole, to be copied: a terminal's width does not break it
