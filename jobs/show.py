"""What people read: log lines with node labels, and tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jobs.explain import explain, is_news
from jobs.follow import (
    AttemptBegan,
    AttemptEnded,
    Ended,
    Event,
    StatusChanged,
    StillWaiting,
    Trouble,
)
from jobs.reasons import Explanation
from jobs.runs import Attempt, Job, Kind, RunSummary
from jobs.streams import LogLine
from trainium_catalogue.contract import run_prefix
from trainium_catalogue.workloads import Hardware

_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_red", "bright_cyan", "white")
_NO_REASON = "{} gives no reason"
_STATUS_COLOURS = {"SUCCEEDED": "green", "FAILED": "red", "RUNNING": "cyan"}


class Screen:
    """Where lines of nodes go, and where remarks about them go."""

    def __init__(self, *, part: str = "node", lines_to: TextIO | None = None) -> None:
        self._part = part
        self._lines_to = lines_to or sys.stdout
        self._lines = Console(file=self._lines_to, highlight=False, soft_wrap=True)
        self._remarks = Console(file=sys.stderr, highlight=False, soft_wrap=True)

    def event(self, event: Event) -> None:
        """Show one event of a follower."""
        if isinstance(event, LogLine):
            self.line(event)
        elif not isinstance(event, Ended):
            self.remark(describe_event(event))

    def line(self, line: LogLine) -> None:
        """Show one line of a node."""
        label = node_label(line, self._part)
        if self._lines.is_terminal:
            text = Text(f"{label} ", style=_COLOURS[line.node % len(_COLOURS)])
            self._lines.print(text.append_text(Text.from_ansi(line.message)))
        else:
            # A pipe or a file gets what the node wrote, unchanged.
            self._lines_to.write(f"{label} {line.message}\n")
            self._lines_to.flush()

    def remark(self, text: str) -> None:
        """Say something about the job."""
        self._remarks.print(Text(f"{datetime.now():%H:%M:%S} ", style="dim").append(text))

    def table(self, table: Table) -> None:
        """Show a table on standard error, after the lines."""
        self._remarks.print(table)


def node_label(line: LogLine, part: str = "node") -> str:
    """``node 1 |`` or ``child 1 |``, with the attempt when it is not the first."""
    attempt = f", attempt {line.attempt}" if line.attempt > 1 else ""
    return f"{part} {line.node}{attempt} |"


def describe_event(
    event: StatusChanged | AttemptEnded | AttemptBegan | StillWaiting | Trouble,
) -> str:
    """One remark about what happened."""
    match event:
        case StatusChanged(status=status, reason=reason, explanation=waits):
            found = waits or explain(exit_code=None, reasons=(reason,))
            said = f": {reason}" if is_news(reason) else ""
            return f"{status}{said}{f' - {found.meaning}; {found.remedy}' if found else ''}"
        case AttemptEnded(attempt=attempt, max_attempts=most, orchestrator=by):
            of = f" of {most}" if most else ""
            ending = describe_ending(attempt)
            return f"attempt {attempt.number}{of} ended, {ending}; {by.who} makes another one"
        case AttemptBegan(number=number):
            return f"attempt {number}"
        case StillWaiting(seconds=seconds, explanation=found, orchestrator=by, status=status):
            why = f": {event.reason}" if event.reason else f" and {by.who} gives no reason"
            said = f": {found.meaning}; {found.remedy}" if found else ""
            return f"still {status} after {duration(seconds)}{why}{said}"
        case Trouble(message=message):
            return f"no answer, trying on: {message}"


def describe_ending(attempt: Attempt) -> str:
    """How an attempt ended, in a few words."""
    parts = [] if attempt.exit_code is None else [f"exit code {attempt.exit_code}"]
    reasons = attempt.status_reason, attempt.reason
    parts += [str(reason) for reason in dict.fromkeys(reasons) if is_news(reason)]
    found = explain(exit_code=attempt.exit_code, reasons=reasons)
    if found:
        parts.append(found.meaning)
    return ", ".join(parts) or "no exit code"


def verdict(job: Job, *, bucket: str) -> str:
    """The last sentence about a run."""
    if job.succeeded:
        results = f"s3://{bucket}/{run_prefix(job.run, 'results')}"
        return f"run {job.run} succeeded{_took(job)}; results are in {results}"
    if not job.ended:
        return f"run {job.run} is {job.status}"
    ending, who = job.ending, job.orchestrator.who
    reasons = job.status_reason, ending.reason if ending else None
    found = explain(exit_code=ending.exit_code if ending else None, reasons=reasons)
    said = [] if ending is None or ending.exit_code is None else [f"exit code {ending.exit_code}"]
    said += [str(reason) for reason in dict.fromkeys(reasons) if is_news(reason)]
    if found:
        said += [found.meaning, found.remedy]
    return f"run {job.run} failed{_took(job)}: {'; '.join(said) or _NO_REASON.format(who)}"


def describe_status(job: Job, waiting: Explanation | None) -> str:
    """Where a job stands, and why it waits when it does."""
    of = f" of {job.max_attempts}" if job.max_attempts else ""
    # The children of an array are retried one by one: the table shows their attempts.
    is_array = job.shape.kind is Kind.ARRAY
    attempt = "" if job.ended or is_array else f", attempt {len(job.attempts) + 1}{of}"
    size = job.shape.kind.sized(job.num_nodes)
    lines = [f"run {job.run}: {job.status}, {size}{attempt}, job {job.job_id}"]
    took = _took(job).replace(" after ", ", took ")
    lines.append(f"submitted {timestamp(job.created_at_ms)}{took}")
    # Volcano's index is the rank, so nobody has to read logs to find it.
    if job.nodes and job.nodes[0].name is not None:
        lines.append(f"rank 0 is pod {job.nodes[0].name}")
    found = waiting or explain(exit_code=None, reasons=(job.status_reason,))
    if not job.ended and is_news(job.status_reason):
        lines.append(str(job.status_reason))
    if not job.ended and found:
        lines.append(f"{found.meaning}; {found.remedy}")
    return "\n".join(lines)


def node_table(job: Job) -> Table:
    """Nodes, attempts and how each ended."""
    table = Table()
    for heading in (job.shape.kind.part, "attempt", "status", "exit code", "reason"):
        table.add_column(heading, justify="left" if heading in ("status", "reason") else "right")
    for node in job.nodes:
        for attempt in node.attempts:
            status = node.status if attempt is node.last else "FAILED"
            code = "" if attempt.exit_code is None else str(attempt.exit_code)
            table.add_row(
                str(node.index), str(attempt.number), _status(status), code, _why(attempt)
            )
        if not node.attempts:
            table.add_row(str(node.index), "", _status(node.status), "", node.status_reason or "")
    return table


def runs_table(runs: Iterable[RunSummary]) -> Table:
    """The runs of a deployment."""
    table = Table()
    for heading in ("run", "status", "nodes", "submitted", "took", "reason"):
        table.add_column(heading, justify="right" if heading in ("nodes", "took") else "left")
    for run in runs:
        took = ""
        if run.started_at_ms and run.stopped_at_ms:
            took = duration((run.stopped_at_ms - run.started_at_ms) / 1000)
        table.add_row(
            run.run,
            _status(run.status),
            _size(run),
            timestamp(run.created_at_ms),
            took,
            str(run.status_reason) if is_news(run.status_reason) else "",
        )
    return table


def _size(run: RunSummary) -> str:
    if run.hardware is Hardware.CPU:
        return "CPU" if run.num_nodes in (None, 1) else f"{run.num_nodes} x CPU"
    return str(run.num_nodes or "")


def timestamp(milliseconds: int | None) -> str:
    """Local date and time."""
    if not milliseconds:
        return ""
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone():%Y-%m-%d %H:%M:%S}"


def duration(seconds: float) -> str:
    """``45 s``, ``3 min 5 s`` or ``2 h 10 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _took(job: Job) -> str:
    if job.started_at_ms is None or job.stopped_at_ms is None:
        return ""
    return f" after {duration((job.stopped_at_ms - job.started_at_ms) / 1000)}"


def _why(attempt: Attempt) -> str:
    """Why an attempt ended, without its exit code."""
    reasons = attempt.status_reason, attempt.reason
    said = [str(reason) for reason in dict.fromkeys(reasons) if is_news(reason)]
    found = explain(exit_code=attempt.exit_code, reasons=reasons)
    return "; ".join([*said, *([found.meaning] if found else [])])


def _status(status: str) -> Text:
    return Text(status, style=_STATUS_COLOURS.get(status, ""))
