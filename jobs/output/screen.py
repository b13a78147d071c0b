"""A job on the screen: labelled log lines, remarks, and following to the end."""

from __future__ import annotations

import gc
import sys
import time
from datetime import datetime
from typing import TextIO

from rich.table import Table
from rich.text import Text

from jobs.deployment import Deployment
from jobs.job import LAUNCHERS_VERDICT, Attempt, Explanation, Job, JobKind, counted
from jobs.orchestrators import JobService
from jobs.output.beginnings import Beginnings, NodeReady
from jobs.output.console import duration, follow_command, timestamp
from jobs.output.explain import explain, explain_exit, is_news
from jobs.output.follow import (
    AttemptBegan,
    AttemptEnded,
    Clock,
    Ended,
    Event,
    Follower,
    StatusChanged,
    StillWaiting,
    Trouble,
)
from jobs.output.streams import LogLine, Streams
from jobs.output.tables import node_table
from jobs.output.terminal import Terminal, with_colours
from trainium_catalogue.contract import run_prefix
from trainium_catalogue.exit_codes import RETRIED

_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_red", "bright_cyan", "white")
_NO_REASON = "{} gives no reason"
_GO_ON = "submit it again to go on"


class Screen:
    """The terminal: standard output for the nodes' lines, standard error for remarks."""

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
                f"{label}: ready after {event.seconds:.0f} s ({counted(event.lines, 'line')}; "
                "--verbose or logs shows them)"
            )
        elif not isinstance(event, Ended):
            self.remark(describe_event(event))

    def line(self, line: LogLine) -> None:
        """Show one line of a node."""
        label = node_label(line, self._part)
        if self._lines.is_terminal:
            text = Text(f"{label} ", style=_COLOURS[line.node % len(_COLOURS)])
            # Of a line that was written over with carriage returns, a terminal shows the last.
            shown = with_colours(line.message.rpartition("\r")[2])
            self._lines.print(text.append_text(Text.from_ansi(shown)))
        else:
            # `| less -R` and `| grep` lead to a terminal too.
            self._lines_to.write(f"{label} {with_colours(line.message)}\n")
            self._lines_to.flush()

    def remark(self, text: str) -> None:
        """Print a remark about the job."""
        self._remarks.print(Text(f"{datetime.now():%H:%M:%S} ", style="dim").append(text))

    def table(self, table: Table) -> None:
        """Show a table on standard error, after the lines."""
        self._remarks.print(table)


def node_label(line: LogLine | NodeReady, part: str = "node") -> str:
    """Build the label ``node 1 |`` or ``child 1 |``, with the attempt unless it is the first."""
    attempt = f", attempt {line.attempt}" if line.attempt > 1 else ""
    return f"{part} {line.node}{attempt} |"


def describe_event(
    event: StatusChanged | AttemptEnded | AttemptBegan | StillWaiting | Trouble,
) -> str:
    """Describe an event in one remark."""
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
    """Describe how an attempt ended."""
    parts = [] if attempt.exit_code is None else [f"exit code {attempt.exit_code}"]
    reasons = attempt.status_reason, attempt.reason
    parts += [str(reason) for reason in dict.fromkeys(reasons) if is_news(reason)]
    found = explain(exit_code=attempt.exit_code, reasons=reasons)
    if found:
        parts.append(found.meaning)
    return ", ".join(parts) or "no exit code"


def verdict(job: Job, *, bucket: str, cause: str | None = None) -> str:
    """Build the final sentence about a run; ``cause`` is its launcher's own, if known."""
    if job.succeeded:
        success = f"run {job.run} succeeded{_took(job, ' after')}"
        if job.shape.kind is not JobKind.NODES:
            # Data and export jobs write none; their log says what they made and where.
            return success
        return f"{success}; results are in s3://{bucket}/{run_prefix(job.run, 'results')}"
    if not job.ended:
        return f"run {job.run} is {job.status}"
    ending = job.ending
    code = ending.exit_code if ending else None
    reasons = job.status_reason, ending.reason if ending else None
    said = [] if code is None else [f"exit code {code}"]
    said += [str(reason) for reason in dict.fromkeys((*reasons, cause)) if is_news(reason)]
    found = explain(exit_code=code, reasons=reasons)
    if found and code in RETRIED and found == explain_exit(code):
        # The table says of such a code that another attempt follows, but none will any more.
        said += [] if cause else [found.meaning]
        said.append("no attempt is left; when the cause is gone, submit the run again to resume it")
    elif found:
        said += [found.meaning, found.remedy]
    if job.was_stopped:
        # The nodes' exit codes do not matter then: stopping was requested.
        return f"run {job.run} was {job.status_reason}{_took(job, ', after')}; {_GO_ON}"
    failed = f"run {job.run} failed{_took(job, ' after')}"
    return f"{failed}: {'; '.join(said) or _NO_REASON.format(job.orchestrator.who)}"


