# src/neuronx_distributed/parallel_layers/mappings.py, v2.28.0.
import torch

def copy_to_tensor_model_parallel_region(input_: torch.Tensor) -> torch.Tensor: ...
