"""Terminal output for users: notes, follow-up commands and confirmations."""

from __future__ import annotations

import io
import json
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from jobs import errors
from jobs.deployment import Deployment, cli_command
from jobs.errors import Refusal
from jobs.job import Job, JobRequest
from trainium_catalogue.documents import as_document
from trainium_catalogue.workloads import Hardware

LINES = "\n\t"
"""Control characters allowed in multi-line text."""
ASK_FROM_USD = 10
"""Cost at the time limit from which CPU jobs need confirmation: half an hour of a trn1.32xlarge."""


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


def parse_time(text: object) -> datetime | None:
    """Parse a time from a document in the bucket; None for anything else."""
    try:
        then = datetime.fromisoformat(str(text))
    except (ValueError, OverflowError):
        return None
    return then if then.tzinfo is not None else then.replace(tzinfo=UTC)


def age_s(text: object, now: datetime) -> float | None:
    """Return the seconds since a time; None if the text is not a time."""
    then = parse_time(text)
    return None if then is None else max(0.0, (now - then).total_seconds())


def age(text: object, now: datetime) -> str | None:
    """Format the duration since a time; None if the text is not a time."""
    seconds = age_s(text, now)
    return None if seconds is None else duration(seconds)


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
    """Escape control and other nonprintable characters, except those in ``keep`` and spaces.

    File names and messages may come from the bucket.
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
    """A standard stream that adds its name to an ``OSError``, as ordinary files do."""

    @staticmethod
    def of(stream: Any) -> Output:
        """Wrap a stream, and escape characters that its encoding lacks."""
        return Output(
            stream.buffer,
            encoding=stream.encoding,
            errors="backslashreplace",
            line_buffering=stream.line_buffering,
        )

    def write(self, text: str, /) -> int:
        with self._add_filename():
            return super().write(text)

    def flush(self) -> None:
        with self._add_filename():
            super().flush()

    @contextmanager
    def _add_filename(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename = self.name
            raise


def echo(text: str) -> None:
    """Print a line of output to standard output."""
    print(printable(text, keep=LINES), flush=True)


def note(text: str) -> None:
    """Print a note to standard error, so that output can be piped."""
    print(printable(text, keep=LINES), file=sys.stderr, flush=True)


def exit_code(job: Job) -> int:
    """Return the exit code for a job: 1 if it failed, else 0."""
    return errors.EXIT_JOB_FAILED if job.ended and not job.succeeded else errors.EXIT_OK


def follow_command(deployment: Deployment, run: str) -> str:
    """Build the command that follows a run again."""
    return f"{cli_command(deployment)} logs {run} --follow"


def status_command(deployment: Deployment, run: str) -> str:
    """Build the command that shows a run's status."""
    return f"{cli_command(deployment)} status {run}"


def needs_confirmation(requests: Iterable[JobRequest]) -> bool:
    """Return whether jobs need confirmation: on Trainium nodes, or at ``ASK_FROM_USD`` or more."""
    jobs = list(requests)
    takes_nodes = any(job.hardware is not Hardware.CPU for job in jobs)
    return takes_nodes or sum(job.usd_at_time_limit for job in jobs) >= ASK_FROM_USD


def confirm(what: str, *, question: str, declined: str) -> None:
    """Ask on the terminal; refuse without a terminal, or on any answer but yes."""
    if not sys.stdin.isatty():
        raise Refusal(
            "not-confirmed",
            f"{what} needs confirmation, but standard input is not a terminal; add --yes",
        )
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refusal("declined", f"not confirmed; {declined}")
