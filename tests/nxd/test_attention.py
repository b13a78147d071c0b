"""The project's flash attention through NxD's own function, around exact kernels.

Kernel shapes follow NxD's function: ``[batch, heads, head, sequence]``, the result with the last
two swapped. Whether Neuron's kernels compute the same must be tested on the device.
"""

from __future__ import annotations

import math
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from tests.nxd import kernels

BATCH, HEADS, KEYS, LENGTH, SIZE = 1, 4, 2, 2048, 16


def _attend(query: Any, key: Any, value: Any, scale: float) -> tuple[Any, Any]:
    """Return the reference in plain torch, from the kernels' inputs."""
    import torch

    scores = query.transpose(2, 3) @ key * scale
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    scores = scores.masked_fill(hidden, -math.inf)
    return scores.softmax(-1) @ value.transpose(2, 3), scores.logsumexp(-1)


def _forward(query: Any, key: Any, value: Any, seed: Any, **settings: Any) -> tuple[Any, Any]:
    assert settings["use_causal_mask"]
    assert settings["config"]["should_transpose_v"]
    return _attend(query, key, value, settings["softmax_scale"])


def _backward(
    query: Any, key: Any, value: Any, result: Any, gradient: Any, statistics: Any, seed: Any,
    **settings: Any,
) -> Any:  # fmt: skip
    import torch

    with torch.enable_grad():
        given = [tensor.detach().requires_grad_() for tensor in (query, key, value)]
        again, _ = _attend(given[0], given[1], given[2], settings["softmax_scale"])
    assert torch.equal(again, result.transpose(2, 3))
    return torch.autograd.grad(again, given, gradient.transpose(2, 3))


def test_it_is_what_eager_attention_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels.replace()
    import torch
    from transformers.models.llama.modeling_llama import eager_attention_forward

    from training.models.llama.data import attention_mask
    from training.models.llama.nxd_attention import flash_attention

    place: Any = import_module("neuronxcc.nki.kernels")
    monkeypatch.setattr(place, "flash_fwd", {(BATCH, HEADS): _forward})
    monkeypatch.setattr(place, "flash_attn_bwd", {(BATCH, HEADS): _backward})
    torch.manual_seed(0)
    shapes = ((HEADS, LENGTH), (KEYS, LENGTH), (KEYS, LENGTH))
    given = [torch.randn(BATCH, *shape, SIZE, requires_grad=True) for shape in shapes]
    gradient = torch.randn(BATCH, LENGTH, HEADS, SIZE)
    module: Any = SimpleNamespace(num_key_value_groups=HEADS // KEYS, training=True)
    mask = attention_mask(torch.zeros(BATCH, LENGTH), torch.float32)

    query, key, value = given
    found, _ = flash_attention(module, query, key, value, None, scaling=SIZE**-0.5)
    expected, _ = eager_attention_forward(module, query, key, value, mask, scaling=SIZE**-0.5)

    assert torch.allclose(found, expected, atol=1e-5)
    for mine, theirs in zip(
        torch.autograd.grad(found, given, gradient),
        torch.autograd.grad(expected, given, gradient),
        strict=True,
    ):
        assert torch.allclose(mine, theirs, atol=1e-4)
