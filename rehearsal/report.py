"""What a person sees: progress while it runs, and the tables at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from rehearsal import curve
from rehearsal.receipt import Phase, Receipt, Run

_DETAIL_WIDTH = 56


class Progress:
    """Phases as they go by; on a terminal with a spinner and the last line of the tool at work."""

    def __init__(self, console: Console, *, show_nodes: bool = False) -> None:
        self._console = console
        self._show_nodes = show_nodes
        self._status: Status | None = None
        self._phase = ""
        self._started: dict[tuple[str, int], dict[int, int]] = {}
        self._sizes: dict[str, int] = {}

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Show a phase while it runs and a line when it ended."""
        self._phase = phase.name
        try:
            if self._console.is_terminal:
                with self._console.status(phase.name) as self._status:
                    yield
            else:
                yield
        finally:
            self._status = None
            style = "green" if phase.outcome == "ok" else "bold red"
            self._console.print(
                Text.assemble(
                    (f"{phase.outcome:<7}", style),
                    f"{phase.name:<42}",
                    (f"{phase.seconds:>7.1f} s", "dim"),
                )
            )

    def detail(self, line: str) -> None:
        """Show what the tool at work said last."""
        if self._status is not None:
            # The text may hold square brackets that are no markup.
            words = Text.from_ansi(line).plain[:_DETAIL_WIDTH]
            self._status.update(Text.assemble(self._phase, (f"  {words}", "dim")))

    def note(self, text: str) -> None:
        """Say something that stays."""
        self._console.print(Text(text))

    def event(self, event: dict[str, Any]) -> None:
        """Show what a person needs who wants to hurt a node: its process and its address."""
        match event.get("event"):
            case "job-submitted":
                self._sizes[event["job_id"]] = event["num_nodes"]
            case "node-started" if self._show_nodes:
                self._say(
                    f"node {event['node']} of {event['run']}, attempt {event['attempt']}: "
                    f"process {event['pid']} on {event['address']}"
                )
            case "node-started":
                self._all_started(event)
            case "node-ended" if self._show_nodes:
                reason = f" ({event['reason']})" if event.get("reason") else ""
                self._say(f"node {event['node']} ended with {event['exit_code']}{reason}")
            case "job-status" if self._show_nodes:
                reason = f": {event['reason']}" if event.get("reason") else ""
                self._say(f"job is {event['status']}{reason}")
            case "fault-injected":
                self._say(f"injected {event['kind']}: {event['detail']}")

    def _all_started(self, event: dict[str, Any]) -> None:
        attempt = (event["job_id"], event["attempt"])
        nodes = self._started.setdefault(attempt, {})
        nodes[event["node"]] = event["pid"]
        if len(nodes) == self._sizes.get(event["job_id"]):
            pids = " ".join(str(nodes[node]) for node in sorted(nodes))
            self._say(f"attempt {event['attempt']}: nodes 0 to {len(nodes) - 1} run as {pids}")

    def _say(self, text: str) -> None:
        self._console.print(Text(f"  {datetime.now():%H:%M:%S} {text}", style="dim"))


def show(receipt: Receipt, console: Console) -> None:
    """Print the tables of a finished rehearsal."""
    for table in (
        _deployed(receipt),
        _runs(receipt),
        *(_ends(run) for run in receipt.runs if run.nodes),
        *(_sizes(run) for run in receipt.runs if run.fault is None and run.sizes),
        *_training(receipt, console),
        _phases(receipt),
        _left(receipt),
    ):
        if table.row_count:
            # A title of the table's own would be folded to the table's width.
            title, table.title = table.title, None
            console.print(Text(f"\n{title}", "bold"), table, sep="\n", end="")
    _extras(receipt, console)
    _unproven(receipt, console)
    _verdict(receipt, console)


def _table(title: str, *columns: str, numbers: tuple[str, ...] = ()) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD)
    for column in columns:
        right = column in numbers
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    return table


def _deployed(receipt: Receipt) -> Table:
    settings = receipt.settings
    table = _table(
        f"Deployed for {settings.nodes} x {settings.instance_type} to {receipt.region}",
        *("stack", "resources"),
        numbers=("resources",),
    )
    for stack in receipt.stacks:
        table.add_row(stack.name, str(stack.resources))
    if (image := receipt.image) is not None:
        how = "built on a stand-in base" if image.built else "recorded, not built"
        table.add_section()
        table.add_row(
            f"image, {how}: {image.dockerfile} ({image.dockerfile_sha256[:12]}, "
            f"{image.platform}) on {image.base_image}",
            f"{len(image.context_files)} files",
        )
    return table


