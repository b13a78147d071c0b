"""Payloads whose sum over all ranks is known exactly, and the comparison with it."""

from __future__ import annotations

import torch


def tile(pattern: list[int], num_elements: int, data_type: torch.dtype) -> torch.Tensor:
    """``pattern`` repeated to ``num_elements``."""
    period = torch.tensor(pattern, dtype=data_type)
    return period.repeat(-(-num_elements // len(pattern)))[:num_elements].contiguous()


def compare(found: torch.Tensor, pattern: list[int]) -> tuple[int, str]:
    """Number of elements that differ from the repeated pattern, and one of them in words.

    In pieces, because 32 workers with a GiB each would otherwise double a node's memory.
    """
    expected = tile(pattern, min(len(found), len(pattern) * 4096), found.dtype)
    wrong, example = 0, ""
    for start in range(0, len(found), len(expected)):
        piece = found[start : start + len(expected)]
        differs = piece != expected[: len(piece)]
        count = int(differs.sum())
        if count and not wrong:
            place = int(differs.nonzero()[0])
            example = (
                f"; element {start + place} is {piece[place].item():g}, "
                f"not {expected[place].item():g}"
            )
        wrong += count
    return wrong, example
