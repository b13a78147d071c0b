"""`jobs plan`: a run's requirements on one or more instance types, before anything is deployed."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from jobs.commands.options import (
    PROGRAM_ARGV,
    AssignmentsOption,
    JsonOption,
    WorkdirOption,
    command,
)
from jobs.cost import not_included, parse_cap
from jobs.errors import EXIT_OK, EXIT_REFUSED, Refusal
from jobs.job import ESTIMATE_NOTE
from jobs.output.console import print_document, printable
from jobs.planning import ASSUMED_UTILIZATION, RunEstimate, estimate
from jobs.program.entry import ProgramOptions
from jobs.submit.read import SubmitOptions, read_spec
from trainium_catalogue.contract import ATTEMPTS, MAX_JOB_TIME_LIMIT_HOURS, Orchestrator
from trainium_catalogue.instances import InstanceType, find_instance_type
from trainium_catalogue.parameters.plan import GIB
from trainium_catalogue.prices import PRICES_OF
from trainium_catalogue.suggest import did_you_mean
from trainium_catalogue.wording import counted
from trainium_catalogue.workloads import Hardware
from trainium_catalogue.zones import ZONES

_DEFAULT_TYPE = "trn1.32xlarge"
_PRICES = f"us-east-1 prices, {ESTIMATE_NOTE}"


@dataclass(frozen=True, kw_only=True)
class PlanDocument:
    """Estimates of a run for each requested instance type and number of nodes."""

    workload: str
    time_limit_hours: float
    """Time limit of one attempt."""
    max_attempts: int
    utilization: float
    """Model FLOPs utilization assumed for the hours."""
    prices_of: str
    """Month of the prices, except those of nodes."""
    estimates: tuple[RunEstimate, ...]


@command
def plan(
    context: typer.Context,
    what: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD|FILE",
            help="A workload from `catalogue`, or your own program, such as ./train.py.",
        ),
    ],
    nodes: Annotated[
        str | None,
        typer.Option(
            "--nodes",
            metavar="N[,N...]",
            help="Node counts to plan for.",
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
        Orchestrator, typer.Option("--on", help="Orchestrator to plan for.")
    ] = Orchestrator.BATCH,
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit",
            metavar="HOURS",
            min=0.01,
            max=MAX_JOB_TIME_LIMIT_HOURS,
            help="Time limit per attempt, in hours.",
            show_default="the workload's",
        ),
    ] = None,
    utilization: Annotated[
        float,
        typer.Option(
            "--mfu",
            min=0.001,
            max=1.0,
            help="Model FLOPs utilization (MFU) for estimating hours; use the value from the "
            "metrics of your own run. The default is an assumption below AWS's published 0.31 for "
            "Llama 2 7B.",
        ),
    ] = ASSUMED_UTILIZATION,
    region: Annotated[
        str | None,
        typer.Option(
            "--region", help="AWS region to plan for.", show_default="any that offers the type"
        ),
    ] = None,
    max_usd: Annotated[
        float | None,
        typer.Option(
            "--max-usd",
            metavar="USD",
            help="Count a plan as not feasible if it can cost more than this, including retries "
            "and billed waiting time.",
            show_default="no cap",
        ),
    ] = None,
    workdir: WorkdirOption = None,
    assignments: AssignmentsOption = None,
    as_json: JsonOption = False,
) -> int:
    """Estimate memory, quota, IP addresses, hours and cost of a run before anything is deployed.

    Accepts the parameters of `submit`. Needs no AWS account: prices are list prices, and hours are
    computed from the model's FLOPs and an assumed utilization. For your own program, and for
    workloads without a model in the catalogue, only the time limit bounds the cost.

    Exit codes: 0 at least one plan is feasible, 2 none is, or the arguments are invalid.

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
                "not-a-number",
                f"{option} {number} is not a number; specify one, or omit the option",
            )
    cap = parse_cap(max_usd)
    if region is not None and region not in ZONES:
        raise Refusal(
            "region",
            f"--region {region!r} offers no known Trainium type; {did_you_mean(region, ZONES)}",
        )
    own = ProgramOptions(workdir=workdir, arguments=context.meta.get(PROGRAM_ARGV))
    sizes = [None] if nodes is None else list(_sizes(nodes))
    specs = [
        read_spec(
            what,
            context.args,
            assignments or (),
            options=SubmitOptions(
                name=None,
                nodes=size,
                on=on,
                time_limit_hours=time_limit,
                dry_run=True,
                as_json=as_json,
            ),
            own=own,
        )
        for size in sizes
    ]
    workload = specs[0].workload
    if workload.hardware is Hardware.CPU:
        raise Refusal(
            "no-plan",
            f"{workload.name} runs on CPU instances, not on Trainium nodes; `submit "
            f"{workload.name} --dry-run` shows its cost",
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
                spec.values,
                kind,
                spec.num_nodes,
                orchestrator=on,
                time_limit_hours=hours,
                utilization=utilization,
                region=region,
                cap=cap,
            )
            for kind in _instance_types(compare)
            for spec in specs
        ),
    )
    if as_json:
        print_document(document)
    elif len(document.estimates) == 1:
        for line in _lines(document, document.estimates[0]):
            typer.echo(printable(line))
    else:
        _print_table(document)
    has_feasible = any(item.obstacle is None for item in document.estimates)
    return EXIT_OK if has_feasible else EXIT_REFUSED


def _sizes(text: str) -> Iterator[int]:
    for word in text.split(","):
        if not re.fullmatch(r"\s*[1-9][0-9]{0,4}\s*", word):
            raise Refusal(
                "nodes-value",
                f"--nodes {text!r}: {word!r} is not a number of nodes; specify one number, or "
                "several separated by commas, such as --nodes 1,4,16",
            )
        yield int(word)