def _runs(receipt: Receipt) -> Table:
    table = _table(
        "Jobs: exit codes of the main node, then the status",
        *("fault", "must end", "ended", "", "s"),
        numbers=("s",),
    )
    for run in receipt.runs:
        good = not run.differences
        table.add_row(
            run.fault or "none",
            run.expected,
            run.seen,
            Text("ok", "green") if good else Text("WRONG", "bold red"),
            f"{run.seconds:.1f}",
        )
    return table


def _ends(run: Run) -> Table:
    nodes = sorted({end.node for end in run.nodes})
    table = _table(
        f"Nodes of {run.run} ({run.summary}): exit code and seconds",
        "attempt",
        *(f"node {node}" for node in nodes),
    )
    for attempt in sorted({end.attempt for end in run.nodes}):
        ends = {end.node: end for end in run.nodes if end.attempt == attempt}
        table.add_row(str(attempt), *(_end(ends.get(node)) for node in nodes))
    return table


def _end(end: Any) -> Text:
    if end is None:
        return Text("-", "dim")
    code = "?" if end.exit_code is None else str(end.exit_code)
    seconds = "" if end.seconds is None else f"  {end.seconds:.1f} s"
    return Text.assemble((code, "green" if end.exit_code == 0 else "red"), (seconds, "dim"))


def _sizes(run: Run) -> Table:
    names = ("bytes", "p50 us", "p99 us", "algbw GiB/s", "busbw GiB/s")
    table = _table(f"All-reduce of {run.run} on CPU; says nothing of EFA", *names, numbers=names)
    for size in run.sizes:
        table.add_row(
            f"{size.bytes:,}",
            f"{size.p50_us:,.0f}",
            f"{size.p99_us:,.0f}",
            f"{size.algbw_gib_per_s:.3f}",
            f"{size.busbw_gib_per_s:.3f}",
        )
    return table


def _training(receipt: Receipt, console: Console) -> tuple[Table, ...]:
    training = receipt.training
    if training is None:
        return ()
    told = _table("The training story", "command", "s", numbers=("s",))
    for step in training.steps:
        told.add_row(step.command, f"{step.seconds:.1f}")
    checks = _table("What it proves", "must be so", "", "found")
    for check in training.checks:
        mark = Text("ok", "green") if check.ok else Text("WRONG", "bold red")
        checks.add_row(check.name, mark, check.detail)
    if any(attempt.steps for attempt in training.attempts):
        # Printed here, before the tables that speak of it.
        console.print(Text(f"\nLoss of {training.run.run}; also in {training.figure}", "bold"))
        console.print(Text(curve.text(training.attempts, width=console.width)), soft_wrap=True)
    return told, _ends(training.run), checks


def _phases(receipt: Receipt) -> Table:
    table = _table("Time", "phase", "s", numbers=("s",))
    for phase in receipt.phases:
        table.add_row(phase.name, f"{phase.seconds:.1f}")
    table.add_section()
    table.add_row("all", f"{receipt.seconds:.1f}")
    return table


def _left(receipt: Receipt) -> Table:
    table = _table("In the account after destroy", "what", "id")
    for why in dict.fromkeys(expected.why for expected in receipt.expected_left):
        table.add_row(Text("expected", "dim"), Text(why, "dim"))
        for item in (e.item for e in receipt.expected_left if e.why == why):
            table.add_row(f"{item.service} {item.kind}", item.id)
        table.add_section()
    for item in receipt.leftovers:
        table.add_row(Text("LEFT OVER", "bold red"), "")
        table.add_row(f"{item.service} {item.kind}", item.id)
    return table


def _extras(receipt: Receipt, console: Console) -> None:
    if receipt.environment_extras:
        console.print(Text("\nWhat a node's environment holds beyond AWS Batch's", "bold"))
        for name, value in sorted(receipt.environment_extras.items()):
            console.print(Text(f"  {name}={value}"), soft_wrap=True)
    if receipt.seeded:
        console.print(Text("\nWhat AWS publishes and the emulator was given", "bold"))
        for seed in receipt.seeded:
            console.print(Text(f"  {seed['name']} = {seed['value']}"), soft_wrap=True)


def _unproven(receipt: Receipt, console: Console) -> None:
    console.print(Text("\nNot proven by this", "bold"))
    points = Table.grid(padding=(0, 1))
    for text in receipt.unproven:
        points.add_row(" -", Text(text))
    console.print(points)


def _verdict(receipt: Receipt, console: Console) -> None:
    console.print()
    for problem in receipt.problems:
        console.print(Text(problem, "red"))
    left = str(len(receipt.leftovers) or "none") if receipt.proven_empty else "not looked for"
    style = "bold green" if receipt.outcome == "passed" else "bold red"
    jobs = len(receipt.runs) + (receipt.training is not None)
    console.print(
        Text.assemble(
            (receipt.outcome.upper(), style),
            f"  {jobs} job{'' if jobs == 1 else 's'}, leftovers: {left}, {receipt.seconds:.0f} s",
        )
    )
