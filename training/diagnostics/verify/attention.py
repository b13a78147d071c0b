"""Compare Neuron's flash-attention kernel with torch's attention on the host in fp32."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from training.models.llama.nxd_attention import flash_attention

if TYPE_CHECKING:
    from training.core.device import Device

_HEADS, _KV_HEADS, _SEQ_LEN, _HEAD_DIM = 4, 2, 2048, 128
"""A rank's heads in llama2-7b, with half as many key-value heads."""
NAMES = ("result", "gradient of queries", "of keys", "of values")


def distances(device: Device) -> dict[str, float]:
    """Compute attention and its gradients on this rank's device; return their relative errors."""
    generator = torch.Generator().manual_seed(device.rank)
    inputs = [
        torch.randn(1, heads, _SEQ_LEN, _HEAD_DIM, generator=generator).bfloat16()
        for heads in (_HEADS, _KV_HEADS, _KV_HEADS)
    ]
    gradient = torch.randn(1, _SEQ_LEN, _HEADS, _HEAD_DIM, generator=generator).bfloat16()
    actual = [device.fetch(one).float() for one in _on_device(device, inputs, gradient)]
    return {
        name: float((found - expected).norm() / expected.norm())
        for name, found, expected in zip(NAMES, actual, _on_host(inputs, gradient), strict=True)
    }


def _on_device(
    device: Device, inputs: list[torch.Tensor], gradient: torch.Tensor
) -> list[torch.Tensor]:
    placed = [device.place(one).requires_grad_() for one in inputs]
    module: Any = SimpleNamespace(num_key_value_groups=_HEADS // _KV_HEADS)
    query, key, value = placed
    result, _ = flash_attention(module, query, key, value, None, scaling=_HEAD_DIM**-0.5)
    found = [result.detach(), *torch.autograd.grad(result, placed, device.place(gradient))]
    device.synchronize()
    return found


def _on_host(inputs: list[torch.Tensor], gradient: torch.Tensor) -> list[torch.Tensor]:
    exact = [one.float().requires_grad_() for one in inputs]
    query, key, value = exact
    key, value = (one.repeat_interleave(_HEADS // _KV_HEADS, 1) for one in (key, value))
    result = scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)
    return [result.detach(), *torch.autograd.grad(result, exact, gradient.float())]
