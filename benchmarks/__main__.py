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
    bert,
    checkpoint,
    first_result,
    graph,
    node,
    own_program,
    snapshots,
    submit,
    submit_eks,
    submit_program,
    synth,
    tokenize,
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

MIN_PAIRS = 10
RESULT = ROOT / "build" / "bench.json"
RECEIPT = ROOT / "build" / "rehearsal" / "receipt.json"


@dataclass(frozen=True, slots=True)
class ComparisonGroup:
    """Comparisons prepared together, when the first of them is measured."""

    names: tuple[str, ...]
    make: Callable[[], list[Comparison]]


def groups(
    stack: ExitStack, environment: dict[str, str], console: Console, *, small: bool = False
) -> list[ComparisonGroup]:
    """List all comparisons; ``stack`` closes what several of them share.

    ``small``: with less work, where that can be, because nothing is measured.
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
        ComparisonGroup(("submit-program",), lambda: [submit_program.submit_program(*deployed())]),
        ComparisonGroup(("launch",), lambda: [node.launch(environment)]),
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
        ComparisonGroup(("bert",), lambda: [bert.step(environment)]),
        ComparisonGroup(graph.NAMES, lambda: graph.comparisons(environment, console.print)),
    ]


def measured(comparison: Comparison, num_pairs: int, progress: Progress) -> Measurement:
    """Measure one comparison into an entry of the result."""
    task = progress.add_task(comparison.name, total=num_pairs)
    ratios = []
    for ratio in interleave(comparison, num_pairs):
        ratios.append(ratio)
        progress.advance(task)
    found = median_ratio(ratios)
    return Measurement(
        name=comparison.name,
        product=comparison.product,
        baseline=comparison.baseline,
        pairs=num_pairs,
        ratio=round(found.median, 3),
        ratio_low=round(found.low, 3),
        ratio_high=round(found.high, 3),
        target=comparison.target,
        met=None if comparison.target is None else found.median <= comparison.target,
    )


def attempts(
    chosen: list[ComparisonGroup], only: list[str], measure: Callable[[Comparison], Measurement]
) -> Iterator[tuple[str, Measurement | Exception]]:
    """Measure one after the other; a failure does not stop the rest."""
    for group in chosen:
        wanted = [name for name in group.names if not only or name in only]
        if not wanted:
            continue
        try:
            comparisons = {item.name: item for item in group.make()}
        except Exception as error:
            yield from ((name, error) for name in wanted)
            continue
        for name in wanted:
            try:
                yield name, measure(comparisons[name])
            except Exception as error:
                yield name, error


def table(entries: Iterable[Measurement]) -> Table:
    """Render the result for people."""
    shown = Table(title="product / baseline, median of interleaved pairs")
    for column in ("benchmark", "product", "baseline", "ratio", "95 % interval", "target", "met"):
        shown.add_column(column)
    for entry in entries:
        shown.add_row(
            *(entry.name, entry.product, entry.baseline, str(entry.ratio)),
            f"{entry.ratio_low} to {entry.ratio_high}",
            *("-" if found is None else str(found) for found in (entry.target, entry.met)),
        )
    return shown


def report(console: Console, result: BenchResult) -> None:
    """Write and show the result."""
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(asdict(result), indent=2) + "\n")
    console.print(table(result.benchmarks))
    receipt = json.loads(RECEIPT.read_text()) if RECEIPT.exists() else {}
    # `rehearsal up` has none.
    if (first := receipt.get("first_result")) is not None:
        console.print(
            f"the last rehearsal told its first result after {first['seconds']:.0f} s on this "
            f"machine (aim: 60 on 2 cores), and took {receipt['seconds']:.0f} s (aim: 150)"
        )
    console.print(f"written: {RESULT.relative_to(ROOT)}")


def main(
    pairs: Annotated[int, typer.Option(min=MIN_PAIRS, help="interleaved pairs each")] = MIN_PAIRS,
    only: Annotated[list[str] | None, typer.Option(help="names; all when left out")] = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="one pair each, to see that it runs; writes nothing")
    ] = False,
) -> None:
    """Compare the product with what one would use instead, side by side.

    A comparison that fails is named, and the others go on; the exit code is 1 then.
    """
    console = Console()
    # Python settings of this shell, such as not writing byte code, must not affect the result.
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
            for name, found in attempts(
                chosen, only or [], lambda item: measured(item, 1 if smoke else pairs, progress)
            ):
                if isinstance(found, MissingRequirement):
                    skipped.append(SkippedComparison(name=name, reason=str(found)))
                    console.print(f"{name} skipped: {found}", markup=False, highlight=False)
                elif isinstance(found, Exception):
                    failed.append(
                        FailedComparison(name=name, error=f"{type(found).__name__}: {found}")
                    )
                    console.print(f"{name} failed: {found}", markup=False, highlight=False)
                else:
                    entries.append(found)
    if smoke:
        console.print(f"{len(entries)} comparisons ran once, {len(failed)} failed; measured: none")
    else:
        report(
            console,
            BenchResult(benchmarks=tuple(entries), failed=tuple(failed), skipped=tuple(skipped)),
        )
    if failed:
        names = ", ".join(entry.name for entry in failed)
        console.print(f"failed: {names}; what they printed is above", style="bold red")
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
