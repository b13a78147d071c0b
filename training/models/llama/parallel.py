"""The tensor-parallel plan of a decoder: one table, executed by DTensor or by NxD."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from training.models.llama.head_norm import share_head_norms, sum_over
from training.models.llama.huggingface import tie

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from transformers.configuration_utils import PretrainedConfig
    from transformers.modeling_utils import PreTrainedModel


class Split(StrEnum):
    """Ways in which the ranks of one model share a module."""

    COLWISE = "colwise"
    """Each rank has a part of the outputs; the result stays split."""
    ROWWISE = "rowwise"
    """Each rank has a part of the inputs; results are summed."""
    VOCAB_IN = "vocab-in"
    """Input embedding: each rank has a part of the vocabulary; results are summed."""
    VOCAB_OUT = "vocab-out"
    """Output projection: each rank has a part of the vocabulary; the loss is computed on parts."""


def tensor_parallel_plan(config: PretrainedConfig) -> dict[str, Split]:
    """Map module names, with ``*`` for a layer's number, to their split.

    Layers follow Hugging Face's configuration, which leaves both ends of the model whole, and
    norms.
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


def _style(split: Split) -> ParallelStyle:
    match split:
        case Split.COLWISE:
            return ColwiseParallel()
        case Split.ROWWISE:
            return RowwiseParallel()
        case Split.VOCAB_IN:
            return RowwiseParallel(input_layouts=Replicate())
        case Split.VOCAB_OUT:
            return ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)


def parallelize(model: PreTrainedModel, mesh: DeviceMesh) -> None:
    """Split a model on the meta device over the ranks of ``mesh``, by DTensor."""
    plan = tensor_parallel_plan(model.config)
    styles = {name: _style(how) for name, _, how in split_modules(model, plan)}
    # Nothing is sent between ranks: on the meta device there are no values.
    parallelize_module(model, mesh, styles, src_data_rank=None)
    # Both ends of the model are split by vocabulary, each into a weight of its own.
    tie(model)
    share_head_norms(model, sum_over(mesh.get_group()))


def split_dimension(how: Split) -> int:
    """Dimension in which a weight, ``[outputs, inputs]`` or ``[vocabulary, hidden]``, is split."""
    return 1 if how is Split.ROWWISE else 0


def part_of(whole: torch.Tensor, how: Split, *, index: int, parts: int) -> torch.Tensor:
    """Select the ``index``-th of ``parts`` equal parts of a weight."""
    return whole.chunk(parts, dim=split_dimension(how))[index]
