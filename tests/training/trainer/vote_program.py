"""One rank of the vote test; its last line is a JSON result."""

from __future__ import annotations

import json
import random
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from training.core.ranks import Ranks
from training.trainer.vote import StopVote, Vote

LAST = 20
FIRST_STOP_VOTE = {2: 7, 3: 9}
"""Cast with which a rank first votes to stop."""
LATE = 1
"""A rank, by so many seconds."""
LATE_S = 1.5


def main() -> None:
    rank = dist.get_rank()
    reports: list[str] = []
    ranks = Ranks.open()
    vote = Vote(ranks)
    outcomes = []
    for number in range(LAST):
        time.sleep(random.random() / 100)
        votes_stop = number >= FIRST_STOP_VOTE.get(rank, LAST)
        outcomes.append(int(vote.cast(StopVote.STOP if votes_stop else StopVote.CONTINUE)))
        if outcomes[-1]:
            break
    # A new vote, for which the last rank makes the others wait.
    if rank == LATE:
        time.sleep(LATE_S)
    vote = Vote(ranks, reports.append)
    first = vote.cast(StopVote.STOP if rank == LATE else StopVote.CONTINUE)
    vote.resolve()
    result = {
        "outcomes": outcomes,
        "first": int(first),
        "then": [int(vote.cast(StopVote.CONTINUE)) for _ in range(3)],
        "reports": sorted(set(reports)),
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    main()
    dist.barrier()
    dist.destroy_process_group()