def describe_status(job: Job, waiting: Explanation | None) -> str:
    """Describe a job's state, and why it waits."""
    of = f" of {job.max_attempts}" if job.max_attempts else ""
    # An array's children are retried one by one: the table shows their attempts.
    is_array = job.shape.kind is JobKind.ARRAY
    attempt = "" if job.ended or is_array else f", attempt {len(job.attempts) + 1}{of}"
    size = job.shape.kind.sized(job.num_nodes)
    lines = [f"run {job.run}: {job.status}, {size}{attempt}, job {job.job_id}"]
    lines.append(
        f"submitted {timestamp(job.created_at_ms)}{_took(job, ', took')}{_took_in_all(job)}"
    )
    # Volcano's index is the rank, so nobody has to read logs to find it.
    if job.nodes and job.nodes[0].name is not None:
        lines.append(f"rank 0 is pod {job.nodes[0].name}")
    found = waiting or explain(exit_code=None, reasons=(job.status_reason,))
    if not job.ended and is_news(job.status_reason):
        lines.append(str(job.status_reason))
    if not job.ended and found:
        lines.append(f"{found.meaning}; {found.remedy}")
    return "\n".join(lines)


def _took(job: Job, word: str) -> str:
    """Describe how long it ran; after several attempts, how long the last one did."""
    if job.started_at_ms is None or job.stopped_at_ms is None:
        return ""
    last = f" of attempt {len(job.attempts)}" if len(job.attempts) > 1 else ""
    return f"{word} {duration((job.stopped_at_ms - job.started_at_ms) / 1000)}{last}"


def _took_in_all(job: Job) -> str:
    """Describe how long several attempts took together, or else the run as a whole."""
    if len(job.attempts) < 2 or not job.ended or job.stopped_at_ms is None:
        return ""
    times = [(attempt.started_at_ms, attempt.stopped_at_ms) for attempt in job.attempts]
    if all(started is not None and stopped is not None for started, stopped in times):
        ran_ms = sum((stopped or 0) - (started or 0) for started, stopped in times)
        return f", {duration(ran_ms / 1000)} in {len(times)} attempts"
    # Of attempts whose pods are gone, Kubernetes tells no times.
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
    only_node: int | None = None,
    keep_lines: bool = False,
    folds: bool = False,
    part: str = "node",
) -> tuple[Job, list[LogLine]]:
    """Show a run until it ends; ``part`` is the word for its nodes.

    With ``keep_lines``, standard output stays free for a document, which has every line; with
    ``folds``, the launchers' first lines are shown as one.
    """
    gc.enable()  # off for a quick start; see jobs/__main__.py
    screen = Screen(part=part, lines_to=sys.stderr if keep_lines else sys.stdout)
    kept: list[LogLine] = []
    causes: dict[tuple[int, int], str] = {}
    follower = Follower(
        describe=service.describe,
        streams=_streams(service, only_node),
        job_id=job_id,
        clock=Clock(now=time.time, sleep=time.sleep),
        why_waiting=service.why_waiting,
        waits_for=service.waits_for,
        beginnings=Beginnings() if folds else None,
    )
    try:
        for event in follower.events():
            if isinstance(event, Ended):
                screen.table(node_table(event.job))
                ending = event.job.ending
                cause = causes.get((0, ending.number)) if ending else None
                # For an array, the failed child decides.
                cause = cause if part == "node" else None
                screen.remark(verdict(event.job, bucket=deployment.bucket, cause=cause))
                return event.job, kept
            if isinstance(event, LogLine):
                if keep_lines:
                    kept.append(event)
                if said := LAUNCHERS_VERDICT.match(event.message):
                    causes[event.node, event.attempt] = event.message[said.end() :]
            screen.event(event)
    except KeyboardInterrupt:
        come_back = follow_command(deployment, run)
        screen.remark(f"run {run} goes on (job {job_id}); come back with: {come_back}")
        raise
    raise AssertionError("a follower ends with Ended")


def existing_lines(service: JobService, job: Job, *, only_node: int | None) -> list[LogLine]:
    """Read the lines printed so far, sorted by time."""
    return _streams(service, only_node).read_all(job)


def _streams(service: JobService, only_node: int | None) -> Streams:
    return Streams(
        logs=service.logs(),
        log_group=service.log_group,
        only_node=only_node,
        find_more=service.find_logs,
    )
