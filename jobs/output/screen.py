"""Show a job on the terminal until it ends: labeled log lines and remarks."""

from __future__ import annotations

import gc
import sys
import time
from datetime import datetime
from typing import TextIO

from rich.table import Table
from rich.text import Text

from jobs.deployment import Deployment
from jobs.job import LAUNCHER_VERDICT, Attempt, Explanation, Job, JobKind, Shape
from jobs.orchestrators import JobService
from jobs.output.console import duration, follow_command, timestamp
from jobs.output.explain import explain, explain_exit, is_informative
from jobs.output.follow import (
    AttemptEnded,
    AttemptStarted,
    Clock,
    Event,
    Follower,
    JobEnd,
    NoResponse,
    StatusChanged,
    StillWaiting,
)
from jobs.output.startup import NodeReady, StartupFilter
from jobs.output.streams import LogLine, Streams
from jobs.output.tables import node_table
from jobs.output.terminal import Terminal, with_colors
from trainium_catalogue.contract import run_prefix
from trainium_catalogue.exit_codes import RETRIED
from trainium_catalogue.wording import counted

_COLORS = ("cyan", "green", "magenta", "yellow", "blue", "bright_red", "bright_cyan", "white")
_NO_REASON = "{} reports no reason"
_POLL_S = 5.0
_RESUME = "submit it again to resume"


class Screen:
    """The terminal, with the nodes' lines on standard output and remarks on standard error."""

    def __init__(self, *, part: str = "node", lines_to: TextIO | None = None) -> None:
        self._part = part
        self._lines_to = lines_to or sys.stdout
        self._lines = Terminal(file=self._lines_to, soft_wrap=True)
        self._remarks = Terminal(file=sys.stderr, soft_wrap=True)

    def event(self, event: Event) -> None:
        """Show one event of a follower."""
        if isinstance(event, LogLine):
            self.line(event)
        elif isinstance(event, NodeReady):
            label = node_label(event, self._part).removesuffix(" |")
            self.remark(
                f"{label}: ready after {event.seconds:.0f} s ({counted(event.lines, 'line')} "
                "hidden; see --verbose or logs)"
            )
        elif not isinstance(event, JobEnd):
            self.remark(describe_event(event))

    def line(self, line: LogLine) -> None:
        """Show one line of a node."""
        label = node_label(line, self._part)
        if self._lines.is_terminal:
            text = Text(f"{label} ", style=_COLORS[line.node % len(_COLORS)])
            # With carriage returns, a terminal would show only the last part.
            shown = with_colors(line.message.rpartition("\r")[2])
            self._lines.print(text.append_text(Text.from_ansi(shown)))
        else:
            # Output piped to `less -R` or `grep` may still reach a terminal.
            self._lines_to.write(f"{label} {with_colors(line.message)}\n")
            self._lines_to.flush()

    def remark(self, text: str) -> None:
        """Print a remark about the job."""
        self._remarks.print(Text(f"{datetime.now():%H:%M:%S} ", style="dim").append(text))

    def table(self, table: Table) -> None:
        """Show a table on standard error."""
        self._remarks.print(table)


def node_label(line: LogLine | NodeReady, part: str = "node") -> str:
    """Build the label ``node 1 |`` or ``child 1 |``, with the attempt number of a retry."""
    attempt = f", attempt {line.attempt}" if line.attempt > 1 else ""
    return f"{part} {line.node}{attempt} |"


def describe_event(
    event: StatusChanged | AttemptEnded | AttemptStarted | StillWaiting | NoResponse,
) -> str:
    """Describe an event in one remark."""
    match event:
        case StatusChanged(status=status, reason=reason, explanation=waits):
            found = waits or explain(exit_code=None, reasons=(reason,))
            why = f": {reason}" if is_informative(reason) else ""
            return f"{status}{why}{f' - {found.meaning}; {found.remedy}' if found else ''}"
        case AttemptEnded(attempt=attempt, max_attempts=most, orchestrator=by):
            of = f" of {most}" if most else ""
            ending = describe_outcome(attempt)
            return f"attempt {attempt.number}{of} ended, {ending}; {by.who} starts another attempt"
        case AttemptStarted(number=number):
            return f"attempt {number}"
        case StillWaiting(seconds=seconds, explanation=found, orchestrator=by, status=status):
            why = f": {event.reason}" if event.reason else f" and {by.who} reports no reason"
            advice = f": {found.meaning}; {found.remedy}" if found else ""
            return f"still {status} after {duration(seconds)}{why}{advice}"
        case NoResponse(message=message):
            return f"no response, retrying: {message}"


