"""Stand-ins for the flash-attention kernels of Neuron's compiler, of the same shapes.

NxD's own function around them (``kernels/flash_attn.py``) is the real one. For counted graphs
``replace`` installs near-free operations with meaningless results; the products within the kernels
are recorded and added for every caller alike.
"""

from __future__ import annotations

import json
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

_FORWARD_PRODUCTS, _BACKWARD_PRODUCTS = 2, 5
"""Of a sequence with itself: scores and their sum of values; the scores again, and four more."""
_PARTITIONS = 128
"""Rows that the kernel has side by side: the statistics of the softmax are laid out by them."""
_CALLS = "kernels.json"
_FOUND: Counter[str] = Counter()


def replace() -> None:
    """Make the kernels callable here."""
    place: Any = import_module("neuronxcc.nki.kernels")
    attention: Any = import_module("neuronxcc.nki.kernels.attention")
    attention.FlashConfig = lambda **settings: settings
    place.flash_fwd, place.flash_attn_bwd = _Kernel(_forward), _Kernel(_backward)


def write_calls(folder: Path) -> None:
    """Write the recorded kernel calls."""
    (folder / _CALLS).write_text(json.dumps(_FOUND))


def flops_within(folder: Path) -> int:
    """Return the matrix-product FLOPs of a graph's kernels."""
    return int(json.loads((folder / _CALLS).read_text()).get("flops", 0))


class _Kernel:
    """Kernel called like Neuron's: with its grid, then with tensors."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __getitem__(self, grid: tuple[int, int]) -> Any:
        return self._function


def _note(query: Any, products: int) -> None:
    batch, heads, size, length = query.shape
    # Half of the pairs: attention is causal.
    _FOUND["flops"] += products * 2 * batch * heads * length * length * size // 2
    _FOUND["calls"] += 1


def _forward(query: Any, key: Any, value: Any, seed: Any, **settings: Any) -> tuple[Any, Any]:
    """Tensors are ``[batch, heads, head, sequence]``; the result has the last two swapped."""
    _note(query, _FORWARD_PRODUCTS)
    if not (settings["config"] or {}).get("should_transpose_v"):
        value = value.transpose(2, 3)
    batch, heads, _, length = query.shape
    statistics = (query[:, :, 0] + key[:, :, 0]).float()
    shape = (batch, heads, _PARTITIONS, length // _PARTITIONS)
    return (query + key + value).transpose(2, 3), statistics.view(shape)


def _backward(
    query: Any, key: Any, value: Any, result: Any, gradient: Any, statistics: Any, seed: Any,
    **settings: Any,
) -> tuple[Any, Any, Any]:  # fmt: skip
    _note(query, _BACKWARD_PRODUCTS)
    batch, heads, _, length = query.shape
    both = gradient + result * statistics.view(batch, heads, 1, length).to(result.dtype)
    return both * key, both * query, both + value
