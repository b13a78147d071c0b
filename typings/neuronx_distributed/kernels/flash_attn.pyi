# src/neuronx_distributed/kernels/flash_attn.py, v2.28.0.
import torch

def nki_flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lnc: int = ...,
    dropout_p: float = ...,
    softmax_scale: float | None = ...,
    causal: bool = ...,
    mixed_precision: bool = ...,
    seed: torch.Tensor | None = ...,
    hardware_type: str | None = ...,
    transpose_nki_inputs: bool = ...,
) -> torch.Tensor: ...
