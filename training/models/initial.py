"""Initial weights as a pure function of a parameter's name."""

from __future__ import annotations

import hashlib

import torch

INITIAL_STD = 0.02
"""The initializer_range of Llama-2 and bert-large-uncased."""


def generator(name: str, *, seed: int) -> torch.Generator:
    """Create the random generator of one parameter.

    Its seed depends only on ``seed`` and the name, so every topology starts from the same model.
    """
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def normal_weight(name: str, size: torch.Size, *, seed: int) -> torch.Tensor:
    """Create the initial value of a whole matrix, fp32 on the host."""
    rng = generator(name, seed=seed)
    return torch.empty(size).normal_(0.0, INITIAL_STD, generator=rng)
