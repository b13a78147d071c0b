# torch_xla/core/xla_model.py, 2.9.
from collections.abc import Sequence
from typing import TypeVar

import torch

REDUCE_SUM: str
REDUCE_MAX: str

_T = TypeVar("_T", torch.Tensor, list[torch.Tensor])

def xla_device(n: int | None = ..., devkind: str | None = ...) -> torch.device: ...
def all_reduce(
    reduce_type: str,
    inputs: _T,
    scale: float = ...,
    groups: Sequence[Sequence[int]] | None = ...,
    pin_layout: bool = ...,
) -> _T: ...
def all_reduce_bucketized_gradients(
    gradients: list[torch.Tensor],
    scale: float,
    groups: list[list[int]] | None,
    pin_layout: bool,
    bucket_cap_mb: int = ...,
) -> None: ...
def set_rng_state(seed: int, device: str | None = ...) -> None: ...
def mark_step(wait: bool = ..., reset_scope: bool = ...) -> None: ...
def wait_device_ops(devices: list[str] = ...) -> None: ...