def describe_outcome(attempt: Attempt) -> str:
    """Describe how an attempt ended."""
    parts = [] if attempt.exit_code is None else [f"exit code {attempt.exit_code}"]
    reasons = attempt.status_reason, attempt.reason
    parts += [str(reason) for reason in dict.fromkeys(reasons) if is_informative(reason)]
    found = explain(exit_code=attempt.exit_code, reasons=reasons)
    if found:
        parts.append(found.meaning)
    return ", ".join(parts) or "no exit code"


def verdict(job: Job, *, bucket: str, cause: str | None = None) -> str:
    """Build the final sentence about a run; ``cause`` is its launcher's reason, if known."""
    if job.succeeded:
        success = f"run {job.run} succeeded{_run_time(job, ' after')}"
        if job.shape.kind is not JobKind.NODES:
            # Data and export jobs write no results; their log lists the output.
            return success
        return f"{success}; results are in s3://{bucket}/{run_prefix(job.run, 'results')}"
    if not job.ended:
        return f"run {job.run} is {job.status}"
    ending = job.ending
    code = ending.exit_code if ending else None
    reasons = job.status_reason, ending.reason if ending else None
    parts = [] if code is None else [f"exit code {code}"]
    parts += [str(reason) for reason in dict.fromkeys((*reasons, cause)) if is_informative(reason)]
    found = explain(exit_code=code, reasons=reasons)
    if found and code in RETRIED and found == explain_exit(code):
        # The remedy for such a code is another attempt, but none are left.
        parts += [] if cause else [found.meaning]
        parts.append("no attempts left; fix the cause and submit the run again to resume it")
    elif found:
        parts += [found.meaning, found.remedy]
    if job.was_stopped:
        # The nodes' exit codes do not matter, because the stop was requested.
        return f"run {job.run} was {job.status_reason}{_run_time(job, ', after')}; {_RESUME}"
    failed = f"run {job.run} failed{_run_time(job, ' after')}"
    return f"{failed}: {'; '.join(parts) or _NO_REASON.format(job.orchestrator.who)}"


def describe_status(job: Job, waiting: Explanation | None) -> str:
    """Describe a job's status, and why it waits."""
    of = f" of {job.max_attempts}" if job.max_attempts else ""
    # An array's children are retried individually: the table shows their attempts.
    is_array = job.shape.kind is JobKind.ARRAY
    attempt = "" if job.ended or is_array else f", attempt {len(job.attempts) + 1}{of}"
    size = job.shape.kind.sized(job.num_nodes)
    lines = [f"run {job.run}: {job.status}, {size}{attempt}, job {job.job_id}"]
    lines.append(
        f"submitted {timestamp(job.created_at_ms)}{_run_time(job, ', took')}{_total_time(job)}"
    )
    # Volcano's pod index is the node rank, so there is no need to search logs for it.
    if job.nodes and job.nodes[0].name is not None:
        lines.append(f"rank 0 runs in pod {job.nodes[0].name}")
    found = waiting or explain(exit_code=None, reasons=(job.status_reason,))
    if not job.ended and is_informative(job.status_reason):
        lines.append(str(job.status_reason))
    if not job.ended and found:
        lines.append(f"{found.meaning}; {found.remedy}")
    return "\n".join(lines)


def _run_time(job: Job, prefix: str) -> str:
    """Describe how long the job, or its last attempt, ran; empty if unknown."""
    if job.started_at_ms is None or job.stopped_at_ms is None:
        return ""
    last = f" in attempt {len(job.attempts)}" if len(job.attempts) > 1 else ""
    return f"{prefix} {duration((job.stopped_at_ms - job.started_at_ms) / 1000)}{last}"


