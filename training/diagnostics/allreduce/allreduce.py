"""The all-reduce workload, which verifies sums and measures bandwidth."""

from __future__ import annotations

import logging
import platform
import time
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import numpy as np
import torch

from training.core.job import Job
from training.diagnostics.allreduce.sweep import (
    BANDWIDTH_DEFINITION,
    TIME_DEFINITION,
    BarResult,
    BarStatus,
    Sweep,
    algorithm_bandwidth_gib_per_s,
    bus_bandwidth_gib_per_s,
    compare,
    compare_with_bar,
    plan_iterations,
    rank_pattern,
    size_label,
    sum_pattern,
    tile,
)
from training.storage.results import MetricsLine, now_utc
from trainium_catalogue.documents import (
    Amount,
    DeviceName,
    Keywords,
    Natural,
    Positive,
    Timestamp,
    picked,
)
from trainium_catalogue.parameters.allreduce import BYTES_PER_ELEMENT
from trainium_catalogue.wording import counted

log = logging.getLogger(__name__)

Status = Literal["passed", "failed"]
Duration = Annotated[float, Keywords(exclusiveMinimum=0)]
_CHECK_BYTES = 2**20
"""Larger payload of the checks before the sweep, which run in int32 and fp32."""

_MAX_COUNTED = 1000
"""Maximum wrong elements counted per rank, to keep the sum over ranks exact."""


