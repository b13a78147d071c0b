# src/neuronx_distributed/trainer/trainer.py, v2.28.0.
from collections.abc import Callable, Iterable
from typing import Any

import torch

def neuronx_distributed_config(
    tensor_parallel_size: int = ...,
    pipeline_parallel_size: int = ...,
    expert_parallel_size: int = ...,
    context_parallel_size: int = ...,
    pipeline_config: dict[str, Any] | None = ...,
    optimizer_config: dict[str, Any] | None = ...,
    activation_checkpoint_config: Any = ...,
    pad_model: bool = ...,
    sequence_parallel: bool = ...,
    model_init_config: dict[str, Any] | None = ...,
    lora_config: Any = ...,
    mixed_precision_config: dict[str, Any] | None = ...,
    sequential_move_factor: int = ...,
    lnc_size: int = ...,
) -> dict[str, Any]: ...
def initialize_parallel_model(
    nxd_config: dict[str, Any],
    model_fn: Callable[..., torch.nn.Module],
    include_buffers: bool = ...,
    *model_args: Any,
    **model_kwargs: Any,
) -> torch.nn.Module: ...
def initialize_parallel_optimizer(
    nxd_config: dict[str, Any],
    optimizer_class: type[torch.optim.Optimizer],
    parameters: Iterable[Any],
    **defaults: Any,
) -> Any: ...
