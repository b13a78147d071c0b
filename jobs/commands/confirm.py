"""Asking before money is spent: about what, and what happens where nobody can be asked."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import typer

from jobs.errors import Refusal
from jobs.submit.request import JobRequest
from trainium_catalogue.workloads import Hardware

ASK_FROM_USD = 10
"""Of a job on ordinary instances, at its time limit; a Trainium node costs that in half an hour."""


def is_asked_about(requests: Iterable[JobRequest]) -> bool:
    """Whether these jobs take Trainium nodes, or may cost ``ASK_FROM_USD`` or more together."""
    jobs = list(requests)
    takes_nodes = any(job.hardware is not Hardware.CPU for job in jobs)
    return takes_nodes or sum(job.usd_at_time_limit for job in jobs) >= ASK_FROM_USD


def confirm(what: str, *, question: str, declined: str) -> None:
    """Ask on the terminal; refuse without one, or with any answer but yes."""
    if not sys.stdin.isatty():
        raise Refusal(
            "not-confirmed",
            f"{what} is asked about, and standard input is not a terminal; add --yes",
        )
    typer.echo(f"{question} [y/N] ", nl=False, err=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refusal("declined", f"not confirmed; {declined}")
