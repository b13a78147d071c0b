"""Norms of each head's queries or keys, for models whose heads are split over ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate

SumOverRanks = Callable[[torch.Tensor], torch.Tensor]
"""Returns its argument; the gradient is summed over the ranks of a model."""


class HeadNorm(nn.Module):
    """Qwen3's head norm (transformers 4.56, ``Qwen3RMSNorm``), for a rank with some of the heads.

    Every rank has the whole weight but applies it to its own heads only, so gradients are partial:
    without summing them each rank would train a different norm.
    """

    def __init__(self, norm: Any, sum_over_ranks: SumOverRanks) -> None:
        super().__init__()
        self.weight: nn.Parameter = norm.weight
        self._epsilon: float = norm.variance_epsilon
        self._sum_over_ranks = sum_over_ranks

    def forward(self, heads: torch.Tensor) -> torch.Tensor:
        """Normalize ``[..., heads, head_dim]`` in fp32."""
        exact = heads.float()
        exact = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + self._epsilon)
        return self._sum_over_ranks(self.weight) * exact.to(heads.dtype)


def share_head_norms(model: nn.Module, sum_over_ranks: SumOverRanks) -> None:
    """Replace the head norms, if any, of a model whose heads are split."""
    for attention in list(model.modules()):
        for name in ("q_norm", "k_norm"):
            norm = getattr(attention, name, None)
            if isinstance(norm, nn.Module):
                setattr(attention, name, HeadNorm(norm, sum_over_ranks))


def sum_over(mesh: DeviceMesh) -> SumOverRanks:
    """Return a function that sums gradients over the ranks of ``mesh``, using DTensor."""

    def sum_gradient(weight: torch.Tensor) -> torch.Tensor:
        shared = DTensor.from_local(weight, mesh, [Replicate()], run_check=False)
        return shared.to_local(grad_placements=[Partial()])

    return sum_gradient
