"""Interleaved pairs, and the confidence interval of their median ratio."""

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from trainium_catalogue.documents import Keywords, Positive

Seconds = float
Measure = Callable[[], Seconds]
"""Runs once and returns the seconds, excluding set-up, or a count to compare instead."""


class MissingRequirement(Exception):
    """Raised if this machine lacks a requirement, which the message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A benchmark: this project and its baseline."""

    name: str
    product: str
    baseline: str
    target: float | None
    measure_product: Measure
    measure_baseline: Measure


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The ratio of this project to a baseline, from interleaved pairs in one run."""

    name: str
    product: str
    """Measured operation."""
    baseline: str
    """Operation that it was compared with, in the same run."""
    pairs: Positive
    ratio: Annotated[float, Keywords(exclusiveMinimum=0)]
    """Median over the pairs of product / baseline."""
    ratio_low: float
    """Lower end of the 95% interval of the median."""
    ratio_high: float
    """Upper end of the 95% interval of the median."""
    target: float | None
    """Largest acceptable ratio; null if there is none."""
    met: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedComparison:
    """A comparison that failed; the command then exits with 1."""

    name: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedComparison:
    """A comparison that was skipped because this machine lacks a requirement."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """Ratios to a baseline, never absolute times."""

    version: Literal[1] = 1
    benchmarks: tuple[Measurement, ...]
    failed: tuple[FailedComparison, ...]
    skipped: tuple[SkippedComparison, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Median ratio over all pairs, with its 95% interval."""

    median: float
    low: float
    high: float


def median_ratio(ratios: list[float]) -> Ratio:
    """Compute the median and its distribution-free interval.

    The interval is between two order statistics. With n pairs the number of ratios below the true
    median is binomial(n, 1/2), so the interval from the k-th smallest to the k-th largest covers it
    with probability 1 - 2 P(X < k); k is the largest for which that is at least 95%.
    """
    ordered = sorted(ratios)
    n = len(ordered)
    below, k = 0.0, 0
    while k < n // 2:
        below += math.comb(n, k) / 2**n
        if 2 * below > 0.05:
            break
        k += 1
    rank = max(k, 1)
    return Ratio(median=statistics.median(ordered), low=ordered[rank - 1], high=ordered[n - rank])


def interleave(comparison: Comparison, num_pairs: int) -> Iterator[float]:
    """Measure pairs, alternating the order, and yield each pair's ratio.

    With several pairs, an extra first pair warms caches and is discarded.
    """
    if num_pairs > 1:
        comparison.measure_product(), comparison.measure_baseline()
    for index in range(num_pairs):
        if index % 2:
            baseline = comparison.measure_baseline()
            product = comparison.measure_product()
        else:
            product = comparison.measure_product()
            baseline = comparison.measure_baseline()
        yield product / baseline
