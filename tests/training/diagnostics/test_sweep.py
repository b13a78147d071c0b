"""The arithmetic of the all-reduce workload."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.core.arguments import parse
from training.diagnostics.allreduce.sweep import (
    BarStatus,
    Sweep,
    algorithm_bandwidth_gib_per_s,
    bus_bandwidth_gib_per_s,
    compare_with_bar,
    element_value,
    plan_iterations,
    rank_pattern,
    sum_pattern,
)


def sweep(*words: str) -> Sweep:
    return Sweep.from_values(parse(["all-reduce", *words]).values, 4)


@given(st.integers(1, 2**20), st.integers(1, 2**30), st.integers(2, 64))
def test_sizes_grow_within_their_bounds(low: int, high: int, factor: int) -> None:
    low, high = 4 * min(low, high), 4 * max(low, high)
    sizes = sweep(f"--min-bytes={low}", f"--max-bytes={high}", f"--size-factor={factor}").sizes()

    assert sizes[0] == low
    assert sizes[-1] <= high < sizes[-1] * factor
    assert all(later == factor * size for size, later in pairwise(sizes))


def test_bandwidths_are_those_of_nccom_tests_published_table() -> None:
    # Its user guide, -r 64 -N 2 -d fp32: 1 GiB in 41806 us, 23.92 algbw, 47.09 busbw.
    assert round(algorithm_bandwidth_gib_per_s(2**30, 41806e-6), 2) == 23.92
    assert round(bus_bandwidth_gib_per_s(2**30, 41806e-6, 64), 2) == 47.09


@given(st.floats(1e-6, 100), st.floats(0, 600), st.integers(0, 100), st.integers(1, 1000))
def test_planned_iterations_fit_the_budget(
    probe_s: float, budget_s: float, warmup: int, iterations: int
) -> None:
    planned_warmup, planned = plan_iterations(
        probe_s=probe_s, budget_s=budget_s, warmup=warmup, iterations=iterations
    )

    assert 0 <= planned_warmup <= warmup and 1 <= planned <= iterations
    assert (planned_warmup + planned) * probe_s <= max(budget_s, probe_s) * 1.001


@given(st.integers(1, 512))
def test_the_expected_sum_is_exact_in_fp32(num_ranks: int) -> None:
    payloads = np.array([rank_pattern(rank) for rank in range(num_ranks)], dtype=np.float32)

    assert payloads.sum(axis=0, dtype=np.float32).tolist() == sum_pattern(num_ranks)
    assert max(sum_pattern(num_ranks)) < 2**24


@given(st.integers(0, 63), st.integers(0, 63), st.integers(0, 250))
def test_ranks_have_distinct_elements(first: int, second: int, index: int) -> None:
    # Ranks differ everywhere unless they are 251 apart.
    assert (element_value(first, index) == element_value(second, index)) == (first == second)


def bar(status_of: float | None, **change: object) -> object:
    arguments: dict[str, object] = {
        "device": "xla",
        "instance_type": "trn1.32xlarge",
        "num_nodes": 2,
        "num_ranks": 64,
        "busbw_gib_per_s": {} if status_of is None else {2**30: status_of},
    }
    return compare_with_bar(**(arguments | change)).status  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("measured", "status"),
    [(47.09, BarStatus.MET), (47.08, BarStatus.BELOW), (None, BarStatus.NOT_MEASURED)],
)
def test_two_trn1_nodes_are_compared_with_the_published_figure(
    measured: float | None, status: BarStatus
) -> None:
    assert bar(measured) is status


@pytest.mark.parametrize(
    "change",
    [
        {"device": "cpu"},
        {"num_nodes": 4, "num_ranks": 128},
        {"instance_type": None},
    ],
)
def test_no_published_figure_is_applied_to_another_setup(change: dict[str, object]) -> None:
    assert bar(1.0, **change) is BarStatus.NOT_APPLICABLE
