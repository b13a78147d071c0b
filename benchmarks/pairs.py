"""Interleaved pairs, and a confidence interval of their median ratio."""

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from trainium_catalogue.documents import Keywords, Positive

Seconds = float
Measure = Callable[[], Seconds]
"""Runs once and returns the seconds; the clock is inside, so set-up need not count."""


class MissingRequirement(Exception):
    """What a comparison needs is not on this machine; the reason says what and how to get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One benchmark: the product beside its baseline."""

    name: str
    product: str
    baseline: str
    target: float | None
    measure_product: Measure
    measure_baseline: Measure


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The ratio of product to baseline, measured as interleaved pairs in one run."""

    name: str
    product: str
    """What was measured."""
    baseline: str
    """What it was compared with, in the same run."""
    pairs: Positive
    ratio: Annotated[float, Keywords(exclusiveMinimum=0)]
    """Median over the pairs of product / baseline."""
    ratio_low: float
    """Lower end of the 95 % interval of the median."""
    ratio_high: float
    """Upper end of the 95 % interval of the median."""
    target: float | None
    """Largest ratio that is good enough; null where none is set."""
    met: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedComparison:
    """A comparison that could not be measured; the command exits with 1 then."""

    name: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedComparison:
    """A comparison that needs what this machine does not have; no failure."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """Ratios of product to baseline; no absolute time is a result."""

    version: Literal[1] = 1
    benchmarks: tuple[Measurement, ...]
    failed: tuple[FailedComparison, ...]
    skipped: tuple[SkippedComparison, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Median of product / baseline over all pairs, with a 95 % interval."""

    median: float
    low: float
    high: float


def median_ratio(ratios: list[float]) -> Ratio:
    """Compute the median and its distribution-free interval.

    The interval runs between two order statistics. With n pairs the number of ratios below the
    true median is binomial(n, 1/2), so the interval from the k-th smallest to the k-th largest
    covers it with probability 1 - 2 P(X < k); k is the largest that keeps 95 %.
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
    """Measure pairs, alternating which side goes first; yields each pair's ratio.

    If there are several, an extra first pair warms caches and is discarded.
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
