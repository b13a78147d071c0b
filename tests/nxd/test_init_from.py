"""Given weights on the real NxD: each rank reads its rows, and begins with the same model.

That gradients and losses are then those of the same initial weights made on the spot is judged
with all other cases (``test_gradients``).
"""

from __future__ import annotations

import pytest

from tests.nxd.cases import CASES
from tests.nxd.figures import Figures

pytestmark = pytest.mark.timeout(900)
GIVEN = "tp2dp2-given"


def test_the_model_begins_with_exactly_the_given_weights(figures: Figures) -> None:
    import torch

    given, made = figures.initial(GIVEN), figures.initial("tp2dp2")
    assert given.keys() == made.keys()
    assert all(torch.equal(given[name], made[name]) for name in made)


def test_master_weights_begin_with_no_more_than_bf16_has(figures: Figures) -> None:
    """As docs/finetune.md says: NxD makes them from the weights that it computes with."""
    import torch

    given = figures.initial(GIVEN)
    assert {weight.dtype for weight in given.values()} == {torch.float32}
    assert all(torch.equal(weight, weight.bfloat16().float()) for weight in given.values())


def test_a_rank_reads_the_rows_it_computes_with(figures: Figures) -> None:
    sizes = {name: 4 * weight.numel() for name, weight in figures.initial(GIVEN).items()}
    # Norms are whole on every rank, and columns are cut from their rows.
    whole = ("norm", "o_proj", "down_proj")
    expected = sum(
        size if any(word in name for word in whole) else size // CASES[GIVEN].tensor
        for name, size in sizes.items()
    )

    for rank in range(CASES[GIVEN].num_ranks):
        assert int((figures.folder / GIVEN / f"read-{rank}.txt").read_text()) == expected
