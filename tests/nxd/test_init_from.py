"""Pretrained weights on the real NxD: each rank reads its rows and starts with the same model.

``test_gradients`` compares gradients and losses with those of the same weights generated in place.
"""

from __future__ import annotations

import pytest

from tests.nxd.cases import CASES
from tests.nxd.figures import Figures

pytestmark = pytest.mark.timeout(900)
PRETRAINED = "tp2dp2-pretrained"


def test_the_model_starts_with_exactly_the_pretrained_weights(figures: Figures) -> None:
    import torch

    given, made = figures.initial(PRETRAINED), figures.initial("tp2dp2")
    assert given.keys() == made.keys()
    assert all(torch.equal(given[name], made[name]) for name in made)


def test_master_weights_start_at_bf16_precision(figures: Figures) -> None:
    """As in docs/finetune.md: NxD derives them from the bf16 weights."""
    import torch

    given = figures.initial(PRETRAINED)
    assert {weight.dtype for weight in given.values()} == {torch.float32}
    assert all(torch.equal(weight, weight.bfloat16().float()) for weight in given.values())


def test_a_rank_reads_only_the_rows_it_computes_with(figures: Figures) -> None:
    sizes = {name: 4 * weight.numel() for name, weight in figures.initial(PRETRAINED).items()}
    # Norms are replicated on every rank, and columns are sliced from their rows.
    whole = ("norm", "o_proj", "down_proj")
    expected = sum(
        size if any(word in name for word in whole) else size // CASES[PRETRAINED].tensor
        for name, size in sizes.items()
    )

    for rank in range(CASES[PRETRAINED].num_ranks):
        assert int((figures.folder / PRETRAINED / f"read-{rank}.txt").read_text()) == expected
