"""The results of a rehearsal: proofs in the terminal, the full report in a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rehearsal.receipt import (
    BatchTraining,
    ClusterTraining,
    CommandRecord,
    Receipt,
    ReceiptCheck,
    RunRecord,
)
from rehearsal.report import curve
from trainium_catalogue.wording import counted

_WIDTH = 100


def show(receipt: Receipt, console: Console) -> None:
    """Print only the proofs if the rehearsal passed, otherwise every table."""
    if receipt.outcome != "passed":
        show_all(receipt, console)
        return
    _print(_proof(receipt), console)
    for program in receipt.programs:
        for text in program.unproven:
            console.print(Text(f"\nnot proven: {text}"))
    _verdict(receipt, console)


def _proof(receipt: Receipt) -> Iterator[Table]:
    if any(run.fault for run in receipt.runs):
        yield _runs(receipt)
    if receipt.training is not None:
        yield _checks(receipt.training.checks, "Checked on emulated Batch")
    if receipt.cluster is not None:
        yield _checks(receipt.cluster.checks, "Checked on the emulated cluster")
    for program in receipt.programs:
        title = f"Checked with a program of your own on emulated {program.orchestrator}"
        yield _checks(program.checks, title)


def write(receipt: Receipt, path: Path) -> None:
    """Write the full report as text."""
    with path.open("w", encoding="utf-8") as file:
        show_all(receipt, Console(file=file, width=_WIDTH))


def show_all(receipt: Receipt, console: Console) -> None:
    """Print every table of a finished rehearsal."""
    tables = (
        _deployment(receipt),
        _runs(receipt),
        *(_node_exits(run) for run in receipt.runs if run.nodes),
        *(_sizes(run) for run in receipt.runs if run.fault is None and run.sizes),
        *_training(receipt, console),
        _charts(receipt),
        _phases(receipt),
        _leftovers(receipt),
    )
    _print(tables, console)
    _extras(receipt, console)
    _unproven(receipt, console)
    _verdict(receipt, console)


def _print(tables: Iterable[Table], console: Console) -> None:
    for table in tables:
        if table.row_count:
            # rich would wrap the title to the width of the table.
            title, table.title = table.title, None
            console.print(Text(f"\n{title}", "bold"), table, sep="\n", end="")


def _table(title: str, *columns: str, numbers: tuple[str, ...] = ()) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD)
    for column in columns:
        right = column in numbers
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    return table


def _deployment(receipt: Receipt) -> Table:
    settings = receipt.settings
    table = _table(
        f"Deployed for {settings.nodes} x {settings.instance_type} to {receipt.region}",
        *("stack", "resources"),
        numbers=("resources",),
    )
    for stack in receipt.stacks:
        table.add_row(stack.name, str(stack.resources))
    if (image := receipt.image) is not None:
        how = "built on a substitute base" if image.built else "recorded, not built"
        table.add_section()
        table.add_row(
            f"image, {how}: {image.dockerfile} ({image.dockerfile_sha256[:12]}, "
            f"{image.platform}) on {image.base_image or 'its torchneuron stage'}",
            counted(len(image.context_files), "file"),
        )
    return table


def _runs(receipt: Receipt) -> Table:
    table = _table(
        "Jobs: exit codes of the main node, and final status",
        *("fault", "expected", "actual", "", "s"),
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


def _node_exits(run: RunRecord) -> Table:
    nodes = sorted({end.node for end in run.nodes})
    table = _table(
        f"Nodes of {run.run} ({run.summary}): exit code and seconds",
        "attempt",
        *(f"node {node}" for node in nodes),
    )
    for attempt in sorted({end.attempt for end in run.nodes}):
        ends = {end.node: end for end in run.nodes if end.attempt == attempt}
        table.add_row(str(attempt), *(_node_exit(ends.get(node)) for node in nodes))
    return table


def _node_exit(end: Any) -> Text:
    if end is None:
        return Text("-", "dim")
    code = "?" if end.exit_code is None else str(end.exit_code)
    seconds = "" if end.seconds is None else f"  {end.seconds:.1f} s"
    return Text.assemble((code, "green" if end.exit_code == 0 else "red"), (seconds, "dim"))


def _sizes(run: RunRecord) -> Table:
    names = ("bytes", "p50 us", "p99 us", "algbw GiB/s", "busbw GiB/s")
    table = _table(f"All-reduce of {run.run} on CPU; does not measure EFA", *names, numbers=names)
    for size in run.sizes:
        table.add_row(
            f"{size.bytes:,}",
            f"{size.p50_us:,.0f}",
            f"{size.p99_us:,.0f}",
            f"{size.algbw_gib_per_s:.3f}",
            f"{size.busbw_gib_per_s:.3f}",
        )
    return table


def _training(receipt: Receipt, console: Console) -> Iterator[Table]:
    if (training := receipt.training) is not None:
        yield _steps("On Batch", training.steps)
        _curve(training.run, training, console)
        yield from (_node_exits(training.run), _checks(training.checks))
    if (cluster := receipt.cluster) is not None:
        yield _steps("On the cluster", cluster.steps)
        if cluster.runs:
            _curve(cluster.runs[-1], cluster, console)
        yield from (*map(_node_exits, cluster.runs), _checks(cluster.checks))
    for program in receipt.programs:
        yield _steps(f"A program of your own on {program.orchestrator}", program.steps)
        yield from (_node_exits(run) for run in [program.run] if run is not None)
        yield _checks(program.checks)


def _steps(title: str, steps: list[CommandRecord]) -> Table:
    table = _table(title, "command", "", "s", numbers=("s",))
    for step in steps:
        passed = Text("refused" if step.expected_exit_code else "ok", "green")
        mark = passed if step.problem is None else Text("WRONG", "bold red")
        table.add_row(step.command, mark, f"{step.seconds:.1f}")
    return table


def _curve(run: RunRecord, training: BatchTraining | ClusterTraining, console: Console) -> None:
    """Print a run's loss curve, before the tables that refer to it."""
    if any(attempt.steps for attempt in training.attempts):
        console.print(Text(f"\nLoss of {run.run}; also in {training.figure}", "bold"))
        console.print(Text(curve.as_text(training.attempts, width=console.width)), soft_wrap=True)


