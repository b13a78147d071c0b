"""Stand-ins for the flash-attention kernels of Neuron's compiler, of the same shapes.

NxD's own function around them (``kernels/flash_attn.py``) is the real one. ``replace`` puts in
place what computes nothing of use in operations that cost next to nothing, for graphs that are
counted; the products within the kernels are noted, to be added alike to whatever calls them.
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
    """Let the kernels be called here."""
    place: Any = import_module("neuronxcc.nki.kernels")
    attention: Any = import_module("neuronxcc.nki.kernels.attention")
    attention.FlashConfig = lambda **settings: settings
    place.flash_fwd, place.flash_attn_bwd = _Kernel(_forward), _Kernel(_backward)


def write_calls(folder: Path) -> None:
    """Leave what the kernels have been asked for."""
    (folder / _CALLS).write_text(json.dumps(_FOUND))


def flops_within(folder: Path) -> int:
    """Of the matrix products that the kernels of a graph make."""
    return int(json.loads((folder / _CALLS).read_text()).get("flops", 0))


class _Kernel:
    """Called as one of Neuron's: with the grid that it runs on, then with tensors."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __getitem__(self, grid: tuple[int, int]) -> Any:
        return self._function


def _note(query: Any, products: int) -> None:
    batch, heads, size, length = query.shape
    # Half of the pairs: nothing looks ahead.
    _FOUND["flops"] += products * 2 * batch * heads * length * length * size // 2
    _FOUND["calls"] += 1


def _forward(query: Any, key: Any, value: Any, seed: Any, **settings: Any) -> tuple[Any, Any]:
    """Tensors are ``[batch, heads, head, sequence]``; the result has the last two exchanged."""
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
