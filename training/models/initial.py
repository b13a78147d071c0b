"""Initial weights as a pure function of a parameter's name."""

from __future__ import annotations

import hashlib

import torch

INITIAL_DEVIATION = 0.02
"""The initializer_range of Llama-2 and bert-large-uncased."""


def generator(name: str, *, seed: int) -> torch.Generator:
    """Create the random generator of one parameter.

    Every topology begins with the same model, and a rank that keeps a part of it needs no other.
    """
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def normal_weight(name: str, size: torch.Size, *, seed: int) -> torch.Tensor:
    """Make the initial value of one whole matrix, fp32 on the host."""
    numbers = generator(name, seed=seed)
    return torch.empty(size).normal_(0.0, INITIAL_DEVIATION, generator=numbers)
