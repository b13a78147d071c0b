"""`make bench`: every comparison in one run, as a table and build/bench.json."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import (
    checkpoint,
    first_result,
    graph,
    neuron,
    node,
    own_program,
    peers,
    snapshots,
    submit,
    submit_eks,
    synth,
    tokenize,
    traffic,
    train,
)
from benchmarks.pairs import (
    BenchResult,
    Comparison,
    FailedComparison,
    Measurement,
    MissingRequirement,
    SkippedComparison,
    interleave,
    median_ratio,
)
from benchmarks.processes import ROOT
from trainium_catalogue.suggest import did_you_mean
from trainium_catalogue.wording import counted

MIN_PAIRS = 10
RESULT = ROOT / "build" / "bench.json"
RECEIPT = ROOT / "build" / "rehearsal" / "receipt.json"


@dataclass(frozen=True, slots=True)
class ComparisonGroup:
    """Comparisons with a shared set-up, which runs before the first of them is measured."""

    names: tuple[str, ...]
    make: Callable[[], list[Comparison]]


def groups(
    stack: ExitStack, environment: dict[str, str], console: Console, *, small: bool = False
) -> list[ComparisonGroup]:
    """List all comparisons; ``stack`` closes shared resources.

    ``small`` reduces the work where possible, for smoke tests, whose times do not matter.
    """

    @cache
    def deployed() -> submit.Deployed:
        console.print("deploying a rehearsal for the submit benchmarks")
        return stack.enter_context(submit.deployed(environment))

    @cache
    def bucket(yields: bool) -> dict[str, str]:
        return stack.enter_context(snapshots.bucket(environment, yields=yields))

    return [
        ComparisonGroup(("synth",), lambda: [synth.synth(environment)]),
        ComparisonGroup(("synth-eks",), lambda: [synth.synth_eks(environment)]),
        ComparisonGroup(("first-result",), lambda: [first_result.first_result(environment)]),
        ComparisonGroup(("submit",), lambda: [submit.submit(*deployed(), submit.aws_cli(console))]),
        ComparisonGroup(("submit-eks",), lambda: [submit_eks.submit_eks(*deployed())]),
        ComparisonGroup(("launch",), lambda: [node.launch(environment)]),
        ComparisonGroup(
            peers.NAMES, lambda: peers.comparisons(environment, console.print, small=small)
        ),
        ComparisonGroup(
            traffic.NAMES,
            lambda: traffic.comparisons(stack, environment, console.print, small=small),
        ),
        ComparisonGroup(("own-program-start",), lambda: [own_program.start(environment)]),
        ComparisonGroup(("all-reduce",), lambda: [node.all_reduce(environment)]),
        ComparisonGroup(
            ("tokenize", "tokenize-plain", "tokenize-limit"), lambda: tokenize.comparisons(stack)
        ),
        ComparisonGroup(("checkpoint",), lambda: [checkpoint.stall(environment)]),
        ComparisonGroup(("train", "train-litgpt"), lambda: train.step(environment)),
        ComparisonGroup(("restart",), lambda: [train.restart(environment)]),
        ComparisonGroup(("snapshots-on",), lambda: [snapshots.training(bucket(True), small=small)]),
        ComparisonGroup(
            ("restore",),
            lambda: [
                snapshots.restoring(bucket(False), lambda: submit.aws_cli(console), small=small)
            ],
        ),
        ComparisonGroup(neuron.NAMES, lambda: neuron.comparisons(environment)),
        ComparisonGroup(graph.NAMES, lambda: graph.comparisons(environment, console.print)),
    ]


def measured(comparison: Comparison, num_pairs: int, progress: Progress) -> Measurement:
    """Measure one comparison; return its entry in the result."""
    task = progress.add_task(comparison.name, total=num_pairs)
    ratios = []
    for each in interleave(comparison, num_pairs):
        ratios.append(each)
        progress.advance(task)
    ratio = median_ratio(ratios)
    return Measurement(
        name=comparison.name,
        product=comparison.product,
        baseline=comparison.baseline,
        pairs=num_pairs,
        ratio=round(ratio.median, 3),
        ratio_low=round(ratio.low, 3),
        ratio_high=round(ratio.high, 3),
        target=comparison.target,
        met=None if comparison.target is None else ratio.median <= comparison.target,
    )


def measure_all(
    chosen: list[ComparisonGroup], only: list[str], measure: Callable[[Comparison], Measurement]
) -> Iterator[tuple[str, Measurement | Exception]]:
    """Measure the comparisons in sequence; continue after a failure."""
    for group in chosen:
        selected = [name for name in group.names if not only or name in only]
        if not selected:
            continue
        try:
            comparisons = {item.name: item for item in group.make()}
        except Exception as error:
            yield from ((name, error) for name in selected)
            continue
        for name in selected:
            try:
                yield name, measure(comparisons[name])
            except Exception as error:
                yield name, error


def table(entries: Iterable[Measurement]) -> Table:
    """Render the result as a table."""
    rendered = Table(title="product / baseline, median of interleaved pairs")
    for column in ("benchmark", "product", "baseline", "ratio", "95% interval", "target", "met"):
        rendered.add_column(column)
    for entry in entries:
        rendered.add_row(
            *(entry.name, entry.product, entry.baseline, str(entry.ratio)),
            f"{entry.ratio_low} to {entry.ratio_high}",
            *("-" if value is None else str(value) for value in (entry.target, entry.met)),
        )
    return rendered


def report(console: Console, result: BenchResult) -> None:
    """Write and print the result."""
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(asdict(result), indent=2) + "\n")
    console.print(table(result.benchmarks))
    receipt = json.loads(RECEIPT.read_text()) if RECEIPT.exists() else {}
    # The receipt of `rehearsal up` contains no first result.
    if (first := receipt.get("first_result")) is not None:
        console.print(
            f"the last rehearsal printed its first result after {first['seconds']:.0f} s on this "
            f"machine (target: 60 on 2 cores), and took {receipt['seconds']:.0f} s (target: 150)"
        )
    console.print(f"written: {RESULT.relative_to(ROOT)}")


def main(
    pairs: Annotated[
        int, typer.Option(min=MIN_PAIRS, help="Interleaved pairs per comparison.")
    ] = MIN_PAIRS,
    only: Annotated[
        list[str] | None, typer.Option(help="Comparison to run; repeatable. All by default.")
    ] = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Smoke test: one pair per comparison; write nothing.")
    ] = False,
) -> None:
    """Compare this project with its alternatives, side by side.

    If a comparison fails, the others continue, and the exit code is 1.
    """
    console = Console()
    # Python settings from the shell, such as not writing bytecode, must not affect the result.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    entries: list[Measurement] = []
    failed: list[FailedComparison] = []
    skipped: list[SkippedComparison] = []
    with ExitStack() as stack:
        chosen = groups(stack, environment, console, small=smoke)
        known = {name for group in chosen for name in group.names}
        for name in set(only or ()) - known:
            raise typer.BadParameter(f"{name}: {did_you_mean(name, known)}", param_hint="--only")
        with Progress(console=console) as progress:
            for name, outcome in measure_all(
                chosen, only or [], lambda item: measured(item, 1 if smoke else pairs, progress)
            ):
                if isinstance(outcome, MissingRequirement):
                    skipped.append(SkippedComparison(name=name, reason=str(outcome)))
                    console.print(f"{name} skipped: {outcome}", markup=False, highlight=False)
                elif isinstance(outcome, Exception):
                    failed.append(
                        FailedComparison(name=name, error=f"{type(outcome).__name__}: {outcome}")
                    )
                    console.print(f"{name} failed: {outcome}", markup=False, highlight=False)
                else:
                    entries.append(outcome)
    if smoke:
        console.print(
            f"{counted(len(entries), 'comparison')} ran once, {len(failed)} failed; "
            "no result was written"
        )
    else:
        report(
            console,
            BenchResult(benchmarks=tuple(entries), failed=tuple(failed), skipped=tuple(skipped)),
        )
    if failed:
        names = ", ".join(entry.name for entry in failed)
        console.print(f"failed: {names}; their errors are above", style="bold red")
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
