"""Agreement among a job's ranks: rank 0 decides and broadcasts the result."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from training.core.progress import MAX_COMPILE_S

T = TypeVar("T")

_TIMEOUT = timedelta(seconds=MAX_COMPILE_S)
"""Timeout of collectives that wait for the slowest upload, or for a rank that compiles a graph
cached by its peers. A dead rank is detected immediately."""


class Ranks:
    """A process group separate from training's, because uploads run concurrently with it."""

    def __init__(self, group: Any = None, *, rank: int = 0, num_ranks: int = 1) -> None:
        self.group, self.rank, self.num_ranks = group, rank, num_ranks

    @classmethod
    def open(cls) -> Ranks:
        """Create the group; every rank must call this at the same point.

        Without torch.distributed there is a single rank and no group.
        """
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        group = dist.new_group(backend="gloo", timeout=_TIMEOUT)
        return cls(group, rank=dist.get_rank(), num_ranks=dist.get_world_size())

    @property
    def is_leader(self) -> bool:
        """True on rank 0, which decides and writes all files that are not per-rank."""
        return self.rank == 0

    def agree(self, action: Callable[[], T]) -> T:
        """Run ``action`` on the leader; every rank gets its result or raises its exception."""
        outcome: list[Any] = [None, None]
        if self.is_leader:
            try:
                outcome[0] = action()
            except Exception as error:
                outcome[1] = error
        if self.num_ranks > 1:
            dist.broadcast_object_list(outcome, src=0, group=self.group)
        if outcome[1] is not None:
            raise outcome[1]
        result: T = outcome[0]
        return result

    def gather(self, mine: T) -> list[T]:
        """Return every rank's object, on every rank."""
        if self.num_ranks == 1:
            return [mine]
        gathered: list[Any] = [None] * self.num_ranks
        dist.all_gather_object(gathered, mine, group=self.group)
        return gathered
