"""The order of training data: a permutation of each epoch, whoever asks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.datasets.samples.order import sequence_index, sequence_indices

SIZES = st.integers(min_value=1, max_value=3000)
SEEDS = st.integers(min_value=0, max_value=2**63)


@given(seed=SEEDS, size=SIZES, epoch=st.integers(min_value=0, max_value=1000))
def test_every_epoch_visits_each_sequence_once(seed: int, size: int, epoch: int) -> None:
    positions = np.arange(epoch * size, (epoch + 1) * size)

    found = sequence_indices(seed=seed, positions=positions, num_sequences=size)

    assert np.array_equal(np.sort(found), np.arange(size))


@given(seed=SEEDS, size=SIZES, position=st.integers(min_value=0, max_value=2**50))
def test_a_position_alone_has_the_sequence_that_it_has_among_others(
    seed: int, size: int, position: int
) -> None:
    others = np.array([position + 1, position])

    found = sequence_indices(seed=seed, positions=others, num_sequences=size)

    assert sequence_index(seed=seed, position=position, num_sequences=size) == found[1]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        positions = np.arange(epoch * 1000, (epoch + 1) * 1000)
        found = sequence_indices(seed=seed, positions=positions, num_sequences=1000)
        return list(map(int, found))

    orders = [order(seed, epoch) for seed in (1, 2, 3) for epoch in (0, 1, 2)]

    for number, one in enumerate(orders):
        for other in orders[number + 1 :]:
            # Of two random orders of 1000, about one place agrees.
            assert sum(a == b for a, b in zip(one, other, strict=True)) < 10


def test_the_order_is_as_even_as_a_random_one() -> None:
    """Test the position of an epoch's first tenth, over many seeds: chi-squared over ten bins."""
    counts = np.zeros(10)
    for seed in range(200):
        found = sequence_indices(seed=seed, positions=np.arange(100), num_sequences=1000)
        counts += np.histogram(found, bins=10, range=(0, 1000))[0]

    # 9 degrees of freedom: above 27.9 once in a thousand times, if it were random.
    assert float(((counts - 2000) ** 2 / 2000).sum()) < 27.9


def test_the_order_never_changes() -> None:
    """A run that continues after an update must read what it would have read before."""
    found = sequence_indices(seed=12349, positions=np.arange(8), num_sequences=238_000)

    assert found.tolist() == [86781, 16666, 164163, 71572, 113145, 231806, 180712, 8909]


def test_a_dataset_without_a_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="holds 0 sequences of this length; use a shorter"):
        sequence_index(seed=1, position=0, num_sequences=0)


def test_a_negative_position_is_refused() -> None:
    with pytest.raises(ValueError, match="position -1 is negative"):
        sequence_index(seed=1, position=-1, num_sequences=5)