_COLUMNS = "{:>9}  {:>10}  {:>5}  {:>11}  {:>11}  {:>11}  {:>11}  {:>7}"
TABLE_HEAD = _COLUMNS.format(
    "size", "elements", "iters", "p50 us", "p99 us", "algbw", "busbw", "correct"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SumComparison:
    """Outcome of one exact comparison over all ranks."""

    data_type: Annotated[str, Keywords(enum=["int32", "fp32"])]
    bytes: Annotated[int, Keywords(minimum=4)]
    elements: Positive
    wrong_elements: Natural
    """Over all ranks; at most 1000 are counted per rank."""
    correct: bool
    """True if every element on every rank was correct."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Measurements for one size."""

    bytes: Annotated[int, Keywords(minimum=4)]
    """Payload of each rank."""
    elements: Positive
    correct: bool
    warmup_iterations: Natural
    iterations: Positive
    p50_us: Duration
    p99_us: Duration
    mean_us: Duration
    algbw_gib_per_s: Amount
    """bytes / p50; 2**30 bytes, which nccom-test prints as GB."""
    busbw_gib_per_s: Amount
    """algbw * 2 * (ranks - 1) / ranks."""


@dataclass(frozen=True, kw_only=True)
class MeasuredSetup:
    """The job and the hardware that was measured."""

    deployment: str
    job_id: str
    device: DeviceName
    instance_type: str | None
    neuron_release: str | None
    num_nodes: Positive
    processes_per_node: Positive
    num_ranks: Positive


@dataclass(frozen=True, kw_only=True)
class StartLine(MeasuredSetup, MetricsLine):
    """The start of the workload."""

    event: Literal["start"] = "start"


@dataclass(frozen=True, kw_only=True)
class SizeLine(Timing, MetricsLine):
    """The measurement of one payload size."""

    event: Literal["size"] = "size"


@dataclass(frozen=True, kw_only=True)
class AllReduceEndLine(MetricsLine):
    """The end of the workload."""

    event: Literal["end"] = "end"
    status: Status
    duration_s: Amount


@dataclass(frozen=True, kw_only=True)
class Versions:
    """Versions on the node."""

    python: str
    torch: str


@dataclass(frozen=True, kw_only=True)
class AllReduceResult(MeasuredSetup):
    """The result of the all-reduce workload; rank 0 writes it even on failure."""

    workload: Literal["all-reduce"] = "all-reduce"
    run: str
    attempt: Positive
    status: Status
    error: str | None
    """Null when passed."""
    started_at: Timestamp
    duration_s: Amount
    versions: Versions
    data_type: Literal["fp32"] = "fp32"
    time_definition: str = TIME_DEFINITION
    bandwidth_definition: str = BANDWIDTH_DEFINITION
    checks: tuple[SumComparison, ...]
    """Exact comparisons of known sums, element by element, on every rank."""
    sizes: tuple[Timing, ...]
    """The sweep, smallest payload first."""
    skipped_sizes: tuple[int, ...]
    """Payloads in bytes that did not fit into total-seconds."""
    bar: BarResult
    parameters: Sweep


class WrongSum(Exception):
    """An all-reduce returned a wrong result."""


class InjectedError(Exception):
    """Raised on request, to test how a job ends when a rank fails."""


class BelowBar(Exception):
    """Bandwidth is below the published figure, and the user chose to fail in that case."""


class AllReduce:
    """One rank's part in the workload."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._device = job.device
        self._sweep = Sweep.from_values(job.values, job.device.num_ranks)
        self._checks: list[SumComparison] = []
        self._timings: list[Timing] = []
        self._skipped: list[int] = []
        self._setup = picked(MeasuredSetup, job.context, num_ranks=job.device.num_ranks)
        self._started = now_utc()
        self._started_s = time.monotonic()

    def run(self) -> None:
        """Check, sweep, and write a result file, even on failure."""
        leads = self._device.rank == 0
        if leads:
            self._job.store.start_metrics()
            self._job.store.add_metrics(StartLine, asdict(self._setup))
            self._log(heading(self._setup, self._sweep))
        error: Exception | None = None
        try:
            self._measure()
        except WrongSum as wrong:
            error = wrong
        bar = self._bar()
        if error is None and self._sweep.require_bar and bar.status is BarStatus.BELOW:
            error = BelowBar(
                f"bus bandwidth {bar.busbw_gib_per_s:.2f} GiB/s is below the published "
                f"{bar.published_gib_per_s} GiB/s (require-bar)"
            )
        if leads:
            self._conclude(bar, error)
        if error is not None:
            self._sum_over_ranks(0)  # wait for the result file: the first rank to fail ends the job
            raise error

    def _measure(self) -> None:
        sizes = self._sweep.sizes()
        smallest = sizes[0]
        check_bytes = max(smallest, min(_CHECK_BYTES, sizes[-1]))
        for data_type in (torch.int32, torch.float32):
            for num_bytes in sorted({smallest, check_bytes}):
                self._check(num_bytes, data_type)
                if len(self._checks) == 1:
                    self._log("first all-reduce: exact on every rank")
        self._log(TABLE_HEAD)
        for position, num_bytes in enumerate(sizes):
            if not self._value_of_rank_0(int(self._time_left_s() > 0)):
                self._skipped = sizes[position:]
                self._log(
                    f"total-seconds is exhausted: skipped {counted(len(self._skipped), 'size')}"
                )
                return
            self._time(num_bytes)
            if self._device.rank == self._sweep.inject_error_rank:
                raise InjectedError(
                    f"raised on rank {self._device.rank} as requested by inject-error-rank"
                )

    def _check(self, num_bytes: int, data_type: torch.dtype) -> SumComparison:
        """Compare an all-reduce of known values with the exact sum, element by element."""
        name = str(data_type).removeprefix("torch.")
        self._job.progress.report(f"checking {size_label(num_bytes)} {name}")
        num_elements = num_bytes // BYTES_PER_ELEMENT
        payload = self._device.place(tile(rank_pattern(self._device.rank), num_elements, data_type))
        self._device.all_reduce(payload)
        self._device.synchronize()
        result = self._device.fetch(payload)
        wrong, example = compare(result, sum_pattern(self._device.num_ranks))
        # Also consider this rank's own count, since a broken all-reduce may corrupt the total.
        total = self._sum_over_ranks(min(wrong, _MAX_COUNTED))
        num_wrong = max(total, min(wrong, _MAX_COUNTED))
        check = SumComparison(
            data_type={"float32": "fp32"}.get(name, name),
            bytes=num_bytes,
            elements=num_elements,
            wrong_elements=num_wrong,
            correct=num_wrong == 0,
        )
        self._checks.append(check)
        if not check.correct:
            raise WrongSum(
                f"all-reduce of {size_label(num_bytes)} {check.data_type} is wrong in at least "
                f"{check.wrong_elements} elements across all ranks{example}"
            )
        return check

    def _time(self, num_bytes: int) -> None:
        check = self._check(num_bytes, torch.float32)
        label = size_label(num_bytes)
        # Sums of zeros need no reset and never overflow.
        payload = self._device.place(torch.zeros(check.elements, dtype=torch.float32))
        self._once(payload)  # compiles on XLA
        probe_s = self._once(payload)
        budget_s = min(self._sweep.seconds_per_size, max(self._time_left_s(), 0.0))
        warmup, iterations = plan_iterations(
            probe_s=probe_s,
            budget_s=budget_s,
            warmup=self._sweep.warmup_iterations,
            iterations=self._sweep.iterations,
        )
        warmup, iterations = self._value_of_rank_0(warmup), self._value_of_rank_0(iterations)
        for _ in range(warmup):
            self._once(payload)
            self._job.progress.report(f"warming up {label}")
        times_s = []
        for _ in range(iterations):
            times_s.append(self._once(payload))
            self._job.progress.report(f"timing {label}")
        self._record(check, warmup, self._slowest(times_s))

    def _once(self, payload: torch.Tensor) -> float:
        started = time.perf_counter()
        self._device.all_reduce(payload)
        self._device.synchronize()
        return time.perf_counter() - started

    def _record(self, check: SumComparison, warmup: int, times_s: list[float]) -> None:
        p50_s, p99_s = (float(time_s) for time_s in np.percentile(times_s, (50, 99)))
        timing = Timing(
            bytes=check.bytes,
            elements=check.elements,
            correct=check.correct,
            warmup_iterations=warmup,
            iterations=len(times_s),
            p50_us=p50_s * 1e6,
            p99_us=p99_s * 1e6,
            mean_us=sum(times_s) / len(times_s) * 1e6,
            algbw_gib_per_s=algorithm_bandwidth_gib_per_s(check.bytes, p50_s),
            busbw_gib_per_s=bus_bandwidth_gib_per_s(check.bytes, p50_s, self._device.num_ranks),
        )
        self._timings.append(timing)
        if self._device.rank == 0:
            self._job.store.add_metrics(SizeLine, asdict(timing))
        self._log(table_row(timing))

    def _slowest(self, times_s: list[float]) -> list[float]:
        """Return each iteration's time on the slowest rank."""
        # A constant length, so that XLA compiles only once.
        padded = torch.zeros(self._sweep.iterations, dtype=torch.float32)
        padded[: len(times_s)] = torch.tensor(times_s, dtype=torch.float32)
        shared = self._device.place(padded)
        self._device.all_reduce(shared, maximum=True)
        self._device.synchronize()
        return [float(value) for value in self._device.fetch(shared)[: len(times_s)]]

    def _sum_over_ranks(self, number: int) -> int:
        """Sum a number over all ranks."""
        shared = self._device.place(torch.tensor([number], dtype=torch.int32))
        self._device.all_reduce(shared)
        self._device.synchronize()
        return int(self._device.fetch(shared)[0])

    def _value_of_rank_0(self, number: int) -> int:
        """Return rank 0's number on every rank."""
        return self._sum_over_ranks(number if self._device.rank == 0 else 0)

    def _time_left_s(self) -> float:
        return self._sweep.total_seconds - (time.monotonic() - self._started_s)

    def _bar(self) -> BarResult:
        context = self._job.context
        return compare_with_bar(
            device=context.device,
            instance_type=context.instance_type,
            num_nodes=context.num_nodes,
            num_ranks=self._device.num_ranks,
            busbw_gib_per_s={t.bytes: t.busbw_gib_per_s for t in self._timings},
        )

    def _conclude(self, bar: BarResult, error: Exception | None) -> None:
        """Write the result."""
        context = self._job.context
        result = AllReduceResult(
            **asdict(self._setup),
            run=context.run,
            attempt=context.attempt,
            status="passed" if error is None else "failed",
            error=None if error is None else str(error),
            started_at=self._started,
            duration_s=round(time.monotonic() - self._started_s, 3),
            versions=Versions(python=platform.python_version(), torch=str(torch.__version__)),
            checks=tuple(self._checks),
            sizes=tuple(self._timings),
            skipped_sizes=tuple(self._skipped),
            bar=bar,
            parameters=self._sweep,
        )
        ending = {"status": result.status, "duration_s": result.duration_s}
        self._job.store.add_metrics(AllReduceEndLine, ending)
        exact = sum(check.correct for check in self._checks)
        published = f" ({bar.published_gib_per_s} GiB/s)" if bar.published_gib_per_s else ""
        self._log(f"sums: {exact} of {len(self._checks)} exact, int32 and fp32")
        self._log(f"published bandwidth{published}: {bar.status}, {bar.reason}")
        self._job.progress.report("writing results")
        for place in self._job.store.finish(asdict(result)):
            self._log(f"written: {place}")

    def _log(self, message: str) -> None:
        if self._device.rank == 0:
            log.info("%s", message)


def heading(setup: MeasuredSetup, sweep: Sweep) -> str:
    """Build the first line of the log."""
    sizes = sweep.sizes()
    return (
        f"all-reduce over ranks 0 to {setup.num_ranks - 1}, {setup.processes_per_node} on "
        f"each of {counted(setup.num_nodes, 'node')}, device {setup.device}, fp32, "
        f"{size_label(sizes[0])} to {size_label(sizes[-1])}; algbw and busbw in GiB/s"
    )


def table_row(timing: Timing) -> str:
    """Build the row for one size."""
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


def run(job: Job) -> None:
    """Entry point of the workload."""
    AllReduce(job).run()
