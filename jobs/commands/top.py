"""`jobs top`: the utilization of a run's nodes."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.commands.options import (
    DeploymentOption,
    JsonOption,
    RegionOption,
    command,
    eks_service,
    global_options,
)
from jobs.commands.shell import running_pod
from jobs.deployment import where
from jobs.errors import EXIT_OK, Refusal
from jobs.job import Job
from jobs.orchestrators import Services, find_job, service_for
from jobs.output.console import echo, note, print_document
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.documents import picked

if TYPE_CHECKING:
    from jobs.eks.service import EksService
    from jobs.eks.usage import Usage

_BATCH_HINT = "for a run on Batch, see `python -m jobs status {0}` and `python -m jobs logs {0}`"


@command
def top(
    context: typer.Context,
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="Run name.", show_default="the newest run on EKS"),
    ] = None,
    every: Annotated[
        float,
        typer.Option("--every", metavar="SECONDS", min=0, help="Refresh interval (0: show once)."),
    ] = 0,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Show NeuronCore, memory and vCPU usage of each node of a run on EKS.

    Reads neuron-monitor in each pod; if that fails, as in a rehearsal, shows the usage of the
    pod's processes, marked as such.

    \b
    Examples:
      python -m jobs top bert-1
      python -m jobs top bert-1 --every 10
    """
    service = eks_service(
        global_options(context, deployment, region),
        "top",
        instead=f"; {_BATCH_HINT.format(run or '')}",
    )
    from jobs.eks.node_users import try_idle_remark

    job = _find(service, run)
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


def _find(service: "EksService", run: str | None) -> Job:
    """Find the run on the cluster; refuse one on Batch, whose hosts cannot be queried."""
    target = service.target
    try:
        _, job = find_job(Services((service,), note, Orchestrator.EKS), target, run)
    except Refusal as refusal:
        batch = service_for(service.aws, target, Orchestrator.BATCH)
        if refusal.code == "unknown-run" and batch.runs(run):
            raise Refusal(
                "not-on-eks",
                f"run {run} is on Batch, but top needs a run on EKS; {_BATCH_HINT.format(run)}",
            ) from None
        raise
    return job


def _measure(service: "EksService", job: Job) -> "dict[int, Usage]":
    from jobs.eks.cluster import refusing
    from jobs.eks.usage import usage_of_all

    pods = {node.index: node.name for node in job.nodes if node.name and node.status == "RUNNING"}
    if not pods:
        running_pod(job, 0)  # refuses with the status of node 0
        raise Refusal(
            "no-pod", f"run {job.run} has no running pods; see `python -m jobs status {job.run}`"
        )
    with refusing():
        return usage_of_all(service.cluster(), pods)


def _document(service: "EksService", job: Job, usage: "dict[int, Usage]") -> object:
    from jobs.eks.usage import NodeUsage, TopDocument

    return TopDocument(
        **where(service.target, job.run),
        job_id=job.job_id,
        nodes=tuple(
            picked(NodeUsage, item, node=node, pod=job.nodes[node].name)
            for node, item in sorted(usage.items())
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
    for node, item in sorted(usage.items()):
        table.add_row(
            str(node),
            "" if item.cores_in_use is None else str(item.cores_in_use),
            _number(item.core_percent),
            _gib(item.device_bytes),
            _number(item.cpu_percent),
            _gib(item.memory_bytes),
            item.measured_by,
        )
    console = Terminal()
    console.print(table)
    # Below the table, because a narrow terminal would cut it off.
    if any(item.measured_by != NEURON_MONITOR for item in usage.values()):
        console.print(
            "processes: usage of the pod's own processes, because neuron-monitor is missing or "
            "fails"
        )
    for node, item in sorted(usage.items()):
        for error in item.errors:
            console.print(f"node {node}: {error}")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _gib(value: int | None) -> str:
    return "" if value is None else f"{value / 1024**3:.2f}"
