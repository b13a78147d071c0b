# src/neuronx_distributed/parallel_layers/layers.py and loss_functions.py, v2.28.0.
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import ProcessGroup

from . import mappings as mappings
from . import parallel_state as parallel_state

class ParallelEmbedding(torch.nn.Module):
    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = ...,
        max_norm: float | None = ...,
        norm_type: float = ...,
        scale_grad_by_freq: bool = ...,
        sparse: bool = ...,
        init_method: Callable[[Any], Any] = ...,
        device: torch.device | None = ...,
        dtype: torch.dtype = ...,
        shard_across_embedding: bool = ...,
        pad: bool = ...,
        sequence_parallel_enabled: bool = ...,
        tensor_model_parallel_group: ProcessGroup | None = ...,
        use_spmd_rank: bool = ...,
        sequence_dimension: int | None = ...,
        tile_cc: bool = ...,
        rank_ordering: list[int] | None = ...,
        collect_output: bool = ...,
    ) -> None: ...

class ColumnParallelLinear(torch.nn.Module):
    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = ...,
        gather_output: bool = ...,
        dtype: torch.dtype = ...,
        device: torch.device | None = ...,
        stride: int = ...,
        init_method: Callable[[Any], torch.Tensor] | None = ...,
        sequence_parallel_enabled: bool = ...,
        sequence_dimension: int | None = ...,
        keep_master_weight: bool = ...,
        skip_bias_add: bool = ...,
        pad: bool = ...,
        pad_alignment_size_per_rank: int = ...,
        keep_padded_output: bool = ...,
        tensor_model_parallel_group: ProcessGroup | None = ...,
        reduce_dtype: torch.dtype = ...,
        rank_ordering: list[int] | None = ...,
    ) -> None: ...

class RowParallelLinear(torch.nn.Module):
    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = ...,
        input_is_parallel: bool = ...,
        dtype: torch.dtype = ...,
        device: torch.device | None = ...,
        stride: int = ...,
        init_method: Callable[..., Any] | None = ...,
        sequence_parallel_enabled: bool = ...,
        sequence_dimension: int | None = ...,
        keep_master_weight: bool = ...,
        skip_bias_add: bool = ...,
        pad: bool = ...,
        reduce_output: bool = ...,
        tensor_model_parallel_group: ProcessGroup | None = ...,
        reduce_dtype: torch.dtype = ...,
        tile_cc: bool = ...,
        rank_ordering: list[int] | None = ...,
    ) -> None: ...

def parallel_cross_entropy(
    vocab_parallel_logits: torch.Tensor, target: torch.Tensor, label_smoothing: float = ...
) -> torch.Tensor: ...
