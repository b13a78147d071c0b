"""`jobs top`: how busy the nodes of a run are."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.commands.options import (
    DeploymentOption,
    JsonOption,
    RegionOption,
    chosen,
    command,
    eks_service,
)
from jobs.commands.shell import running_pod
from jobs.deployment import where
from jobs.errors import EXIT_OK, Refusal
from jobs.job import Job
from jobs.orchestrators import Services, found_job, service_for
from jobs.output.console import echo, note, print_document
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.documents import picked

if TYPE_CHECKING:
    from jobs.eks.service import EksService
    from jobs.eks.usage import Usage

_OF_BATCH = "of a run on Batch see `python -m jobs status {0}` and `python -m jobs logs {0}`"


@command
def top(
    context: typer.Context,
    run: Annotated[
        str | None, typer.Argument(help="Run name.", show_default="the newest run on EKS")
    ] = None,
    every: Annotated[
        float,
        typer.Option("--every", metavar="SECONDS", min=0, help="Show it again and again."),
    ] = 0,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Show NeuronCores, memory and vCPUs of each node of a run on EKS.

    Asks neuron-monitor in each pod; where a pod has none, as in a rehearsal, it shows what the
    pod's processes use, and says so.

    \b
    Examples:
      python -m jobs top bert-1
      python -m jobs top bert-1 --every 10
    """
    service = eks_service(
        chosen(context, deployment, region), "top", instead=f"; {_OF_BATCH.format(run or '')}"
    )
    from jobs.eks.node_users import try_idle_remark

    job = _found(service, run)
    while True:
        usage = _measure(service, job)
        if as_json:
            print_document(_document(service, job, usage))
        else:
            _show(job, usage)
            remark = try_idle_remark(service.cluster(), service.target)
            if remark is not None:
                echo(remark)
        if every <= 0 or as_json:
            return EXIT_OK
        time.sleep(every)


def _found(service: "EksService", run: str | None) -> Job:
    """Find the run on the cluster; refuse one of Batch, whose hosts cannot be asked."""
    target = service.target
    try:
        _, job = found_job(Services((service,), note, Orchestrator.EKS), target, run)
    except Refusal as refusal:
        batch = service_for(service.aws, target, Orchestrator.BATCH)
        if refusal.code == "unknown-run" and batch.runs(run):
            raise Refusal(
                "not-on-eks",
                f"run {run} is on Batch, and top asks the pods of runs on EKS; "
                f"{_OF_BATCH.format(run)}",
            ) from None
        raise
    return job


def _measure(service: "EksService", job: Job) -> "dict[int, Usage]":
    from jobs.eks.cluster import refusing
    from jobs.eks.usage import usage_of_all

    pods = {node.index: node.name for node in job.nodes if node.name and node.status == "RUNNING"}
    if not pods:
        running_pod(job, 0)
        raise Refusal("no-pod", f"run {job.run} has no running pods")
    with refusing():
        return usage_of_all(service.cluster(), pods)


def _document(service: "EksService", job: Job, usage: "dict[int, Usage]") -> object:
    from jobs.eks.usage import NodeUsage, TopDocument

    return TopDocument(
        **where(service.target, job.run),
        job_id=job.job_id,
        nodes=tuple(
            picked(NodeUsage, found, node=node, pod=job.nodes[node].name)
            for node, found in sorted(usage.items())
        ),
    )


def _show(job: Job, usage: "dict[int, Usage]") -> None:
    from rich.table import Table

    from jobs.eks.usage import NEURON_MONITOR
    from jobs.output.terminal import Terminal

    table = Table()
    for heading in ("node", "NeuronCores", "busy %", "device GiB", "vCPU %", "memory GiB"):
        table.add_column(heading, justify="right")
    table.add_column("measured by")
    for node, found in sorted(usage.items()):
        table.add_row(
            str(node),
            "" if found.cores_in_use is None else str(found.cores_in_use),
            _number(found.core_percent),
            _gib(found.device_bytes),
            _number(found.cpu_percent),
            _gib(found.memory_bytes),
            found.measured_by,
        )
    console = Terminal()
    console.print(table)
    # Below the table, because a narrow terminal would cut it off.
    if any(found.measured_by != NEURON_MONITOR for found in usage.values()):
        console.print("processes: those of the pod, where there is no neuron-monitor")
    for node, found in sorted(usage.items()):
        for error in found.errors:
            console.print(f"node {node}: {error}")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _gib(value: int | None) -> str:
    return "" if value is None else f"{value / 1024**3:.2f}"
