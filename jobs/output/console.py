"""Output for a person at the terminal: remarks, commands to come back with, and questions."""

from __future__ import annotations

import io
import json
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import typer

from jobs import errors
from jobs.deployment import Deployment
from jobs.errors import Refusal
from jobs.job import Job, JobRequest
from trainium_catalogue.contract import DEFAULT_DEPLOYMENT
from trainium_catalogue.documents import as_document
from trainium_catalogue.workloads import Hardware

LINES = "\n\t"
"""Control characters of text in lines."""
ASK_FROM_USD = 10
"""Price at the time limit above which a CPU job is confirmed: half an hour of a Trainium node."""


def timestamp(milliseconds: int | None) -> str:
    """Format a time as local date and time."""
    if not milliseconds:
        return ""
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone():%Y-%m-%d %H:%M:%S}"


def duration(seconds: float) -> str:
    """Format a duration: ``45 s``, ``3 min 5 s`` or ``2 h 10 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def human(num_bytes: float) -> str:
    """Format a size: ``512 bytes``, ``12.3 kB``, ``4.5 MB`` or ``1.2 GB``."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes:.0f} bytes"


def print_document(document: object) -> None:
    """Print the single document of ``--json``."""
    echo(json.dumps(document, indent=2, default=as_document))


def printable(text: str, *, keep: str = "") -> str:
    """Write out what a terminal would take for a command, and what no encoding has.

    Names of files and messages come from the bucket too. ``keep`` are characters to leave as is.
    """
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable() or char in keep or unicodedata.category(char) == "Zs"
        else repr(char)[1:-1]
        for char in text
    )


class Output(io.TextIOWrapper):
    """Standard output or error: its own errors carry its name, as those of other files do."""

    @staticmethod
    def of(stream: Any) -> Output:
        """Write to where a stream does; characters that its encoding lacks are written out."""
        return Output(
            stream.buffer,
            encoding=stream.encoding,
            errors="backslashreplace",
            line_buffering=stream.line_buffering,
        )

    def write(self, text: str, /) -> int:
        with self._named():
            return super().write(text)

    def flush(self) -> None:
        with self._named():
            super().flush()

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename = self.name
            raise


def echo(text: str) -> None:
    """Print a line of the answer to standard output."""
    typer.echo(printable(text, keep=LINES))


def note(text: str) -> None:
    """Print a note to standard error, so that output can be piped."""
    typer.echo(printable(text, keep=LINES), err=True)


def exit_code(job: Job) -> int:
    """Return 1 if the job ended without success, else 0."""
    return errors.EXIT_JOB_FAILED if job.ended and not job.succeeded else errors.EXIT_OK


def follow_command(deployment: Deployment, run: str) -> str:
    """Build the command that follows a run again."""
    return f"{cli_command(deployment)} logs {run} --follow"


def status_command(deployment: Deployment, run: str) -> str:
    """Build the command that shows a run's status or end."""
    return f"{cli_command(deployment)} status {run}"


def cli_command(deployment: Deployment) -> str:
    """Build `python -m jobs` with the options that select the deployment."""
    name = "" if deployment.name == DEFAULT_DEPLOYMENT else f" --deployment {deployment.name}"
    region = f" --region {deployment.region}" if deployment.region else ""
    return f"python -m jobs{name}{region}"


def is_asked_about(requests: Iterable[JobRequest]) -> bool:
    """Tell whether jobs use Trainium nodes, or may together cost ``ASK_FROM_USD`` or more."""
    jobs = list(requests)
    takes_nodes = any(job.hardware is not Hardware.CPU for job in jobs)
    return takes_nodes or sum(job.usd_at_time_limit for job in jobs) >= ASK_FROM_USD


def confirm(what: str, *, question: str, declined: str) -> None:
    """Ask on the terminal; refuse if there is none, or on any answer but yes."""
    if not sys.stdin.isatty():
        raise Refusal(
            "not-confirmed",
            f"{what} is asked about, and standard input is not a terminal; add --yes",
        )
    typer.echo(f"{question} [y/N] ", nl=False, err=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refusal("declined", f"not confirmed; {declined}")
