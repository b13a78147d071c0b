"""Calculations for all-reduce: sizes, payloads with known sums, bandwidths, published figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

import torch

from trainium_catalogue.parameters.allreduce import check_sweep
from trainium_catalogue.workloads import Value

TIME_DEFINITION = (
    "one time per iteration: wall clock of the slowest rank from the call until the result is in "
    "place; bandwidth uses the p50 time, as nccom-test does"
)
BANDWIDTH_DEFINITION = (
    "algbw = bytes / p50 time; busbw = algbw * 2 * (ranks - 1) / ranks; GiB/s, which nccom-test "
    "prints as GB/s"
)

_PERIOD = 251
"""Prime, so that misplaced chunks do not match."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The validated parameters of a sweep."""

    min_bytes: int
    max_bytes: int
    size_factor: int
    warmup_iterations: int
    iterations: int
    seconds_per_size: float
    total_seconds: float
    require_bar: bool
    inject_error_rank: int

    @staticmethod
    def from_values(values: Mapping[str, Value], num_ranks: int) -> Sweep:
        """Build a sweep from consistent parameters; raise ``ValueError`` otherwise."""
        check_sweep(values, num_ranks)
        given: Any = {field.name: values[field.name.replace("_", "-")] for field in fields(Sweep)}
        return Sweep(**given)

    def sizes(self) -> list[int]:
        """Return payload sizes in bytes, ascending, each ``size_factor`` times the previous one."""
        sizes = [self.min_bytes]
        while sizes[-1] * self.size_factor <= self.max_bytes:
            sizes.append(sizes[-1] * self.size_factor)
        return sizes


def element_value(rank: int, index: int) -> int:
    """Return element ``index`` of a rank's payload; values differ by rank and position."""
    return (index + 7 * rank) % _PERIOD + 1


def rank_pattern(rank: int) -> list[int]:
    """Return one period of a rank's payload."""
    return [element_value(rank, index) for index in range(_PERIOD)]


def sum_pattern(num_ranks: int) -> list[int]:
    """Return one period of the exact sum over all ranks.

    For up to 66,000 ranks, sums stay below 2**24, fp32's limit for exact integers. bf16, which
    XLA_USE_BF16 would substitute for fp32, is exact only up to 256 and would be detected.
    """
    return [
        sum(element_value(rank, index) for rank in range(num_ranks)) for index in range(_PERIOD)
    ]


def tile(pattern: list[int], num_elements: int, data_type: torch.dtype) -> torch.Tensor:
    """Repeat ``pattern`` up to ``num_elements``."""
    period = torch.tensor(pattern, dtype=data_type)
    return period.repeat(-(-num_elements // len(pattern)))[:num_elements].contiguous()


def compare(found: torch.Tensor, pattern: list[int]) -> tuple[int, str]:
    """Count the elements that differ from the repeated pattern, and describe the first.

    Works in chunks to save memory: 32 workers may have a GiB each.
    """
    expected = tile(pattern, min(len(found), len(pattern) * 4096), found.dtype)
    wrong, example = 0, ""
    for start in range(0, len(found), len(expected)):
        piece = found[start : start + len(expected)]
        differs = piece != expected[: len(piece)]
        count = int(differs.sum())
        if count and not wrong:
            place = int(differs.nonzero()[0])
            example = (
                f"; element {start + place} is {piece[place].item():g}, "
                f"not {expected[place].item():g}"
            )
        wrong += count
    return wrong, example


def plan_iterations(
    *, probe_s: float, budget_s: float, warmup: int, iterations: int
) -> tuple[int, int]:
    """Choose warm-up and timed iterations within the budget, at least one of them timed.

    One rank decides for all: by their own clocks, ranks would disagree and deadlock.
    """
    affordable = max(1, math.floor(budget_s / max(probe_s, 1e-9)))
    if affordable >= warmup + iterations:
        return warmup, iterations
    fewer = min(warmup, affordable // 5)
    return fewer, max(1, min(iterations, affordable - fewer))


def algorithm_bandwidth_gib_per_s(num_bytes: int, seconds: float) -> float:
    """Return payload bytes divided by time."""
    return num_bytes / seconds / 2**30


def bus_bandwidth_gib_per_s(num_bytes: int, seconds: float, num_ranks: int) -> float:
    """Return the rate of the busiest link, which carries 2 (n - 1) / n of the payload."""
    return algorithm_bandwidth_gib_per_s(num_bytes, seconds) * 2 * (num_ranks - 1) / num_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A published figure to compare with."""

    instance_type: str
    num_nodes: int
    num_ranks: int
    num_bytes: int
    busbw_gib_per_s: float
    source: str


BAR = Bar(
    instance_type="trn1.32xlarge",
    num_nodes=2,
    num_ranks=64,
    num_bytes=2**30,
    # 1 GiB in 41806 us. The table's GB/s are defined in the text as 2**30 bytes.
    busbw_gib_per_s=47.09,
    source="Neuron documentation, nccom-test user guide, example -r 64 -N 2 -d fp32 allr",
)
"""The only published figure that is known here."""


class BarStatus(StrEnum):
    """The measurement compared with the published figure."""

    MET = "met"
    BELOW = "below"
    NOT_MEASURED = "not measured"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True, kw_only=True)
class BarResult:
    """The result of the comparison; never extrapolated from another size or number of nodes."""

    status: BarStatus
    reason: str
    busbw_gib_per_s: float | None = None
    published_gib_per_s: float | None = None
    source: str | None = None


def compare_with_bar(
    *,
    device: str,
    instance_type: str | None,
    num_nodes: int,
    num_ranks: int,
    busbw_gib_per_s: Mapping[int, float],
) -> BarResult:
    """Compare the measured bus bandwidth with the published figure, if there is one."""
    if device == "cpu":
        return BarResult(
            status=BarStatus.NOT_APPLICABLE, reason="measured on CPUs, not on Neuron devices"
        )
    if (BAR.instance_type, BAR.num_nodes, BAR.num_ranks) != (instance_type, num_nodes, num_ranks):
        what = f"{num_nodes} x {instance_type} with {num_ranks} ranks"
        return BarResult(
            status=BarStatus.NOT_APPLICABLE, reason=f"no figure is published for {what}"
        )
    measured = busbw_gib_per_s.get(BAR.num_bytes)
    if measured is None:
        status, reason = BarStatus.NOT_MEASURED, f"the sweep skipped {BAR.num_bytes} bytes"
    else:
        status = BarStatus.MET if measured >= BAR.busbw_gib_per_s else BarStatus.BELOW
        reason = f"bus bandwidth at {BAR.num_bytes} bytes"
    return BarResult(
        status=status,
        reason=reason,
        busbw_gib_per_s=measured,
        published_gib_per_s=BAR.busbw_gib_per_s,
        source=BAR.source,
    )


def size_label(num_bytes: int) -> str:
    """Format a size as ``16 MiB`` or, unless it is a whole number of units, in bytes."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= size and num_bytes % size == 0:
            return f"{num_bytes // size} {unit}"
    return f"{num_bytes} B"
