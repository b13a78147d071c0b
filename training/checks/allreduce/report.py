"""What the all-reduce workload tells: table, result document, closing lines."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from training.checks.allreduce.sweep import (
    BANDWIDTH_DEFINITION,
    TIME_DEFINITION,
    BarResult,
    Sweep,
    size_label,
)
from training.core.progress import RunContext

_COLUMNS = "{:>9}  {:>10}  {:>5}  {:>11}  {:>11}  {:>11}  {:>11}  {:>7}"
TABLE_HEAD = _COLUMNS.format(
    "size", "elements", "iters", "p50 us", "p99 us", "algbw", "busbw", "correct"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Outcome of one exact comparison over all ranks."""

    data_type: str
    bytes: int
    elements: int
    wrong_elements: int

    @property
    def correct(self) -> bool:
        """Whether every element on every rank was right."""
        return self.wrong_elements == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Measurements of one size."""

    bytes: int
    elements: int
    correct: bool
    warmup_iterations: int
    iterations: int
    p50_us: float
    p99_us: float
    mean_us: float
    algbw_gib_per_s: float
    busbw_gib_per_s: float


def where(context: RunContext, num_ranks: int) -> dict[str, Any]:
    """What was measured: the fields that result and metrics share."""
    return {
        "deployment": context.deployment,
        "job_id": context.job_id,
        "device": context.device,
        "instance_type": context.instance_type,
        "neuron_release": context.neuron_release,
        "num_nodes": context.num_nodes,
        "processes_per_node": context.processes_per_node,
        "num_ranks": num_ranks,
    }


def heading(place: Mapping[str, Any], sweep: Sweep) -> str:
    """First line of the log."""
    sizes = sweep.sizes()
    return (
        f"all-reduce over ranks 0 to {place['num_ranks'] - 1}, {place['processes_per_node']} on "
        f"each of {place['num_nodes']} node(s), device {place['device']}, fp32, "
        f"{size_label(sizes[0])} to {size_label(sizes[-1])}; algbw and busbw in GiB/s"
    )


def table_row(timing: Timing) -> str:
    """One size of the sweep; a wrong sum ends the sweep before it gets a row."""
    return _COLUMNS.format(
        size_label(timing.bytes),
        timing.elements,
        timing.iterations,
        f"{timing.p50_us:.1f}",
        f"{timing.p99_us:.1f}",
        f"{timing.algbw_gib_per_s:.3f}",
        f"{timing.busbw_gib_per_s:.3f}",
        "yes" if timing.correct else "NO",
    )


def closing_lines(checks: Sequence[Check], bar: BarResult) -> list[str]:
    """Last lines of the log."""
    exact = sum(check.correct for check in checks)
    published = f" ({bar.published_gib_per_s} GiB/s)" if bar.published_gib_per_s else ""
    return [
        f"sums: {exact} of {len(checks)} exact, int32 and fp32",
        f"published bar{published}: {bar.status}, {bar.reason}",
    ]


def result_document(
    *,
    where: Mapping[str, Any],
    run: str,
    attempt: int,
    error: Exception | None,
    started_at: str,
    duration_s: float,
    torch_version: str,
    checks: Sequence[Check],
    timings: Sequence[Timing],
    skipped: Sequence[int],
    bar: BarResult,
    sweep: Sweep,
) -> dict[str, Any]:
    """The result file; docs/schemas/all-reduce-result.schema.json."""
    return {
        "workload": "all-reduce",
        "run": run,
        "attempt": attempt,
        "status": "passed" if error is None else "failed",
        "error": None if error is None else str(error),
        "started_at": started_at,
        "duration_s": round(duration_s, 3),
        **where,
        "versions": {"python": platform.python_version(), "torch": torch_version},
        "data_type": "fp32",
        "time_definition": TIME_DEFINITION,
        "bandwidth_definition": BANDWIDTH_DEFINITION,
        "checks": [asdict(check) | {"correct": check.correct} for check in checks],
        "sizes": [asdict(timing) for timing in timings],
        "skipped_sizes": list(skipped),
        "bar": asdict(bar),
        "parameters": asdict(sweep),
    }
