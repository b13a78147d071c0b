"""Hugging Face's decoders, sharded over ranks with NxD's modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.modeling_utils import PreTrainedModel

from training.backends.base import Batch, WeightPart
from training.models.llama.data import DOCUMENTS, TOKENS, attention_mask
from training.models.llama.head_norm import share_head_norms
from training.models.llama.huggingface import TIED, decoder_config, meta_model, restore_buffers, tie
from training.models.llama.nxd_attention import FLASH, register_flash
from training.models.llama.nxd_layers import AttentionCore, Gate, Projections, parallelize_layers
from training.models.llama.nxd_lora import AdapterWeight, attach
from training.models.llama.parallel import (
    Split,
    split_dimension,
    split_modules,
    tensor_parallel_plan,
)
from trainium_catalogue.parameters.layout import Recompute

if TYPE_CHECKING:
    from training.core.config import TrainConfig

_HOST = torch.device("cpu")
_NORM = "norm.weight"
_HEAD_NORMS = ("q_norm.weight", "k_norm.weight")


class NxdLlama:
    """A rank's part of a model as an ``NxdNetwork``, without storage until filled weight by weight.

    A worker never holds more than its own bf16 part (1.6 GiB of Llama-2-7B at a tensor-parallel
    degree of 8) and one whole matrix in fp32 (0.5 GiB). A node's 32 workers thus need 70 GiB,
    instead of 800 GiB for 32 full copies.
    """

    def __init__(
        self, config: TrainConfig, initial_part: Callable[[WeightPart], torch.Tensor]
    ) -> None:
        assert config.layout is not None, "a decoder's workload has all parameters of a layout"
        self._config, self._layout = config, config.layout
        self._initial_part = initial_part
        self._degree = config.plan.tensor_parallel
        self._names: dict[nn.Module, str] = {}
        self._fused: dict[str, tuple[str, ...]] = {}
        """Maps each parameter of ``Projections`` to its weights, from top to bottom."""
        self._whole: dict[str, torch.Size] = {}
        self._splits: dict[str, Split] = {}

    @property
    def sequence_parallel(self) -> bool:
        """See ``NxdNetwork``."""
        return self._layout.sequence_parallel

    @property
    def recomputed(self) -> Any:
        """See ``NxdNetwork``."""
        match self._layout.recompute:
            case Recompute.NOTHING:
                return None
            case Recompute.LAYERS:
                return "full"
            case Recompute.ATTENTION:
                # The kernel recomputes its scores itself.
                return [Gate] if self._layout.flash else [Gate, AttentionCore]

    def describe(self) -> str:
        """See ``NxdNetwork``."""
        return self._layout.describe()

    def model(self) -> PreTrainedModel:
        """Build the model on the meta device: NxD's ``model_fn``."""
        config = self._config
        if self._layout.flash:
            register_flash()
        # Eager attention computes the softmax in fp32, like AWS's own Llama.
        attention = FLASH if self._layout.flash else "eager"
        model = meta_model(
            decoder_config(config.shape, seq_len=config.plan.seq_len, attention=attention)
        )
        model.to(torch.bfloat16)
        self._whole = {name: parameter.size() for name, parameter in model.named_parameters()}
        self._splits = {
            f"{name}.weight": how
            for name, _, how in split_modules(model, tensor_parallel_plan(model.config))
        }
        parallelize_layers(model, self._layout)
        adapters: dict[str, AdapterWeight] = {}
        if config.plan.lora is not None:
            adapters = attach(model, config.plan.lora, self._layout, self._whole)
            self._whole |= {each.name: each.whole for each in adapters.values()}
            self._splits |= {e.name: e.split for e in adapters.values() if e.split is not None}
        # NxD preserves shared weights while filling and moving them (utils/model_utils.py,
        # preserve_shared_weights).
        tie(model)
        if self._degree > 1:
            share_head_norms(model, _sum_over_ranks)
        restore_buffers(model, _HOST)
        self._names = {module: name for name, module in model.named_modules()}
        self._fused = {
            f"{name}.{parameter}": tuple(f"{name.rpartition('.')[0]}.{each}" for each in held)
            for name, module in model.named_modules()
            if isinstance(module, Projections)
            for parameter, held in module.sources.items()
        }
        self._fused |= {parameter: (each.name,) for parameter, each in adapters.items()}
        for name, parameter in model.named_parameters():
            if name.endswith(_NORM) and not name.endswith(_HEAD_NORMS):
                # Each rank's gradient is only from its part of the sequences. NxD sums them before
                # the update (parallel_layers/grads.py, allreduce_sequence_parallel_gradients).
                marked: Any = parameter
                marked.sequence_parallel_enabled = self.sequence_parallel
        return model

    def fill(self, module: nn.Module, device: torch.device) -> None:
        """Initialize a module's own parameters: NxD's ``param_init_fn``."""
        for leaf, parameter in module.named_parameters(recurse=False):
            name = f"{self._names[module]}.{leaf}"
            if self._is_shared(name):
                continue
            value = torch.cat([self._initial_part(self._piece(key)) for key in self._sources(name)])
            with torch.no_grad():
                parameter.copy_(value)

    def pieces(self) -> dict[torch.Tensor, tuple[WeightPart, ...]]:
        """Map the current trainable parameters to this rank's weight parts, top to bottom."""
        # By module, because NxD replaces parameters, and wraps modules, which changes names.
        return {
            parameter: tuple(self._piece(weight) for weight in self._sources(f"{name}.{leaf}"))
            for module, name in self._names.items()
            for leaf, parameter in module.named_parameters(recurse=False)
            if parameter.requires_grad and not self._is_shared(f"{name}.{leaf}")
        }

    def inputs(self, batch: Batch) -> tuple[dict[str, Any], torch.Tensor]:
        """Convert a micro-batch on the device to the model's keyword arguments and labels."""
        tokens = batch if isinstance(batch, torch.Tensor) else batch[TOKENS]
        ids, labels = tokens[:, :-1], tokens[:, 1:]
        positions = torch.arange(ids.size(1), device=ids.device)[None]
        mask = None
        if not self._layout.flash:
            documents = positions * 0
            if not isinstance(batch, torch.Tensor):
                documents = batch.get(DOCUMENTS, documents)
            mask = attention_mask(documents, torch.bfloat16)
        return {
            "input_ids": ids,
            # Otherwise Hugging Face's model would derive positions, and the size of a mask, from
            # hidden states, whose first two dimensions may be transposed and sharded.
            "cache_position": positions[0],
            "position_ids": positions,
            "attention_mask": mask,
        }, labels.t().contiguous() if self.sequence_parallel else labels

    def _is_shared(self, name: str) -> bool:
        """Return whether a parameter is an alias of the input embedding."""
        return name == TIED and name not in self._whole

    def _sources(self, name: str) -> tuple[str, ...]:
        return self._fused.get(name, (name,))

    def _piece(self, name: str) -> WeightPart:
        whole = self._whole[name]
        size, offsets = list(whole), [0] * len(whole)
        if name in self._splits:
            dimension = split_dimension(self._splits[name])
            size[dimension] //= self._degree
            offsets[dimension] = _tensor_parallel_rank() * size[dimension]
        return WeightPart(name, whole, torch.Size(size), tuple(offsets))


def _sum_over_ranks(weight: torch.Tensor) -> torch.Tensor:
    """Return ``weight``; its gradient is summed over a model's ranks."""
    from neuronx_distributed.parallel_layers import mappings

    result: torch.Tensor = mappings.copy_to_tensor_model_parallel_region(weight)
    return result


def _tensor_parallel_rank() -> int:
    """Return the index of this rank's part of the model.

    Adjacent ranks do not always share a model: at degree 4 on trn1, ranks 0, 8, 16 and 24 do
    (parallel_state.py, initialize_model_parallel).
    """
    from neuronx_distributed.parallel_layers import parallel_state

    return parallel_state.get_tensor_model_parallel_rank()