def _checks(checks: list[ReceiptCheck], title: str = "Checks") -> Table:
    table = _table(title, "required", "", "found")
    for check in checks:
        mark = Text("ok", "green") if check.ok else Text("WRONG", "bold red")
        table.add_row(check.name, mark, check.detail)
    return table


def _charts(receipt: Receipt) -> Table:
    table = _table("Helm releases, recorded but not rendered", "release", "chart", "version", "")
    for chart in receipt.charts:
        end = Text("uninstalled", "green") if chart.uninstalled else Text("LEFT OVER", "bold red")
        table.add_row(chart.release, chart.chart, chart.version, end)
    return table


def _phases(receipt: Receipt) -> Table:
    table = _table("Time", "phase", "s", numbers=("s",))
    for phase in receipt.phases:
        table.add_row(phase.name, f"{phase.seconds:.1f}")
    table.add_section()
    table.add_row("total", f"{receipt.seconds:.1f}")
    return table


def _leftovers(receipt: Receipt) -> Table:
    table = _table("In the account after destroy", "resource", "id")
    for why in dict.fromkeys(expected.why for expected in receipt.expected_left):
        table.add_row(Text("expected", "dim"), Text(why, "dim"))
        for expected in receipt.expected_left:
            if expected.why == why:
                table.add_row(f"{expected.service} {expected.kind}", expected.id)
        table.add_section()
    for item in receipt.leftovers:
        table.add_row(Text("LEFT OVER", "bold red"), "")
        table.add_row(f"{item.service} {item.kind}", item.id)
    return table


def _extras(receipt: Receipt, console: Console) -> None:
    if receipt.environment_extras:
        console.print(Text("\nEnvironment variables that a node on AWS does not have", "bold"))
        for name, value in sorted(receipt.environment_extras.items()):
            console.print(Text(f"  {name}={value}"), soft_wrap=True)
    if receipt.seeded:
        console.print(Text("\nAWS public parameters, as set in the emulator", "bold"))
        for seed in receipt.seeded:
            console.print(Text(f"  {seed['name']} = {seed['value']}"), soft_wrap=True)


def _unproven(receipt: Receipt, console: Console) -> None:
    console.print(Text("\nNot proven by this rehearsal", "bold"))
    points = Table.grid(padding=(0, 1))
    for text in receipt.unproven:
        points.add_row(" -", Text(text))
    console.print(points)


def _verdict(receipt: Receipt, console: Console) -> None:
    console.print()
    for problem in receipt.problems:
        console.print(Text(problem, "red"))
    left = str(len(receipt.leftovers) or "none") if receipt.proven_empty else "not checked"
    style = "bold green" if receipt.outcome == "passed" else "bold red"
    jobs = len(receipt.runs) + (receipt.training is not None)
    jobs += len(receipt.cluster.runs) if receipt.cluster is not None else 0
    jobs += sum(program.run is not None for program in receipt.programs)
    console.print(
        Text.assemble(
            (receipt.outcome.upper(), style),
            f"  {counted(jobs, 'job')}, leftovers: {left}, {receipt.seconds:.0f} s",
        )
    )
