"""A record of a verification for people: a table, and a block of Markdown for an issue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jobs.verify.verification import Record, Row, counts
from trainium_catalogue.probing import State

if TYPE_CHECKING:
    from rich.table import Table

_COLOURS = {State.GREEN: "green", State.RED: "red", State.CRASHED: "bold red"}
_FIRST = (State.CRASHED, State.RED, State.GREEN)
EMULATED = (
    "AWS was an emulator: green says that a probe works, and nothing about its claim; "
    "what needs hardware or an account was not run"
)


def title(record: Record) -> str:
    """What was looked at."""
    nodes, kind = record["num_nodes"], record["instance_type"] or record["device"]
    of = f"{nodes} x {kind}" if nodes else str(kind)
    return (
        f"{of}, Neuron {record['neuron_release']}, deployment {record['deployment']} in "
        f"{record['region']}, run {record['run'] or 'none'}, {record['time']}"
    )


def summary(rows: Sequence[Row]) -> str:
    """How many rows ended how."""
    return ", ".join(f"{number} {state}" for state, number in counts(rows).items())


def ordered(rows: Sequence[Row]) -> list[Row]:
    """What somebody has to look at first, then in the order of the document."""
    order = [str(state) for state in _FIRST]
    rank = {state: index for index, state in enumerate(order)}
    return sorted(rows, key=lambda row: rank.get(row.state, len(order)))


def table(rows: Sequence[Row]) -> Table:
    """One line a claim, with its words."""
    from rich.table import Table
    from rich.text import Text

    made = Table()
    made.add_column("id", no_wrap=True)
    made.add_column("", no_wrap=True)
    made.add_column("claim, and what was seen", overflow="fold")
    for row in ordered(rows):
        style = next((s for state, s in _COLOURS.items() if row.state == state), "dim")
        lines = [row.claim.claim, row.seen]
        if row.is_bad and row.expected:
            lines.append(f"expected: {row.expected}")
        made.add_row(row.claim.id, Text(row.state, style), Text("\n".join(filter(None, lines))))
    return made


def markdown(record: Record, rows: Sequence[Row]) -> str:
    """A block to paste into an issue: what was looked at in full, the rest folded."""
    looked = [row for row in ordered(rows) if row.state in _COLOURS]
    others = [row for row in rows if row.state not in _COLOURS]
    lines = [f"### Verification: {title(record)}", "", f"{summary(rows)}."]
    if record["emulated"]:
        lines += ["", f"{EMULATED}."]
    if looked:
        lines += ["", *_table(looked)]
    if others:
        lines += ["", f"<details><summary>{len(others)} claims were not looked at</summary>", ""]
        lines += [*_table(others), "", "</details>"]
    return "\n".join([*lines, "", f"sha256 of the record: `{record['sha256']}`"])


def _table(rows: Sequence[Row]) -> list[str]:
    lines = ["| claim | | seen | expected |", "| --- | --- | --- | --- |"]
    for row in rows:
        cells = (f"`{row.claim.id}`: {row.claim.claim}", row.state, row.seen, row.expected)
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return lines


def _cell(text: str) -> str:
    parts = " ".join(text.split()).replace("|", "\\|").split("`")
    # Between backticks an entity would be shown as it is typed.
    return "`".join(
        part if number % 2 else part.replace("<", "&lt;") for number, part in enumerate(parts)
    )
