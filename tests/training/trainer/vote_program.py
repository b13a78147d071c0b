"""One rank of the test of votes; its last line is a JSON result."""

from __future__ import annotations

import json
import random
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from training.core.ranks import Ranks
from training.trainer.vote import Vote, Wish

LAST = 20
FIRST_WISH = {2: 7, 3: 9}
"""Cast with which a rank begins to wish for the end."""
LATE = 1
"""A rank, by so many seconds."""
LATE_S = 1.5


def main() -> None:
    rank = dist.get_rank()
    reports: list[str] = []
    ranks = Ranks.open()
    vote = Vote(ranks)
    heard = []
    for number in range(LAST):
        time.sleep(random.random() / 100)
        wishes = number >= FIRST_WISH.get(rank, LAST)
        heard.append(int(vote.cast(Wish.STOP if wishes else Wish.GO_ON)))
        if heard[-1]:
            break
    # A new question, of which the last one to be asked makes the others wait.
    if rank == LATE:
        time.sleep(LATE_S)
    vote = Vote(ranks, reports.append)
    first = vote.cast(Wish.STOP if rank == LATE else Wish.GO_ON)
    vote.resolve()
    result = {
        "heard": heard,
        "first": int(first),
        "then": [int(vote.cast(Wish.GO_ON)) for _ in range(3)],
        "reports": sorted(set(reports)),
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    main()
    dist.barrier()
    dist.destroy_process_group()
