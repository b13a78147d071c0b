"""Hugging Face's decoders with the modules of the tensor-parallel plan replaced by NxD's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.modeling_utils import PreTrainedModel

from training.backends.base import Batch, WeightPart
from training.models.llama.data import model_inputs
from training.models.llama.head_norm import share_head_norms
from training.models.llama.huggingface import (
    TIED,
    llama_config,
    meta_model,
    restore_buffers,
    tie,
)
from training.models.llama.huggingface import initial_part as initial_part_of
from training.models.llama.parallel import (
    Split,
    split_dimension,
    split_modules,
    tensor_parallel_plan,
)

if TYPE_CHECKING:
    from training.core.config import TrainConfig

_META = torch.device("meta")
_HOST = torch.device("cpu")


def parallel_module(module: nn.Module, how: Split) -> nn.Module:
    """Build NxD's counterpart of a module, in bf16 on the meta device."""
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
    # The logits stay split too, as parallel_cross_entropy expects.
    return ColumnParallelLinear(
        module.in_features,
        module.out_features,
        bias=False,
        gather_output=False,
        dtype=torch.bfloat16,
        device=_META,
        # The default, fp32, loses the sum of the input's gradient over the ranks of a model: if
        # the dtype differs from the activations', NxD sums a converted copy and drops it (0.17.0
        # and 0.18.0, parallel_layers/layers_utils.py, _linear_autograd_bwd_grad_reduce).
        reduce_dtype=torch.bfloat16,
    )


class NxdLlama:
    """See ``NxdNetwork``: one rank's part, created without memory and then filled weight by weight.

    No worker ever holds more than its own bf16 part (1.6 GiB of Llama-2-7B at a tensor-parallel
    degree of 8) and one whole matrix in fp32 (0.5 GiB): 70 GiB for the 32 workers of a node,
    instead of 800 for 32 full copies.
    """

    def __init__(
        self,
        config: TrainConfig,
        initial_part: Callable[[WeightPart], torch.Tensor] | None = None,
    ) -> None:
        self._config = config
        self._initial_part = initial_part or partial(initial_part_of, seed=config.seed)
        self._degree = config.plan.tensor_parallel
        self._names: dict[nn.Module, str] = {}
        self._whole: dict[str, torch.Size] = {}
        self._splits: dict[str, Split] = {}

    def model(self) -> PreTrainedModel:
        """Build the model on the meta device: NxD's ``model_fn``."""
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
        # NxD keeps shared weights shared as it fills and moves them (utils/model_utils.py,
        # preserve_shared_weights).
        tie(model)
        if self._degree > 1:
            share_head_norms(model, _sum_over_ranks)
        restore_buffers(model, _HOST)
        self._names = {module: name for name, module in model.named_modules()}
        return model

    def fill(self, module: nn.Module, device: torch.device) -> None:
        """Initialize a module's own parameters: NxD's ``param_init_fn``."""
        for leaf, parameter in module.named_parameters(recurse=False):
            name = f"{self._names[module]}.{leaf}"
            if self._is_shared(name):
                continue
            with torch.no_grad():
                parameter.copy_(self._initial_part(self._piece(name, parameter.size())))

    def pieces(self) -> dict[torch.Tensor, WeightPart]:
        """Map the model's current parameters to this rank's parts."""
        # By module, because NxD replaces parameters and wraps modules, which changes names.
        return {
            parameter: self._piece(f"{name}.{leaf}", parameter.size())
            for module, name in self._names.items()
            for leaf, parameter in module.named_parameters(recurse=False)
            if not self._is_shared(f"{name}.{leaf}")
        }

    def inputs(self, batch: Batch) -> tuple[dict[str, Any], torch.Tensor]:
        """Turn a micro-batch on the device into the model's keyword arguments and labels."""
        return model_inputs(batch, torch.bfloat16)

    def _is_shared(self, name: str) -> bool:
        """Tell whether a parameter is another name of the input embedding."""
        return name == TIED and name not in self._whole

    def _piece(self, name: str, size: torch.Size) -> WeightPart:
        offsets = [0] * len(size)
        if name in self._splits:
            dimension = split_dimension(self._splits[name])
            offsets[dimension] = _tensor_rank() * size[dimension]
        return WeightPart(name, self._whole[name], size, tuple(offsets))


def _sum_over_ranks(weight: torch.Tensor) -> torch.Tensor:
    """Return ``weight``; its gradient is summed over the ranks of a model."""
    from neuronx_distributed.parallel_layers import mappings

    found: torch.Tensor = mappings.copy_to_tensor_model_parallel_region(weight)
    return found


def _tensor_rank() -> int:
    """Index of this rank's part of the model.

    Neighbours do not always share a model: at degree 4 on trn1 ranks 0, 8, 16 and 24 do
    (parallel_state.py, initialize_model_parallel).
    """
    from neuronx_distributed.parallel_layers import parallel_state

    return parallel_state.get_tensor_model_parallel_rank()
