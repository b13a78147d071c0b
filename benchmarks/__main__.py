"""`make bench`: every comparison in one run, as a table and build/bench.json."""

import json
import os
from contextlib import ExitStack
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import bert, checkpoint, node, submit, submit_eks, synth, tokenize, train
from benchmarks.pairs import Comparison, interleave, median_ratio
from benchmarks.processes import ROOT

MIN_PAIRS = 10
RESULT = ROOT / "build" / "bench.json"
RECEIPT = ROOT / "build" / "rehearsal" / "receipt.json"


def measure(comparison: Comparison, num_pairs: int, progress: Progress) -> dict[str, object]:
    """One entry of the result."""
    task = progress.add_task(comparison.name, total=num_pairs)
    ratios = []
    for ratio in interleave(comparison, num_pairs):
        ratios.append(ratio)
        progress.advance(task)
    found = median_ratio(ratios)
    return {
        "name": comparison.name,
        "product": comparison.product,
        "baseline": comparison.baseline,
        "pairs": num_pairs,
        "ratio": round(found.median, 3),
        "ratio_low": round(found.low, 3),
        "ratio_high": round(found.high, 3),
        "target": comparison.target,
        "met": None if comparison.target is None else found.median <= comparison.target,
    }


def table(entries: list[dict[str, object]]) -> Table:
    """What a person looks at."""
    shown = Table(title="product / baseline, median of interleaved pairs")
    for column in ("benchmark", "product", "baseline", "ratio", "95 % interval", "target", "met"):
        shown.add_column(column)
    for entry in entries:
        shown.add_row(
            *(str(entry[key]) for key in ("name", "product", "baseline", "ratio")),
            f"{entry['ratio_low']} to {entry['ratio_high']}",
            *("-" if entry[key] is None else str(entry[key]) for key in ("target", "met")),
        )
    return shown


def _submit(stack: ExitStack, environment: dict[str, str], console: Console) -> list[Comparison]:
    """The only ones that need a deployment."""
    program = submit.aws_cli(console)
    console.print("deploying a rehearsal for the submit benchmarks")
    aws, exports = stack.enter_context(submit.deployed(environment))
    return [submit.submit(aws, exports, program), submit_eks.submit_eks(aws, exports)]


def main(
    pairs: Annotated[int, typer.Option(min=MIN_PAIRS, help="interleaved pairs each")] = MIN_PAIRS,
    only: Annotated[list[str] | None, typer.Option(help="names; all when left out")] = None,
) -> None:
    """Compare the product with what one would use instead, side by side."""
    console = Console()
    # A setting of this shell, such as not to write byte code, is not what is measured.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    needs_deployment = not only or bool({"submit", "submit-eks"} & set(only))
    with ExitStack() as stack:
        comparisons = [
            synth.synth(environment),
            synth.synth_eks(environment),
            *(_submit(stack, environment, console) if needs_deployment else []),
            node.launch(environment),
            node.all_reduce(environment),
            *tokenize.comparisons(stack),
            checkpoint.stall(environment),
            train.step(environment),
            train.restart(environment),
            bert.step(environment),
        ]
        chosen = [c for c in comparisons if not only or c.name in only]
        with Progress(console=console) as progress:
            entries = [measure(comparison, pairs, progress) for comparison in chosen]
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({"version": 1, "benchmarks": entries}, indent=2) + "\n")
    console.print(table(entries))
    if RECEIPT.exists():
        seconds = json.loads(RECEIPT.read_text())["seconds"]
        console.print(
            f"the last rehearsal took {seconds:.0f} s on this machine (aim: 90 on 2 cores)"
        )
    console.print(f"written: {RESULT.relative_to(ROOT)}")


if __name__ == "__main__":
    typer.run(main)
