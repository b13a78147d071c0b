"""The order of training data: a permutation per epoch, independent of the reader."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.datasets.samples.order import sequence_indices

SIZES = st.integers(min_value=1, max_value=3000)
SEEDS = st.integers(min_value=0, max_value=2**63)


@given(seed=SEEDS, size=SIZES, epoch=st.integers(min_value=0, max_value=1000))
def test_every_epoch_visits_each_sequence_once(seed: int, size: int, epoch: int) -> None:
    positions = np.arange(epoch * size, (epoch + 1) * size)

    found = sequence_indices(seed=seed, positions=positions, num_sequences=size)

    assert np.array_equal(np.sort(found), np.arange(size))


@given(seed=SEEDS, size=SIZES, position=st.integers(min_value=0, max_value=2**50))
def test_a_position_has_the_same_sequence_alone_as_in_a_batch(
    seed: int, size: int, position: int
) -> None:
    alone, among_others = (
        sequence_indices(seed=seed, positions=np.array(positions), num_sequences=size)
        for positions in ([position], [position + 1, position])
    )

    assert alone[0] == among_others[1]


def test_epochs_and_seeds_have_their_own_orders() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        positions = np.arange(epoch * 1000, (epoch + 1) * 1000)
        found = sequence_indices(seed=seed, positions=positions, num_sequences=1000)
        return list(map(int, found))

    orders = [order(seed, epoch) for seed in (1, 2, 3) for epoch in (0, 1, 2)]

    for number, one in enumerate(orders):
        for other in orders[number + 1 :]:
            # Two random orders of 1000 agree in about one place.
            assert sum(a == b for a, b in zip(one, other, strict=True)) < 10


def test_the_order_never_changes() -> None:
    """A run resumed after an update must read the same data as before."""
    found = sequence_indices(seed=12349, positions=np.arange(8), num_sequences=238_000)

    assert found.tolist() == [86781, 16666, 164163, 71572, 113145, 231806, 180712, 8909]


def test_a_dataset_without_a_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="has 0 sequences of this length; use a shorter"):
        sequence_indices(seed=1, positions=np.arange(1), num_sequences=0)
