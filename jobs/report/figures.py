"""A report's figures as text, for the terminal and the HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.output.console import duration, human, timestamp
from jobs.report.curves import parse_timestamp
from jobs.report.document import ReportDocument, ReportedAttempt, ReportedCheckpoint
from trainium_catalogue.wording import counted
from trainium_catalogue.workloads import WORKLOADS, Hardware

SPENT = {
    "steps": "steps that count",
    "repeated": "repeated steps",
    "checkpoints": "pauses for checkpoints",
    "validation": "validation",
    "starting": "startup and compilation, until training is at full speed",
    "other": "other: waiting for other nodes, shutdown, lost work",
}
"""Descriptions of the parts of paid time, by their names in the document."""


def cost_note(document: ReportDocument) -> str:
    """Describe what the estimated cost includes and excludes."""
    note = (
        f"Estimate at list prices of {document.prices_of} (us-east-1, on demand): nodes from the "
        "start of the main node's launcher to the end of each attempt. Not included: hosts that "
        "boot, pull the image, wait between attempts or are idle; network, cluster, file system "
        "and storage"
    )
    if workload_hardware(document) is Hardware.CPU:
        return (
            f"Estimate at list prices of {document.prices_of} (us-east-1, on demand; Spot costs "
            "less): one instance for each container, from its start to its end. Not included: "
            "hosts that boot or are idle, network and storage"
        )
    return f"{note}; jobs that compiled or collected dependencies are separate runs"


GOODPUT = (
    "Goodput is the share of paid node-seconds spent on steps that count. A repeated step counts "
    "once; loading, compiling, saving and validating do not count. The first step of an attempt, "
    "which compiles or loads graphs, counts as the mean of the others."
)


def workload_hardware(document: ReportDocument) -> Hardware:
    """Return the hardware of the run."""
    known = WORKLOADS.get(document.workload or "")
    return known.hardware if known is not None else Hardware.TRAINIUM


def at_least(document: ReportDocument) -> str:
    """Return a prefix for figures that are lower bounds of time."""
    return "at least " if document.is_time_lower_bound else ""


def steps(document: ReportDocument) -> str:
    """Format the steps that count."""
    if document.steps is None:
        return "unknown"
    of = f" of {document.max_steps:,}" if document.max_steps else ""
    return f"{document.steps:,}{of}"


def repeated_steps(document: ReportDocument) -> str:
    """Format the number of repeated steps."""
    if document.repeated_steps is None:
        return "unknown"
    least = "at least " if document.is_repeated_lower_bound and len(document.attempts) > 1 else ""
    return f"{least}{document.repeated_steps:,}"


def loss(value: float) -> str:
    """Format a loss, including a small one."""
    return f"{value:.4f}" if abs(value) >= 0.001 or value == 0 else f"{value:.2e}"


def node_hours(document: ReportDocument) -> str:
    """Format the paid node-hours."""
    hours = document.node_seconds / 3600
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"


def usd(amount: float | None) -> str:
    """Format an amount in USD, with two significant digits for small ones."""
    if amount is None:
        return "unknown"
    return f"${amount:,.2f}" if amount >= 1 or amount == 0 else f"${amount:.2g}"


def ending(attempt: ReportedAttempt) -> str:
    """Describe how an attempt ended."""
    if attempt.is_running:
        return "running"
    if attempt.code is None:
        return "end not recorded" if attempt.ended_at is None else "ended, exit code unknown"
    return f"{attempt.code} {attempt.code_name}" if attempt.code_name else str(attempt.code)


def reason(attempt: ReportedAttempt) -> str:
    """Describe why an attempt ended: its reason or its exit code's meaning, and lost nodes."""
    main = attempt.reason or attempt.meaning or ""
    lost = [node for node in attempt.lost if f"node {node.node} was lost" not in main]
    more = [f"node {node.node} was lost: {node.reason}" for node in lost]
    return "; ".join([main, *more] if main else more)


def seconds_between(first: str | None, last: str | None) -> float | None:
    """Return the seconds between two times; None unless both are known."""
    begin, end = parse_timestamp(first), parse_timestamp(last)
    return None if begin is None or end is None else max(0.0, end - begin)


def length(seconds: float | None) -> str:
    """Format a duration, with tenths of a second if short; empty if unknown."""
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if 600 <= seconds < 3570 else duration(seconds)


