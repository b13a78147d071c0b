"""Cross entropy fused with the output projection, in chunks of tokens.

Logits are the largest tensor of a decoder's step (2 GB in fp32, for 4,096 tokens with Llama 3's
vocabulary), and cross entropy passes over them about ten times. Here they are computed for a chunk
of tokens, on CPUs small enough for the cache, converted to losses and gradients, and discarded, as
in Liger Kernel's ``LigerFusedLinearCrossEntropyLoss`` on GPUs (arXiv 2410.10989, section 3.2).
Ranks that share a model each compute part of the vocabulary, and exchange two numbers per token.

In bf16 with a single chunk, gradients are as accurate as torch's (an error of 0.17%). With several
chunks, the weight's gradient has an error of 0.24%, because each chunk's product is rounded to bf16
before it is added; avoiding this would require a product in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

_CPU_LOGITS = 2**21
"""Logits per chunk on a CPU: 8 MiB, measured as fast as 4 MiB and faster than 16 to 128."""
_DEVICE_LOGITS = 2**28
"""Logits per chunk on a device, where each operation has overhead."""
_MIN_TOKENS = 64
"""Minimum tokens per chunk, because each chunk passes over the whole weight and its gradient."""


class LateProjection(nn.Linear):
    """An output projection that returns its input and leaves the product to the loss."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return a copy of ``states``."""
        # Hugging Face's decoders return a view, and FSDP2 warns on every rank about outputs that
        # are views (torch 2.13, ``FSDPState._register_pre_backward_hook``).
        return states.clone()


def project_late(model: Any) -> None:
    """Make a meta-device model return hidden states as "logits", by replacing the projection."""
    whole = model.lm_head
    late = LateProjection(whole.in_features, whole.out_features, bias=False, device="meta")
    late.weight = whole.weight
    model.lm_head = late


def weighted_loss(
    states: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Return the weighted sum of the tokens' losses.

    Args:
        states: Hidden states, ``[tokens, hidden]``.
        weight: The projection's weight, ``[vocabulary, hidden]``; a DTensor if it is sharded.
        labels: int64 ``[tokens]``.
        weights: fp32 ``[tokens]``.
    """
    part, shard = _shard_of(weight)
    total: torch.Tensor = _WeightedLoss.apply(states, part, labels, weights, shard)  # type: ignore[no-untyped-call]
    return total


@torch.no_grad()
def token_losses(states: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Compute each token's loss, fp32 ``[tokens]``, without gradients; see ``weighted_loss``."""
    return -torch.cat([each.label_logs for each in _chunks(states, *_shard_of(weight), labels)])


class _Shard(NamedTuple):
    """The part of the vocabulary whose logits this rank computes."""

    first: int = 0
    group: dist.ProcessGroup | None = None
    """The ranks that share the vocabulary; None if this one has all of it."""


def _shard_of(weight: torch.Tensor) -> tuple[torch.Tensor, _Shard]:
    if not isinstance(weight, DTensor):
        return weight, _Shard()
    part, mesh = weight.to_local(), weight.device_mesh
    return part, _Shard(mesh.get_local_rank() * len(part), mesh.get_group())


class _WeightedLoss(torch.autograd.Function):
    """Computes gradients together with the loss, while the logits exist."""

    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        weight: torch.Tensor,
        labels: torch.Tensor,
        weights: torch.Tensor,
        shard: _Shard,
    ) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float32, device=states.device)
        grad_states = torch.empty_like(states)
        # None if the weight is frozen, to save memory; else fp32, because a bf16 sum would lose
        # precision with each chunk.
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = torch.zeros_like(weight.t(), dtype=torch.float32)
        for chunk in _chunks(states, weight, shard, labels):
            scale = weights[chunk.rows, None]
            total -= (chunk.label_logs * weights[chunk.rows]).sum()
            # Scale before rounding to the weight's dtype, as in torch.
            grad_logits = chunk.logs.add_(scale.log()).exp_()
            grad_logits.scatter_add_(1, chunk.at, -scale * chunk.is_here)
            grad_logits = grad_logits.to(weight.dtype)
            grad_states[chunk.rows] = grad_logits @ weight
            if grad_weight is not None and states.dtype == grad_weight.dtype:
                grad_weight.addmm_(states[chunk.rows].t(), grad_logits)
            elif grad_weight is not None:
                grad_weight += states[chunk.rows].t() @ grad_logits
        saved = None if grad_weight is None else grad_weight.t().to(weight.dtype)
        ctx.save_for_backward(grad_states, saved)
        return total

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad_states, grad_weight = ctx.saved_tensors
        (grad_loss,) = grad_outputs
        grad_part = None if grad_weight is None else grad_weight * grad_loss
        return grad_states * grad_loss, grad_part, None, None, None


class _Chunk(NamedTuple):
    """A chunk of tokens and this rank's part of the vocabulary."""

    rows: slice
    logs: torch.Tensor
    """fp32 log-probabilities, ``[tokens, vocabulary part]``."""
    label_logs: torch.Tensor
    """The labels' log-probabilities, ``[tokens]``, the same on every rank."""
    at: torch.Tensor
    """Indices of the labels in this rank's part of the vocabulary, ``[tokens, 1]``."""
    is_here: torch.Tensor | bool
    """True where a label is in this rank's part; elsewhere its index is arbitrary."""


def _chunks(
    states: torch.Tensor, weight: torch.Tensor, shard: _Shard, labels: torch.Tensor
) -> Iterator[_Chunk]:
    num_logits = _CPU_LOGITS if states.device.type == "cpu" else _DEVICE_LOGITS
    count = max(_MIN_TOKENS, num_logits // len(weight))
    for first in range(0, len(states), count):
        rows = slice(first, first + count)
        logits = (states[rows] @ weight.t()).float()
        logs, at = torch.log_softmax(logits, dim=-1), labels[rows, None]
        # The log-sum-exp over this rank's part of the vocabulary.
        log_sum = logits[:, :1] - logs[:, :1]
        del logits
        if shard.group is None:
            yield _Chunk(rows, logs, logs.gather(1, at)[:, 0], at, True)
            continue
        at = at - shard.first
        is_here = (at >= 0) & (at < len(weight))
        at = at.clamp(0, len(weight) - 1)
        # Gathered together with the label's logit, which is 0 on ranks without the label.
        mine = torch.cat([log_sum, (logs.gather(1, at) + log_sum) * is_here], dim=1)
        gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size(shard.group))]
        dist.all_gather(gathered, mine, group=shard.group)
        log_sums, logit = torch.stack(gathered).unbind(-1)
        total = log_sums.logsumexp(0)
        yield _Chunk(rows, logs.add_(log_sum - total[:, None]), logit.sum(0) - total, at, is_here)
