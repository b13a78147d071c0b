"""The norm of each head's queries or keys, when the ranks of a model have different heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

SumOverRanks = Callable[[torch.Tensor], torch.Tensor]
"""Returns its argument; the gradient is summed over the ranks of a model."""


class HeadNorm(nn.Module):
    """Qwen3's norm of heads (transformers 4.56, ``Qwen3RMSNorm``), for a rank that has a part.

    Every rank has the whole weight and applies it to its own heads, so its gradient is only their
    share: without the sum each rank would train a norm of its own.
    """

    def __init__(self, norm: Any, sum_over_ranks: SumOverRanks) -> None:
        super().__init__()
        self.weight: nn.Parameter = norm.weight
        self._epsilon: float = norm.variance_epsilon
        self._sum_over_ranks = sum_over_ranks

    def forward(self, heads: torch.Tensor) -> torch.Tensor:
        """Normalise ``[..., heads, head_dim]``, in fp32."""
        exact = heads.float()
        exact = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + self._epsilon)
        return self._sum_over_ranks(self.weight) * exact.to(heads.dtype)


def share_head_norms(model: nn.Module, sum_over_ranks: SumOverRanks) -> None:
    """Replace the norms of heads of a model whose heads are split, if it has any."""
    for attention in list(model.modules()):
        for name in ("q_norm", "k_norm"):
            norm = getattr(attention, name, None)
            if isinstance(norm, nn.Module):
                setattr(attention, name, HeadNorm(norm, sum_over_ranks))


class _SumOfGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = gradients[0].clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


def sum_over(group: dist.ProcessGroup) -> SumOverRanks:
    """Sum gradients by torch.distributed over ``group``."""

    def summed(weight: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = _SumOfGradients.apply(weight, group)  # type: ignore[no-untyped-call]
        return found

    return summed
