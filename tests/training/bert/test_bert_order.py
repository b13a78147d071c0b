"""The order of sequences in shards: each once per epoch, few shards at a time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from training.models.bert.data import ShardOrder

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=80).map(tuple)


def epoch(order: ShardOrder, number: int) -> list[tuple[int, int]]:
    count = order.num_sequences
    shards, rows = order.find(np.arange(number * count, (number + 1) * count))
    return list(zip(shards.tolist(), rows.tolist(), strict=True))


@given(SIZES, st.integers(1, 200), st.integers(0, 3))
def test_an_epoch_visits_every_sequence_once(
    sizes: tuple[int, ...], global_batch: int, number: int
) -> None:
    found = epoch(ShardOrder(seed=1, sizes=sizes, global_batch=global_batch), number)

    assert sorted(found) == [(shard, row) for shard, n in enumerate(sizes) for row in range(n)]


def test_epochs_and_seeds_have_their_own_orders() -> None:
    sizes = (20, 30, 10, 40)
    orders = [
        epoch(ShardOrder(seed=seed, sizes=sizes, global_batch=8), number)
        for seed, number in ((1, 0), (1, 1), (2, 0))
    ]

    assert len({tuple(order) for order in orders}) == 3
    # Positions of two epochs together equal those of each.
    shards, rows = ShardOrder(seed=1, sizes=sizes, global_batch=8).find(np.arange(90, 110))
    pairs = list(zip(shards.tolist(), rows.tolist(), strict=True))
    assert pairs == orders[0][90:] + orders[1][:10]


def test_a_bert_large_rank_reads_few_shards_and_a_step_many() -> None:
    order = ShardOrder(seed=5, sizes=(50_000,) * 256, global_batch=16384)

    for step in (0, 7, 781):
        first = step * 16384 + 3 * 256
        shards, _ = order.find(np.arange(first, first + 256))
        assert len(set(shards.tolist())) <= order.max_shards(256) == 3
        shards, _ = order.find(np.arange(step * 16384, (step + 1) * 16384))
        assert len(set(shards.tolist())) >= 48
