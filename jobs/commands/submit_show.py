"""What `submit` says before it submits: plan, price, question, or the payload."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from jobs.deployment import Deployment
from jobs.errors import Refusal
from jobs.options import note
from jobs.prepared import Prepared
from jobs.request import ESTIMATE_NOTE, JobRequest
from trainium_catalogue.contract import ATTEMPTS
from trainium_catalogue.cpu_instances import JOB_VCPUS
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
    lines.append(_price_line(request))
    if first is not None:
        lines.append(f"and {_price_line(first)} of compiling")
    note("\n".join(lines))


def show_payload(payloads: Sequence[Mapping[str, Any]]) -> None:
    """Print what SubmitJob, or the cluster, would be told; of two jobs, a list in their order."""
    typer.echo(json.dumps(payloads[0] if len(payloads) == 1 else payloads, indent=2))


def ask(request: JobRequest) -> None:
    """Ask before a job of several nodes; refuse without an answer, or with a no."""
    if not sys.stdin.isatty():
        raise Refusal(
            "not-confirmed",
            f"a job of {request.num_nodes} nodes is asked about, and standard input is not a "
            "terminal; add --yes",
        )
    typer.echo("submit it? [y/N] ", nl=False, err=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refusal("declined", "not confirmed; nothing was submitted")


def _job_line(target: Deployment, request: JobRequest) -> str:
    what = f"{request.num_nodes} x {target.instance_type.name}"
    if request.hardware is Hardware.CPU:
        what = "one container" if request.num_nodes == 1 else f"an array of {request.num_nodes}"
        what += f" on ordinary CPU instances, {JOB_VCPUS} vCPUs each"
    return (
        f"{request.workload} as run {request.run}: {what}, at most "
        f"{request.time_limit_hours:g} h an attempt, at most {ATTEMPTS} attempts"
    )


def _price_line(request: JobRequest) -> str:
    each = f"${request.usd_per_node_hour:,.2f} a node and hour; {ESTIMATE_NOTE}"
    if request.hardware is Hardware.CPU:
        each = f"CPU instances, ${request.usd_per_node_hour:,.2f} an hour each, Spot less; "
        each += ESTIMATE_NOTE
    return f"about ${request.usd_at_time_limit:,.2f} for {request.time_limit_hours:g} h ({each})"
