"""The all-reduce workload: is every sum right, and how fast are they?"""

from __future__ import annotations

import time
from dataclasses import asdict

import torch

from training.checks.allreduce.report import (
    TABLE_HEAD,
    Check,
    Timing,
    closing_lines,
    heading,
    result_document,
    table_row,
    where,
)
from training.checks.allreduce.sweep import (
    BarResult,
    BarStatus,
    Sweep,
    algorithm_bandwidth_gib_per_s,
    bus_bandwidth_gib_per_s,
    compare_with_bar,
    percentile,
    plan_iterations,
    rank_pattern,
    size_label,
    sum_pattern,
)
from training.checks.payload import compare, tile
from training.storage.results import now_utc
from training.workloads import Job
from trainium_catalogue.parameters.allreduce import BYTES_PER_ELEMENT

_CHECK_BYTES = 2**20
"""Payload of the first check, which is made in int32 as well."""

_MAX_COUNTED = 1000
"""Wrong elements a rank counts, so that the sum over all ranks is exact in any arithmetic."""


class WrongSum(Exception):
    """An all-reduce gave a wrong result: the one thing this workload exists to find."""


class Drill(Exception):
    """Raised on request, to see how a job ends when one rank fails."""


class BelowBar(Exception):
    """Bandwidth is below the published figure, and the user asked to fail then."""


