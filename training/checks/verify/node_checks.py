"""Checks that train nothing: sums over all ranks, and the place of compiled graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from training.checks.allreduce.sweep import rank_pattern, sum_pattern
from training.checks.payload import compare, tile
from training.checks.verify.outcome import Outcome
from trainium_catalogue.contract import CACHE_PREFIX

if TYPE_CHECKING:
    from training.core.device import Device
    from training.core.progress import RunContext
    from training.core.ranks import Ranks
    from training.storage import Objects

_ELEMENTS = 2**18


def sums(device: Device, ranks: Ranks) -> Outcome:
    """Sums over all ranks, which are known exactly, in the types that carry them."""
    example = ""
    for data_type in (torch.int32, torch.float32):
        placed = device.place(tile(rank_pattern(device.rank), _ELEMENTS, data_type))
        device.all_reduce(placed)
        device.synchronize()
        _, text = compare(device.fetch(placed), sum_pattern(device.num_ranks))
        example = example or text
    found = [(rank, text) for rank, text in enumerate(ranks.gather(example)) if text]
    if found:
        rank, text = found[0]
        return Outcome(
            check="sums",
            ok=False,
            detail=f"wrong on {len(found)} ranks, first on rank {rank}{text}",
        )
    detail = f"{_ELEMENTS} elements over {device.num_ranks} ranks are exact, int32 and fp32"
    return Outcome(check="sums", ok=True, detail=detail)


def cache(storage: Objects, context: RunContext, ranks: Ranks) -> Outcome:
    """The place of compiled graphs takes an object and gives it back."""

    def write() -> Outcome:
        key = f"{CACHE_PREFIX}verify/{context.job_id}"
        data = context.run.encode()
        storage.put(key, data)
        same = storage.get(key) == data
        storage.delete([key])
        detail = f"{storage.uri}/{CACHE_PREFIX} takes objects and gives them back"
        return Outcome(check="cache", ok=same, detail=detail if same else "other bytes came back")

    return ranks.agree(write)
