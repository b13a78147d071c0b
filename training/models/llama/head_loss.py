"""Cross entropy at the output projection, without the logits of all tokens at once.

Logits are the largest tensor of a decoder's step (2 GB in fp32, of 4,096 tokens in Llama 3's
vocabulary), and cross entropy goes through them about ten times. Here they are computed for as many
tokens as stay in a cache, turned into losses and gradients, and dropped, as Liger Kernel's
``LigerFusedLinearCrossEntropyLoss`` does on GPUs (arXiv 2410.10989, section 3.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

_AT_ONCE = 2**21
"""Logits computed at once on a CPU: 8 MiB, measured as fast as 4 and faster than 16 to 128."""
_AT_ONCE_ELSEWHERE = 2**28
"""The same on a device, where each operation costs time of its own."""
_LEAST_TOKENS = 64
"""Tokens at once whatever the vocabulary: the whole weight and its gradient pass for each part."""


class LateProjection(nn.Linear):
    """An output projection whose product is left to the loss; returns its input."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return a copy of ``states``."""
        # They are a view in Hugging Face's decoders, and of a model's output that is one FSDP2
        # warns on every rank (torch 2.13, ``FSDPState._register_pre_backward_hook``).
        return states.clone()


def project_late(model: Any) -> None:
    """Give a model on the meta device such a projection: its "logits" are hidden states then."""
    whole = model.lm_head
    late = LateProjection(whole.in_features, whole.out_features, bias=False, device="meta")
    late.weight = whole.weight
    model.lm_head = late


def weighted_loss(
    states: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Sum the tokens' losses, each times its weight.

    Args:
        states: Hidden states, ``[tokens, hidden]``.
        weight: Of the projection, ``[vocabulary, hidden]``.
        labels: int64 ``[tokens]``.
        weights: fp32 ``[tokens]``.
    """
    total: torch.Tensor = _WeightedLoss.apply(states, weight, labels, weights)  # type: ignore[no-untyped-call]
    return total


@torch.no_grad()
def token_losses(states: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Compute each token's loss, fp32 ``[tokens]``, without gradients; see ``weighted_loss``."""
    parts = (_picked(logs, labels[rows]) for rows, logs in _log_probabilities(states, weight))
    return -torch.cat(list(parts))


class _WeightedLoss(torch.autograd.Function):
    """Computes gradients with the loss, because logits are there only then."""

    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        weight: torch.Tensor,
        labels: torch.Tensor,
        weights: torch.Tensor,
    ) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float32, device=states.device)
        of_states = torch.empty_like(states)
        # A frozen weight gets no gradient, and no memory for one. In bf16 the sum over parts would
        # lose more with each.
        of_weight = None
        if ctx.needs_input_grad[1]:
            of_weight = torch.zeros_like(weight.t(), dtype=torch.float32)
        for rows, logs in _log_probabilities(states, weight):
            at, scale = labels[rows, None], weights[rows, None]
            total -= (_picked(logs, labels[rows]) * weights[rows]).sum()
            slopes = logs.exp_().scatter_add_(1, at, torch.full_like(at, -1.0, dtype=logs.dtype))
            slopes = slopes.to(weight.dtype)
            of_states[rows] = (slopes @ weight) * scale
            if of_weight is not None:
                scaled = (states[rows] * scale.to(states.dtype)).t()
                if scaled.dtype == of_weight.dtype:
                    of_weight.addmm_(scaled, slopes)
                else:
                    of_weight += scaled @ slopes
        kept = None if of_weight is None else of_weight.t().to(weight.dtype)
        ctx.save_for_backward(of_states, kept)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        of_states, of_weight = ctx.saved_tensors
        (slope,) = gradients
        return of_states * slope, None if of_weight is None else of_weight * slope, None, None


def _log_probabilities(
    states: torch.Tensor, weight: torch.Tensor
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield some tokens, and fp32 log-probabilities ``[of these, vocabulary]``."""
    most = _AT_ONCE if states.device.type == "cpu" else _AT_ONCE_ELSEWHERE
    count = max(_LEAST_TOKENS, most // len(weight))
    for first in range(0, len(states), count):
        rows = slice(first, first + count)
        yield rows, torch.log_softmax((states[rows] @ weight.t()).float(), dim=-1)


def _picked(logs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return logs.gather(1, labels[:, None])[:, 0]
