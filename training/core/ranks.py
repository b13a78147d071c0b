"""Agreement among a job's ranks: rank 0 decides, all learn the result."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from training.core.progress import COMPILES_AT_MOST_S

T = TypeVar("T")

_TIMEOUT = timedelta(seconds=COMPILES_AT_MOST_S)
"""Timeout of collectives that wait for the slowest rank's upload, or for one that compiles what
others have cached. A rank that dies is noticed at once."""


class Ranks:
    """A process group of its own, because uploads run during training and must not mix with it."""

    def __init__(self, group: Any = None, *, rank: int = 0, num_ranks: int = 1) -> None:
        self.group, self.rank, self.num_ranks = group, rank, num_ranks

    @classmethod
    def open(cls) -> Ranks:
        """All ranks, at the same point of their program: make the group.

        Without torch.distributed there is one rank, which needs none.
        """
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        group = dist.new_group(backend="gloo", timeout=_TIMEOUT)
        return cls(group, rank=dist.get_rank(), num_ranks=dist.get_world_size())

    @property
    def is_leader(self) -> bool:
        """True on rank 0, which decides, and writes whatever does not belong to a rank."""
        return self.rank == 0

    def agree(self, action: Callable[[], T]) -> T:
        """Run ``action`` on the leader; every rank gets its result or raises its exception."""
        told: list[Any] = [None, None]
        if self.is_leader:
            try:
                told[0] = action()
            except Exception as error:
                told[1] = error
        if self.num_ranks > 1:
            dist.broadcast_object_list(told, src=0, group=self.group)
        if told[1] is not None:
            raise told[1]
        result: T = told[0]
        return result

    def gather(self, mine: T) -> list[T]:
        """Return every rank's object, on every rank."""
        if self.num_ranks == 1:
            return [mine]
        gathered: list[Any] = [None] * self.num_ranks
        dist.all_gather_object(gathered, mine, group=self.group)
        return gathered
