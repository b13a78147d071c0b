"""Tables of a job's nodes and a deployment's runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from jobs.job import Attempt, Job, Node, RunSummary
from jobs.output.console import duration, timestamp
from jobs.output.explain import explain, explain_exit, is_informative
from trainium_catalogue.workloads import Hardware

_STATUS_COLORS = {"SUCCEEDED": "green", "FAILED": "red", "RUNNING": "cyan"}
_BORDERS = 3
"""Width of a column's borders."""
_REASON = 24
"""Minimum width of a readable reason."""


def node_table(job: Job) -> Table:
    """Build the table of nodes and attempts with their outcomes."""
    table = Table()
    for heading in (job.shape.kind.part, "attempt", "status", "exit code", "reason"):
        table.add_column(heading, justify="left" if heading in ("status", "reason") else "right")
    seen = {attempt.number for node in job.nodes for attempt in node.attempts}
    for attempt in job.attempts:
        if attempt.number not in seen:
            table.add_row("all", str(attempt.number), *_outcome_cells("FAILED", attempt))
    no_attempts = {(node.status, node.status_reason) for node in job.nodes if not node.attempts}
    if job.ended and len(no_attempts) == 1 and not any(node.attempts for node in job.nodes):
        # Pods may have been deleted, as after a stop: then one row covers all nodes.
        ((status, reason),) = no_attempts
        if reason or not job.attempts:
            table.add_row("all", "", _status(status), "", reason or job.status_reason or "")
        return table
    rows = [(node.index, cells) for node in job.nodes for cells in _node_cells(node)]
    if not job.shape.is_large:
        for index, cells in rows:
            table.add_row(str(index), *cells)
        return table
    # Nodes of a large job share a row if they differ only by index.
    shared: dict[str, tuple[list[int], tuple[str | Text, ...]]] = {}
    for index, cells in rows:
        indexes, _ = shared.setdefault("|".join(map(str, cells)), ([], cells))
        indexes.append(index)
    for indexes, cells in shared.values():
        table.add_row(_ranges(indexes), *cells)
    return table


def _node_cells(node: Node) -> Iterator[tuple[str | Text, ...]]:
    """Yield a row for each attempt of a node, without its index."""
    for attempt in node.attempts:
        status = node.status if attempt is node.last else "FAILED"
        yield str(attempt.number), *_outcome_cells(status, attempt)
    if not node.attempts:
        yield "", _status(node.status), "", node.status_reason or ""


def _ranges(indexes: Sequence[int]) -> str:
    """Format sorted indexes as ranges: 0-5, 7."""
    groups: list[list[int]] = []
    for index in indexes:
        if groups and index == groups[-1][-1] + 1:
            groups[-1].append(index)
        else:
            groups.append([index])
    return ", ".join(str(g[0]) if len(g) == 1 else f"{g[0]}-{g[-1]}" for g in groups)


def runs_table(runs: Sequence[RunSummary], *, width: int) -> tuple[Table, list[str]]:
    """Build the table of runs; also return the columns that do not fit into ``width``.

    Columns are dropped before names are truncated, so that names can be copied; only a name too
    wide for the terminal is folded.
    """
    columns: dict[str, list[str | Text]] = {
        "run": [run.run for run in runs],
        "status": [_status(run.status) for run in runs],
        "nodes": [_size(run) for run in runs],
        "submitted": [timestamp(run.created_at_ms) for run in runs],
        "last attempt": [_run_time(run) for run in runs],
        "reason": [reason_of(run) for run in runs],
    }
    if not any(columns["reason"]):
        del columns["reason"]
    left_out: list[str] = []
    for heading in ("last attempt", "submitted", "nodes", "reason"):
        if _width(columns) > width and heading in columns:
            del columns[heading]
            left_out.append(heading)
    table = Table()
    for heading in columns:
        is_number = heading in ("nodes", "last attempt")
        table.add_column(
            heading,
            justify="right" if is_number else "left",
            overflow="fold",
            no_wrap=heading != "reason" and _width(columns) <= width,
        )
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table, left_out


def reason_of(run: RunSummary) -> str:
    """Return why a run waits or failed; empty if its summary does not show it."""
    if is_informative(run.status_reason):
        return str(run.status_reason)
    found = explain_exit(run.exit_code) if run.status == "FAILED" else None
    return "" if found is None else f"exit code {run.exit_code}: {found.meaning}"


def _width(columns: dict[str, list[str | Text]]) -> int:
    """Return the minimum width of a table in characters."""
    cells = (
        min(longest, _REASON) if heading == "reason" else longest
        for heading, values in columns.items()
        for longest in [max(len(heading), *map(len, values))]
    )
    return sum(cells) + _BORDERS * len(columns) + 1


def _run_time(run: RunSummary) -> str:
    if not run.started_at_ms or not run.stopped_at_ms:
        return ""
    return duration((run.stopped_at_ms - run.started_at_ms) / 1000)


def _size(run: RunSummary) -> str:
    if run.hardware is Hardware.CPU:
        return "CPU" if run.num_nodes in (None, 1) else f"{run.num_nodes} x CPU"
    return str(run.num_nodes or "")


def _outcome_cells(status: str, attempt: Attempt) -> tuple[Text, str, str]:
    code = "" if attempt.exit_code is None else str(attempt.exit_code)
    return _status(status), code, _attempt_reason(attempt)


def _attempt_reason(attempt: Attempt) -> str:
    """Return why an attempt ended, without its exit code."""
    reasons = attempt.status_reason, attempt.reason
    parts = [str(reason) for reason in dict.fromkeys(reasons) if is_informative(reason)]
    found = explain(exit_code=attempt.exit_code, reasons=reasons)
    return "; ".join([*parts, *([found.meaning] if found else [])])


def _status(status: str) -> Text:
    return Text(status, style=_STATUS_COLORS.get(status, ""))
