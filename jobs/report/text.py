"""Print a report in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from jobs.report import figures
from jobs.report.document import ReportDocument
from trainium_catalogue.wording import counted

if TYPE_CHECKING:
    from rich.console import Console

_MAX_CHECKPOINTS = 10


def show(console: Console, document: ReportDocument) -> None:
    """Print the report."""
    console.print(f"{document.run} ({document.workload or 'unknown workload'}): {document.state}")
    for name, text in _figures(document):
        console.print(f"  {name:<19}{text}", soft_wrap=True)
    if document.attempts:
        console.print()
        console.print(_table(figures.attempts_table(document).without("started", "reason")))
    for attempt in document.attempts:
        if attempt.code and (reason := figures.reason(attempt)):
            name = figures.attempt_name(document, attempt)
            console.print(f"{name}: {reason}", soft_wrap=True)
    if document.checkpoints:
        shown = document.checkpoints[-_MAX_CHECKPOINTS:]
        console.print()
        console.print(_table(figures.checkpoints_table(shown)))
        if len(document.checkpoints) > len(shown):
            earlier = counted(len(document.checkpoints) - len(shown), "earlier one")
            console.print(f"and {earlier}")
    console.print()
    for text in (*document.unknown, figures.cost_note(document)):
        console.print(f"- {text}", soft_wrap=True)


def _figures(document: ReportDocument) -> list[tuple[str, str]]:
    least = figures.at_least(document)
    paid = f"{least}{figures.node_hours(document)} node-hours in {figures.attempt_count(document)}"
    cost = f"{least}{figures.usd(document.usd)}"
    if document.usd_per_million_tokens is not None:
        cost += f", {figures.usd(document.usd_per_million_tokens)} per million tokens"
    found = [("paid", paid), ("cost", cost)]
    if document.began_at is not None:
        until = f", ended {figures.time(document.ended_at)}" if document.ended_at else ""
        found.append(("submitted", f"{figures.time(document.began_at)}{until}"))
    if document.steps is None:
        return found
    loss = "" if document.last_loss is None else f", loss {figures.loss(document.last_loss)}"
    if (held_out := document.last_validation) is not None:
        loss += f", validation loss {figures.loss(held_out.loss)} after step {held_out.step:,}"
    speed = []
    if document.tokens_per_second is not None:
        speed.append(f"{document.tokens_per_second:,.0f} tokens/s")
    if document.steps_per_second is not None:
        speed.append(f"{document.steps_per_second:.3g} steps/s")
    if document.mfu is not None:
        speed.append(f"MFU {document.mfu:.1%}")
    goodput = "unknown"
    if document.goodput is not None:
        goodput = f"{document.goodput:.1%} of paid time spent on steps that count"
    return [
        ("steps", f"{figures.steps(document)}{loss}"),
        ("repeated steps", figures.repeated_steps(document)),
        ("speed", ", ".join(speed) or "unknown"),
        ("goodput", goodput),
        *found,
    ]


def _table(content: figures.TextTable) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for heading in content.headings:
        table.add_column(heading, justify="right" if heading in figures.NUMBERS else "left")
    for row in content.rows:
        table.add_row(*row)
    return table