def _total_time(job: Job) -> str:
    """Describe the total duration of several attempts, or else the time from submission to end."""
    if len(job.attempts) < 2 or not job.ended or job.stopped_at_ms is None:
        return ""
    times = [(attempt.started_at_ms, attempt.stopped_at_ms) for attempt in job.attempts]
    if all(started is not None and stopped is not None for started, stopped in times):
        ran_ms = sum((stopped or 0) - (started or 0) for started, stopped in times)
        return f", {duration(ran_ms / 1000)} in {len(times)} attempts"
    # Kubernetes does not keep the times of attempts whose pods were deleted.
    if job.created_at_ms is None:
        return ""
    waited_s = (job.stopped_at_ms - job.created_at_ms) / 1000
    return f", ended {duration(waited_s)} after it was submitted"


def watch(
    service: JobService,
    deployment: Deployment,
    *,
    run: str,
    job_id: str,
    shape: Shape,
    only_node: int | None = None,
    keep_lines: bool = False,
    folds: bool = False,
) -> tuple[Job, list[LogLine]]:
    """Follow a run until it ends, even if it moves to another zone.

    With ``keep_lines``, standard output is reserved for a document, which contains every line; with
    ``folds``, each launcher's startup lines are folded into one.
    """
    gc.enable()  # off for a quick start; see jobs/__main__.py
    part = shape.kind.part
    screen = Screen(part=part, lines_to=sys.stderr if keep_lines else sys.stdout)
    if shape.is_large and only_node is None:
        failed = "failed children" if shape.kind is JobKind.ARRAY else "the node that fails"
        screen.remark(
            f"following {part} 0 of {shape.size}, and the last lines of {failed}; for another "
            f"{part}: {follow_command(deployment, run)} --node I"
        )
    kept: list[LogLine] = []
    while True:
        causes: dict[tuple[int, int], str] = {}
        follower = Follower(
            describe=service.describe,
            streams=_streams(service, only_node, is_selective=True),
            job_id=job_id,
            clock=Clock(now=time.time, sleep=time.sleep),
            why_waiting=service.why_waiting,
            waits_for=service.waits_for,
            startup=StartupFilter() if folds else None,
        )
        try:
            for event in follower.events():
                if isinstance(event, JobEnd):
                    job = event.job  # the last event
                elif isinstance(event, LogLine):
                    if keep_lines:
                        kept.append(event)
                    if match := LAUNCHER_VERDICT.match(event.message):
                        causes[event.node, event.attempt] = event.message[match.end() :]
                screen.event(event)
            newer = _wait_for_move(service, job)
        except KeyboardInterrupt:
            again = follow_command(deployment, run)
            screen.remark(f"run {run} keeps running (job {job_id}); follow it again with: {again}")
            raise
        if newer is None:
            break
        job_id = newer
    screen.table(node_table(job))
    # For an array, the failed child determines the outcome, not child 0.
    ending = None if shape.kind is JobKind.ARRAY else job.ending
    cause = causes.get((0, ending.number)) if ending else None
    screen.remark(verdict(job, bucket=deployment.bucket, cause=cause))
    return job, kept


def _wait_for_move(service: JobService, job: Job) -> str | None:
    """Wait for a moving job's resubmission and return its new id; None if it is not moving."""
    while service.is_moving(job):
        newest = service.runs(job.run)[0]
        if newest.job_id != job.job_id:
            return newest.job_id
        time.sleep(_POLL_S)
    return None


def existing_lines(service: JobService, job: Job, *, only_node: int | None) -> list[LogLine]:
    """Read the lines printed so far, sorted by time."""
    return _streams(service, only_node).read_all(job)


def _streams(service: JobService, only_node: int | None, *, is_selective: bool = False) -> Streams:
    return Streams(
        logs=service.logs(),
        log_group=service.log_group,
        only_node=only_node,
        is_selective=is_selective,
        find_more=service.find_logs,
    )
