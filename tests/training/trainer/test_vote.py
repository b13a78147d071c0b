"""Votes of several ranks, as real processes: all hear the same at the same point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.ranks import results_of_ranks
from tests.training.trainer.vote_program import FIRST_WISH, LATE
from training.core.ranks import Ranks
from training.trainer.vote import Vote, Wish

PROGRAM = Path(__file__).with_name("vote_program.py")
NUM_RANKS = 4


@pytest.fixture(scope="module")
def results() -> list[dict[str, Any]]:
    """What each rank has heard."""
    return results_of_ranks(PROGRAM, num_ranks=NUM_RANKS)


def test_all_ranks_hear_a_wish_of_one_with_the_next_cast(results: list[dict[str, Any]]) -> None:
    expected = [0] * (min(FIRST_WISH.values()) + 1) + [int(Wish.STOP)]

    assert [found["heard"] for found in results] == [expected] * NUM_RANKS


def test_what_was_heard_stays(results: list[dict[str, Any]]) -> None:
    """Whoever hears it first may leave it to the next to act, as an evaluation does."""
    for found in results:
        assert (found["first"], found["then"]) == (0, [int(Wish.STOP)] * 3)


def test_ranks_that_wait_for_another_say_so_and_are_not_taken_for_hanging(
    results: list[dict[str, Any]],
) -> None:
    said = ["waiting for the other ranks between micro-batches"]

    assert [found["reports"] for rank, found in enumerate(results) if rank != LATE] == [said] * 3


def test_one_rank_hears_itself_at_once() -> None:
    vote = Vote(Ranks.open())

    assert [vote.cast(wish) for wish in Wish] == list(Wish)
