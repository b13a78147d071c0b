"""Hugging Face's Llama with neuronx_distributed's parallel modules in the plan's places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from training.models.llama.model import initial_weight, llama_config, meta_model, restore_buffers
from training.models.llama.parallel import (
    Split,
    part_of,
    split_dimension,
    split_modules,
    tensor_parallel_plan,
)

if TYPE_CHECKING:
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    from training.core.config import TrainConfig

_META = torch.device("meta")
_HOST = torch.device("cpu")


def parallel_module(module: nn.Module, how: Split) -> nn.Module:
    """NxD's counterpart of one module, in bf16 on the meta device."""
    from neuronx_distributed.parallel_layers import (
        ColumnParallelLinear,
        ParallelEmbedding,
        RowParallelLinear,
    )

    if how is Split.VOCAB_IN:
        assert isinstance(module, nn.Embedding)
        return ParallelEmbedding(
            module.num_embeddings, module.embedding_dim, device=_META, dtype=torch.bfloat16
        )
    assert isinstance(module, nn.Linear) and module.bias is None
    if how is Split.ROWWISE:
        return RowParallelLinear(
            module.in_features,
            module.out_features,
            bias=False,
            input_is_parallel=True,
            dtype=torch.bfloat16,
            device=_META,
        )
    # The logits stay split too: parallel_cross_entropy takes them so.
    return ColumnParallelLinear(
        module.in_features,
        module.out_features,
        bias=False,
        gather_output=False,
        dtype=torch.bfloat16,
        device=_META,
        # The default, fp32, loses the sum of the input's gradient over the ranks of a model: with
        # another dtype than the activations' NxD sums a converted copy and drops it (0.17.0 and
        # 0.18.0, parallel_layers/layers_utils.py, _linear_autograd_bwd_grad_reduce).
        reduce_dtype=torch.bfloat16,
    )


@dataclass(frozen=True, slots=True)
class Piece:
    """What a rank computes with of one weight."""

    name: str
    """Hugging Face's."""
    whole: torch.Size
    size: torch.Size
    offsets: tuple[int, ...]
    """Where it begins in the whole."""


class Builder:
    """Makes one rank's part of the model, first without memory and then weight by weight.

    No worker ever holds more than its own bf16 part (1.6 GiB of Llama-2-7B at a tensor-parallel
    degree of 8) and one whole matrix in fp32 (0.5 GiB): 70 GiB for the 32 workers of a node,
    where 32 full copies would be 800.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        self._degree = config.plan.tensor_parallel
        self._names: dict[nn.Module, str] = {}
        self._whole: dict[str, torch.Size] = {}
        self._splits: dict[str, Split] = {}

    def model(self) -> LlamaForCausalLM:
        """The model on the meta device: what NxD calls ``model_fn``."""
        config = self._config
        # Eager attention computes the softmax in fp32, as AWS's own Llama does.
        model = meta_model(
            llama_config(config.shape, seq_len=config.plan.seq_len, attention="eager")
        )
        model.to(torch.bfloat16)
        self._whole = {name: parameter.size() for name, parameter in model.named_parameters()}
        for name, module, how in list(split_modules(model, tensor_parallel_plan(model.config))):
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, parallel_module(module, how))
            self._splits[f"{name}.weight"] = how
        restore_buffers(model, _HOST)
        self._names = {module: name for name, module in model.named_modules()}
        return model

    def fill(self, module: nn.Module, device: torch.device) -> None:
        """Give a module's own parameters their values: what NxD calls ``param_init_fn``."""
        for leaf, parameter in module.named_parameters(recurse=False):
            name = f"{self._names[module]}.{leaf}"
            value = initial_weight(name, self._whole[name], seed=self._config.seed)
            if name in self._splits:
                value = part_of(value, self._splits[name], index=_tensor_rank(), parts=self._degree)
            with torch.no_grad():
                parameter.copy_(value)

    def pieces(self) -> dict[torch.Tensor, Piece]:
        """What this rank has of every parameter of the model, as it is now."""
        # By module: NxD replaces parameters, and wraps modules, which changes the model's names.
        return {
            parameter: self._piece(f"{name}.{leaf}", parameter.size())
            for module, name in self._names.items()
            for leaf, parameter in module.named_parameters(recurse=False)
        }

    def _piece(self, name: str, size: torch.Size) -> Piece:
        offsets = [0] * len(size)
        if name in self._splits:
            dimension = split_dimension(self._splits[name])
            offsets[dimension] = _tensor_rank() * size[dimension]
        return Piece(name, self._whole[name], size, tuple(offsets))


def _tensor_rank() -> int:
    """Which part of the model is this rank's.

    Neighbours are not always one model: at 4 on trn1 ranks 0, 8, 16 and 24 are
    (parallel_state.py, initialize_model_parallel).
    """
    from neuronx_distributed.parallel_layers import parallel_state

    return parallel_state.get_tensor_model_parallel_rank()