def _instance_types(text: str) -> list[InstanceType]:
    try:
        return [find_instance_type(word.strip()) for word in text.split(",")]
    except ValueError as error:
        raise Refusal("instance-type", str(error)) from None


def _lines(document: PlanDocument, plan: RunEstimate) -> Iterator[str]:
    """Describe one plan."""
    yield (
        f"{document.workload} on {counted(plan.nodes, 'node')} of {plan.instance_type}, "
        f"{counted(plan.ranks, 'rank')}, on {plan.orchestrator}"
    )
    if plan.obstacle is not None:
        yield f"not feasible: {plan.obstacle}"
    if plan.tensor_parallel is not None:
        yield (
            f"ranks: tensor parallel {plan.tensor_parallel} x data parallel {plan.data_parallel}"
        )
    if plan.spans_nodes:
        yield (
            f"the {plan.tensor_parallel} ranks that share a layer span several nodes, which is "
            "slower than estimated here; lower --tensor-parallel"
        )
    if (memory := plan.memory) is not None:
        activations = "activations not estimated"
        if memory.activations is not None:
            activations = f"at most {memory.activations / GIB:.1f} for activations"
        tight = ""
        if memory.needed > memory.fillable:
            tight = "; the compiler may need more than is left"
            if memory.needed_resharded <= memory.fillable:
                tight += ", which --reshard-after-forward true avoids"
        yield (
            f"memory per rank: {memory.available / GIB:g} GiB; {memory.state / GIB:.1f} for "
            f"weights, gradients and optimizer, {activations}{tight}"
        )
    if plan.checkpoint_bytes is not None and plan.checkpoint_seconds is not None:
        yield (
            f"checkpoint: {plan.checkpoint_bytes / 1e9:.3g} GB, written in about "
            f"{plan.checkpoint_seconds:.2g} s at 1 GB/s per node (assumed)"
        )
    yield (
        f"quota: {plan.quota_vcpus:,} vCPUs of {plan.quota_code} ({plan.quota_name}); "
        "a Capacity Block needs none"
    )
    yield f"addresses: {plan.addresses:,} in the nodes' subnet"
    if plan.training_hours is not None:
        yield (
            f"training: {_duration(plan.training_hours)} at {document.utilization:.0%} of peak "
            f"FLOPS ({'assumed' if document.utilization == ASSUMED_UTILIZATION else 'given'}), "
            f"about ${plan.training_usd:,.2f}, without compilation and waits"
        )
        if plan.training_hours > document.time_limit_hours:
            yield (
                f"an attempt ends after {document.time_limit_hours:g} h: submit the same name "
                "again to resume, or raise --time-limit"
            )
    standing = "NAT gateway and endpoints"
    if plan.orchestrator is Orchestrator.EKS:
        standing = "NAT gateway, endpoints, cluster and Lustre"
    yield f"cost: ${plan.usd_per_hour:,.2f} an hour with {standing}; {_PRICES}"
    caveat = plan.usd_at_most_caveat
    yield (
        f"one submission costs at most ${plan.usd_at_most:,.2f}: {plan.billed_hours.text()}; not "
        f"included: {not_included(plan.orchestrator, {}, num_nodes=plan.nodes)}"
        + ("" if caveat is None else f"; the actual cost can be higher, because {caveat}")
    )
    if plan.obstacle is None:
        eks = plan.orchestrator is Orchestrator.EKS
        own = " your account ID, IAM role and IP address" if eks else ""
        yield f"deploy with{own}: {plan.deploy}"


def _duration(hours: float) -> str:
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} d"


def _print_table(document: PlanDocument) -> None:
    from rich.table import Table

    from jobs.output.terminal import Terminal

    title = f"{document.workload}, {document.time_limit_hours:g} h per attempt"
    table = Table(title=title, show_edge=False, pad_edge=False)
    table.add_column("type", no_wrap=True)
    for heading in ("nodes", "TP x DP", "GiB", "vCPUs", "time", "USD", "at most"):
        table.add_column(heading, justify="right")
    notes = []
    for plan in document.estimates:
        is_feasible = plan.obstacle is None
        if not is_feasible:
            notes.append(f"{plan.instance_type} x {plan.nodes}: {plan.obstacle}")
        memory, hours = plan.memory, plan.training_hours
        if is_feasible and hours is not None and hours > document.time_limit_hours:
            notes.append(
                f"{plan.instance_type} x {plan.nodes}: exceeds the time limit; submit its name "
                "again to resume"
            )
        if plan.spans_nodes:
            notes.append(f"{plan.instance_type} x {plan.nodes}: a layer's ranks span nodes")
        time = "-" if is_feasible else "infeasible"
        if is_feasible and hours is not None:
            time = _duration(hours)
        table.add_row(
            plan.instance_type,
            str(plan.nodes),
            f"{plan.tensor_parallel} x {plan.data_parallel}" if plan.tensor_parallel else "-",
            f"{memory.needed / GIB:.1f}/{memory.available / GIB:g}" if memory else "-",
            f"{plan.quota_vcpus:,}",
            time,
            f"{plan.training_usd:,.0f}" if is_feasible and plan.training_usd is not None else "-",
            f"{plan.usd_at_most:,.0f}" if is_feasible else "-",
        )
    table.caption = "\n".join(
        [
            f"GiB: memory per rank; time: training at {document.utilization:.0%} of peak FLOPS; at "
            f"most: USD for the nodes with {document.max_attempts} attempts and all bounded waits, "
            f"not an upper bound if no list price is known; {_PRICES}",
            *notes,
        ]
    )
    Terminal().print(table)
    for plan in document.estimates:
        if plan.obstacle is None:
            typer.echo(plan.deploy)  # not wrapped, so that it can be copied
