"""Votes of several ranks in real processes: all get the same outcome at the same point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.ranks import results_of_ranks
from tests.training.trainer.vote_program import FIRST_STOP_VOTE, LATE
from training.core.ranks import Ranks
from training.trainer.vote import StopVote, Vote

PROGRAM = Path(__file__).with_name("vote_program.py")
NUM_RANKS = 4


@pytest.fixture(scope="module")
def results() -> list[dict[str, Any]]:
    """Return the outcomes of the votes on each rank."""
    return results_of_ranks(PROGRAM, num_ranks=NUM_RANKS)


def test_all_ranks_get_the_vote_of_one_with_the_next_vote(results: list[dict[str, Any]]) -> None:
    expected = [0] * (min(FIRST_STOP_VOTE.values()) + 1) + [int(StopVote.STOP)]

    assert [found["outcomes"] for found in results] == [expected] * NUM_RANKS


def test_an_outcome_is_final(results: list[dict[str, Any]]) -> None:
    """The first caller to get it may leave the action to the next, as an evaluation does."""
    for found in results:
        assert (found["first"], found["then"]) == (0, [int(StopVote.STOP)] * 3)


def test_ranks_waiting_for_another_say_so_and_do_not_count_as_hanging(
    results: list[dict[str, Any]],
) -> None:
    said = ["waiting for the other ranks between micro-batches"]

    assert [found["reports"] for rank, found in enumerate(results) if rank != LATE] == [said] * 3


def test_one_rank_gets_its_own_vote_at_once() -> None:
    vote = Vote(Ranks.open())

    assert [vote.cast(each) for each in StopVote] == list(StopVote)
