"""A decoder's tensor-parallel plan: one table, applied with DTensor or NxD."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from training.models.llama.head_loss import project_late
from training.models.llama.head_norm import share_head_norms, sum_over
from training.models.llama.huggingface import tie

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from transformers.configuration_utils import PretrainedConfig
    from transformers.modeling_utils import PreTrainedModel


class Split(StrEnum):
    """Ways in which a model's ranks share a module."""

    COLWISE = "colwise"
    """Outputs are sharded; the result stays sharded."""
    ROWWISE = "rowwise"
    """Inputs are sharded; results are summed."""
    VOCAB_IN = "vocab-in"
    """Input embedding, sharded by vocabulary; results are summed."""
    VOCAB_OUT = "vocab-out"
    """Output projection, sharded by vocabulary; the loss is computed on shards."""


def tensor_parallel_plan(config: PretrainedConfig) -> dict[str, Split]:
    """Map module names, with ``*`` for the layer number, to their split.

    Layers follow Hugging Face's plan, which leaves embeddings, output projection and norms whole.
    """
    assert config.base_model_tp_plan is not None, config.model_type
    layers = {f"model.{name}": Split(how) for name, how in config.base_model_tp_plan.items()}
    return {"model.embed_tokens": Split.VOCAB_IN, **layers, "lm_head": Split.VOCAB_OUT}


def split_modules(
    model: PreTrainedModel, plan: dict[str, Split]
) -> Iterator[tuple[str, nn.Module, Split]]:
    """Yield every module named by ``plan``, with its full name."""
    patterns = [
        (re.compile(re.escape(name).replace(r"\*", r"\d+")), how) for name, how in plan.items()
    ]
    for name, module in model.named_modules():
        for pattern, how in patterns:
            if pattern.fullmatch(name):
                yield name, module, how


class Rowwise(RowwiseParallel):
    """A vocabulary-sharded embedding or input-sharded projection with a synchronous all-reduce.

    torch's own style returns an asynchronous result. Compiled layers do not accept one (2.13:
    ``'Tensor' object has no attribute '_local_tensor'``). Recomputation, which stops at the last
    tensor it needs, would never wait for it, and torch would hold it until the process ends.
    """

    @staticmethod
    def _prepare_output_fn(  # type: ignore[no-untyped-def]
        output_layouts, use_local_output, mod, outputs, device_mesh
    ) -> torch.Tensor:
        whole: DTensor = outputs.redistribute(placements=output_layouts)
        return whole.to_local()


class KeyValueHeads(ColwiseParallel):
    """Keys or values with fewer heads than ranks: each rank uses the head shared by its queries.

    The weight is still sharded evenly, without copies, in checkpoints too. Outputs are gathered,
    and the backward pass sums the gradients of ranks that share a head.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__(output_layouts=Replicate())
        self._num_heads = num_heads

    @staticmethod
    def _prepare_output_fn(  # type: ignore[no-untyped-def]
        output_layouts, use_local_output, mod, outputs, device_mesh
    ) -> torch.Tensor:
        # torch's own style would return an asynchronous result.
        whole: DTensor = outputs.redistribute(placements=output_layouts)
        return whole.to_local(grad_placements=[Partial()])

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        split: nn.Module = super()._apply(module, device_mesh)
        head = device_mesh.get_local_rank() * self._num_heads // device_mesh.size()

        def own_head(module: nn.Module, inputs: Any, whole: torch.Tensor) -> torch.Tensor:
            return whole.chunk(self._num_heads, dim=-1)[head].contiguous()

        split.register_forward_hook(own_head)
        return split


def output_sharding_style(name: str, config: PretrainedConfig, mesh: DeviceMesh) -> ParallelStyle:
    """Return the parallel style that shards a projection's outputs over the ranks of ``mesh``."""
    if name.endswith(("k_proj", "v_proj")) and config.num_key_value_heads < mesh.size():
        return KeyValueHeads(config.num_key_value_heads)
    return ColwiseParallel()


def parallelize(
    model: PreTrainedModel, mesh: DeviceMesh, *, sequence_parallel: bool = False
) -> None:
    """Shard a model on the meta device over the ranks of ``mesh``, using DTensor.

    With ``sequence_parallel``, norms and residual sums process part of each sequence. Projections
    of the same input share one DTensor, so its gradient is reduced only once.
    """
    part, whole = Shard(1) if sequence_parallel else Replicate(), Replicate()
    config = model.config
    styles: dict[Split, ParallelStyle] = {
        Split.ROWWISE: Rowwise(output_layouts=part),
        Split.VOCAB_IN: Rowwise(input_layouts=whole, output_layouts=part),
        # The loss computes the projection.
        Split.VOCAB_OUT: ColwiseParallel(
            input_layouts=part, output_layouts=whole, use_local_output=False
        ),
    }
    plan = {
        name: styles.get(how) or output_sharding_style(name, config, mesh)
        for name, how in tensor_parallel_plan(config).items()
    }
    plan["model.layers.*.self_attn"] = PrepareModuleInput(
        input_kwarg_layouts={"hidden_states": part},
        desired_input_kwarg_layouts={"hidden_states": whole},
    )
    plan["model.layers.*.mlp"] = PrepareModuleInput(input_layouts=part, desired_input_layouts=whole)
    if sequence_parallel:
        plan["model.layers.*.*_layernorm"] = SequenceParallel()
        plan["model.norm"] = SequenceParallel(use_local_output=True)
    project_late(model)
    # No communication, since there are no values on the meta device.
    parallelize_module(model, mesh, plan, src_data_rank=None)
    # Sharding has separated the weights of embedding and output projection.
    tie(model)
    share_head_norms(model, sum_over(mesh))
    if config.num_key_value_heads < mesh.size():
        for layer in model.model.layers:
            # A rank has one key-value head for all of its queries.
            layer.self_attn.num_key_value_groups = config.num_attention_heads // mesh.size()


def split_dimension(how: Split) -> int:
    """Return the dimension in which a weight is split: 0 for outputs, 1 for inputs."""
    return 1 if how is Split.ROWWISE else 0
