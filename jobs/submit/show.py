"""What `submit` says before it submits: plan, price, question, or the payload."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from jobs.deployment import Deployment
from jobs.job import ESTIMATE_NOTE, JobRequest
from jobs.output.console import confirm, is_asked_about, note
from jobs.submit.prepared import Prepared
from trainium_catalogue.contract import ATTEMPTS
from trainium_catalogue.instances import JOB_VCPUS
from trainium_catalogue.workloads import Hardware


def show_plan(target: Deployment, ready: Prepared, *, processes_per_node: int | None) -> None:
    """Say what will run, what follows from its parameters and what it may cost."""
    request, first = ready.request, ready.compile_request
    lines = [_job_line(target, request), *ready.plan.lines]
    if processes_per_node is not None and ready.plan.document is not None:
        lines.append(f"processes per node: {processes_per_node}, from TRAINIUM_PROCESSES_PER_NODE")
    if first is not None:
        lines.append(
            f"first, as run {first.run}: compile its graphs on as many nodes, at most "
            f"{first.time_limit_hours:g} h; training starts when that has succeeded"
        )
    if request.scales and target.eks is not None:
        lines.append(
            f"the cluster gets the nodes that are missing, within {target.max_nodes}, and takes "
            f"them away again after {target.eks.idle_minutes} idle minutes"
        )
    lines.append(_price_line(request))
    if first is not None:
        lines.append(f"and {_price_line(first)} of compiling")
    note("\n".join(lines))


def show_payload(payloads: Sequence[Mapping[str, Any]]) -> None:
    """Print what SubmitJob, or the cluster, would be told; of two jobs, a list in their order."""
    typer.echo(json.dumps(payloads[0] if len(payloads) == 1 else payloads, indent=2))


def ask(target: Deployment, ready: Prepared) -> None:
    """Ask before jobs that cost; refuse without an answer, or with a no."""
    first = () if ready.compile_request is None else (ready.compile_request,)
    if is_asked_about((*first, ready.request)):
        confirm(
            f"a job of {_size(target, ready.request)}",
            question="submit it?",
            declined="nothing was submitted",
        )


def _job_line(target: Deployment, request: JobRequest) -> str:
    return (
        f"{request.workload} as run {request.run}: {_size(target, request)}, at most "
        f"{request.time_limit_hours:g} h an attempt, at most {ATTEMPTS} attempts"
    )


def _size(target: Deployment, request: JobRequest) -> str:
    if request.hardware is not Hardware.CPU:
        return f"{request.num_nodes} x {target.instance_type.name}"
    what = "one container" if request.num_nodes == 1 else f"an array of {request.num_nodes}"
    return f"{what} on ordinary CPU instances, {JOB_VCPUS} vCPUs each"


def _price_line(request: JobRequest) -> str:
    each = f"${request.usd_per_node_hour:,.2f} a node and hour; {ESTIMATE_NOTE}"
    if request.hardware is Hardware.CPU:
        each = f"CPU instances, ${request.usd_per_node_hour:,.2f} an hour each, Spot less; "
        each += ESTIMATE_NOTE
    return f"about ${request.usd_at_time_limit:,.2f} for {request.time_limit_hours:g} h ({each})"