class AllReduce:
    """One rank's part in the workload."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._device = job.device
        self._sweep = Sweep.from_values(job.values, job.device.num_ranks)
        self._checks: list[Check] = []
        self._timings: list[Timing] = []
        self._skipped: list[int] = []
        self._where = where(job.context, job.device.num_ranks)
        self._started = now_utc()
        self._started_s = time.monotonic()

    def run(self) -> None:
        """Check, sweep, and leave a result file whatever comes out."""
        leads = self._device.rank == 0
        if leads:
            self._job.store.start_metrics()
            self._job.store.add_metrics("start", self._where)
            self._say(heading(self._where, self._sweep))
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
            self._share(0)  # the first rank to fail ends the job: let the result be written first
            raise error

    def _measure(self) -> None:
        sizes = self._sweep.sizes()
        smallest = sizes[0]
        check_bytes = max(smallest, min(_CHECK_BYTES, sizes[-1]))
        for data_type in (torch.int32, torch.float32):
            for num_bytes in sorted({smallest, check_bytes}):
                self._check(num_bytes, data_type)
                if len(self._checks) == 1:
                    self._say("first all-reduce: exact on every rank")
        self._say(TABLE_HEAD)
        for position, num_bytes in enumerate(sizes):
            if not self._agree(self._time_left_s() > 0):
                self._skipped = sizes[position:]
                self._say(f"total-seconds is used up: {len(self._skipped)} sizes are left out")
                return
            self._time(num_bytes)
            if self._device.rank == self._sweep.inject_error_rank:
                raise Drill(f"raised on rank {self._device.rank} because inject-error-rank says so")

    def _check(self, num_bytes: int, data_type: torch.dtype) -> Check:
        """One all-reduce of known values, compared element by element with the exact sum."""
        name = str(data_type).removeprefix("torch.")
        self._job.progress.report(f"checking {size_label(num_bytes)} {name}")
        num_elements = num_bytes // BYTES_PER_ELEMENT
        payload = self._device.place(tile(rank_pattern(self._device.rank), num_elements, data_type))
        self._device.all_reduce(payload)
        self._device.synchronize()
        found = self._device.fetch(payload)
        wrong, example = compare(found, sum_pattern(self._device.num_ranks))
        # A broken all-reduce may also hide the count, so what this rank has seen counts as well.
        total = self._share(min(wrong, _MAX_COUNTED))
        check = Check(
            data_type={"float32": "fp32"}.get(name, name),
            bytes=num_bytes,
            elements=num_elements,
            wrong_elements=max(total, min(wrong, _MAX_COUNTED)),
        )
        self._checks.append(check)
        if not check.correct:
            raise WrongSum(
                f"all-reduce of {size_label(num_bytes)} {check.data_type} is wrong in "
                f"{check.wrong_elements} elements or more over all ranks{example}"
            )
        return check

    def _time(self, num_bytes: int) -> None:
        check = self._check(num_bytes, torch.float32)
        label = size_label(num_bytes)
        # Zeros stay zeros, so that repeated sums neither overflow nor need a reset in between.
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
        warmup, iterations = self._share_from_rank_0(warmup), self._share_from_rank_0(iterations)
        for _ in range(warmup):
            self._once(payload)
            self._job.progress.report(f"warming up {label}")
        times_s = []
        for _ in range(iterations):
            times_s.append(self._once(payload))
            self._job.progress.report(f"timing {label}")
        self._note(check, warmup, self._slowest(times_s))

    def _once(self, payload: torch.Tensor) -> float:
        started = time.perf_counter()
        self._device.all_reduce(payload)
        self._device.synchronize()
        return time.perf_counter() - started

    def _note(self, check: Check, warmup: int, times_s: list[float]) -> None:
        p50_s = percentile(times_s, 50)
        timing = Timing(
            bytes=check.bytes,
            elements=check.elements,
            correct=check.correct,
            warmup_iterations=warmup,
            iterations=len(times_s),
            p50_us=p50_s * 1e6,
            p99_us=percentile(times_s, 99) * 1e6,
            mean_us=sum(times_s) / len(times_s) * 1e6,
            algbw_gib_per_s=algorithm_bandwidth_gib_per_s(check.bytes, p50_s),
            busbw_gib_per_s=bus_bandwidth_gib_per_s(check.bytes, p50_s, self._device.num_ranks),
        )
        self._timings.append(timing)
        if self._device.rank == 0:
            self._job.store.add_metrics("size", asdict(timing))
        self._say(table_row(timing))

    def _slowest(self, times_s: list[float]) -> list[float]:
        """Each iteration's time on its slowest rank."""
        # Always of the same length, so that XLA compiles it once.
        padded = torch.zeros(self._sweep.iterations, dtype=torch.float32)
        padded[: len(times_s)] = torch.tensor(times_s, dtype=torch.float32)
        shared = self._device.place(padded)
        self._device.all_reduce(shared, maximum=True)
        self._device.synchronize()
        return [float(value) for value in self._device.fetch(shared)[: len(times_s)]]

    def _share(self, number: int) -> int:
        """Sum of a number over all ranks."""
        shared = self._device.place(torch.tensor([number], dtype=torch.int32))
        self._device.all_reduce(shared)
        self._device.synchronize()
        return int(self._device.fetch(shared)[0])

    def _share_from_rank_0(self, number: int) -> int:
        return self._share(number if self._device.rank == 0 else 0)

    def _agree(self, go_on: bool) -> bool:
        """What rank 0 thinks, on every rank."""
        return bool(self._share_from_rank_0(int(go_on)))

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
        result = result_document(
            where=self._where,
            run=self._job.context.run,
            attempt=self._job.context.attempt,
            error=error,
            started_at=self._started,
            duration_s=time.monotonic() - self._started_s,
            torch_version=str(torch.__version__),
            checks=self._checks,
            timings=self._timings,
            skipped=self._skipped,
            bar=bar,
            sweep=self._sweep,
        )
        ending = {name: result[name] for name in ("status", "duration_s")}
        self._job.store.add_metrics("end", ending)
        for line in closing_lines(self._checks, bar):
            self._say(line)
        self._job.progress.report("writing results")
        for place in self._job.store.finish(result):
            self._say(f"written: {place}")

    def _say(self, message: str) -> None:
        if self._device.rank == 0:
            print(message, flush=True)


def run(job: Job) -> None:
    """Entry point of the workload."""
    AllReduce(job).run()