def attempt_count(document: ReportDocument) -> str:
    """Format the number of attempts and jobs."""
    jobs = counted(max(1, len(document.jobs)), "job")
    return f"{counted(len(document.attempts), 'attempt')} of {jobs}"


def is_of_array(document: ReportDocument) -> bool:
    """Return whether the attempts belong to children of an array."""
    return any(attempt.child for attempt in document.attempts)


def job_number(document: ReportDocument, attempt: ReportedAttempt) -> str:
    """Return the number of an attempt's job; empty if unknown."""
    ids = [job.job_id for job in document.jobs]
    return str(ids.index(attempt.job_id) + 1) if attempt.job_id in ids else ""


def attempt_name(document: ReportDocument, attempt: ReportedAttempt) -> str:
    """Name an attempt, with its job if there are several, and its child in an array."""
    number = job_number(document, attempt)
    of = f" of job {number}" if number and len(document.jobs) > 1 else ""
    child = f", child {attempt.child}" if is_of_array(document) else ""
    return f"attempt {attempt.attempt}{of}{child}"


def attempt_seconds(attempt: ReportedAttempt) -> float:
    """Return the seconds from an attempt's start to its end, or to when it was last seen."""
    return attempt.node_seconds / attempt.num_nodes


NUMBERS = frozenset(
    {"job", "child", "nodes", "waited", "startup", "duration", "steps", "repeated", "size",
     "paused", "node-time", "share"}
)  # fmt: skip
"""Right-aligned columns."""


@dataclass(frozen=True, slots=True)
class TextTable:
    """Headings and cells of a table, without empty columns."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @staticmethod
    def of(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> TextTable:
        """Build a table without its empty columns."""
        filled = [index for index in range(len(headings)) if any(row[index] for row in rows)]
        return TextTable(
            headings=tuple(headings[index] for index in filled),
            rows=tuple(tuple(row[index] for index in filled) for row in rows),
        )

    def without(self, *names: str) -> TextTable:
        """Return the table without some columns."""
        kept = [name for name in self.headings if name not in names]
        places = [self.headings.index(name) for name in kept]
        return TextTable.of(kept, [[row[place] for place in places] for row in self.rows])


def attempts_table(document: ReportDocument) -> TextTable:
    """Build the table of attempts, ordered by start."""
    headings = ("attempt", "job", "child", "nodes", "started", "waited", "startup",
                "duration", "steps", "repeated", "end", "reason")  # fmt: skip
    of_array, several = is_of_array(document), len(document.jobs) > 1
    return TextTable.of(
        headings,
        [
            (
                str(attempt.attempt),
                job_number(document, attempt) if several else "",
                str(attempt.child) if of_array else "",
                str(attempt.num_nodes),
                time(attempt.started_at),
                length(seconds_between(attempt.waited_since, attempt.started_at)),
                length(seconds_between(attempt.started_at, attempt.trained_at)),
                length(attempt_seconds(attempt)),
                _step_range(attempt),
                "" if attempt.repeated_steps is None else f"{attempt.repeated_steps:,}",
                ending(attempt),
                reason(attempt),
            )
            for attempt in document.attempts
        ],
    )


def _step_range(attempt: ReportedAttempt) -> str:
    """Format the steps of an attempt; only the last one if the first is unknown."""
    if attempt.reached_step is None or attempt.from_step is None:
        return "" if attempt.reached_step is None else f"{attempt.reached_step:,}"
    return f"{attempt.from_step + 1:,}-{attempt.reached_step:,}"


def checkpoints_table(checkpoints: Sequence[ReportedCheckpoint]) -> TextTable:
    """Build the table of checkpoints or snapshots."""
    return TextTable.of(
        ("checkpoint", "complete", "size", "paused", "failure"),
        [
            (
                f"step {item.step:,}" if item.step is not None else f"snapshot {item.number}",
                time(item.at) if item.at else "unknown",
                "" if item.bytes is None else human(item.bytes),
                length(item.paused_s),
                item.failure or "",
            )
            for item in checkpoints
        ],
    )


def time(text: str | None) -> str:
    """Format a document's time, or "unknown" if the text is not a time."""
    seconds = parse_timestamp(text)
    return timestamp(round(seconds * 1000)) if seconds is not None else "unknown"
