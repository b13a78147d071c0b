"""The tensors of a checkpoint, and the first step's gradients recovered from the one after it.

AdamW's first moment is then ``1 - beta1`` times the gradient, clipped and averaged over
data-parallel ranks. A checkpoint has it whole, by parameter name, whatever the topology, so the
comparison covers tensor parallelism, data parallelism, the optimizer's shards, clipping and the
checkpoint's layout. Without moments (plain descent) the weights reveal the gradient.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from training.checkpoint import CheckpointInfo
from training.checkpoint.dcp import Reader
from training.checkpoint.metadata import read_metadata
from training.core.config import Optimizer
from training.diagnostics.verify.reference import (
    Distance,
    ReferenceModel,
    Tensors,
    clip_factor,
    distance,
)
from training.diagnostics.verify.settings import UPDATE
from training.storage import Objects

if TYPE_CHECKING:
    from training.core.config import TrainConfig

WEIGHTS = "model."
FIRST, SECOND = "optimizer.exp_avg.", "optimizer.exp_avg_sq."
"""Prefixes of parameter names: fp32 weights and AdamW's moments."""


def read_whole(objects: Objects, info: CheckpointInfo) -> Tensors:
    """Read every tensor of a checkpoint in ``objects``, by full name, in a single process.

    Raises ``CheckpointDamaged`` for wrong bytes, ``CheckpointException`` for missing parts.
    """
    reader = Reader(objects.at(info.name), info.files)
    metadata = read_metadata(reader.fetch_metadata(), info.files)
    reader.use_metadata(metadata)
    found = {
        name: torch.full(stored.size, math.nan, dtype=stored.properties.dtype)
        for name, stored in metadata.state_dict_metadata.items()
        if isinstance(stored, TensorStorageMetadata)
    }
    state: dict[str, Any] = dict(found)
    with warnings.catch_warnings():
        # torch warns that one process reads alone.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp_load(state, storage_reader=reader, no_dist=True)
    return found


def part(tensors: Mapping[str, torch.Tensor], prefix: str) -> Tensors:
    """Select the tensors below a prefix, and strip it."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStep:
    """The first step compared with the expected one."""

    num_parameters: int
    gradient: Distance
    """Distance of the clipped gradients."""
    update: Distance
    """Distance of the weights from the optimizer's rule applied to the saved gradients."""
    norm: float
    """The expected norm before clipping."""

    def ok(self, tolerance: float) -> bool:
        """Tell if gradients are within ``tolerance`` and weights follow the rule."""
        return self.gradient.value <= tolerance and self.update.value <= UPDATE

    def describe(self, tolerance: float) -> str:
        """Name the worst parameter of each."""
        return (
            f"worst of {self.num_parameters} gradients is {self.gradient.name}, off by "
            f"{self.gradient.value:.1e} of {tolerance:.0e}; worst weight {self.update.name}, off "
            f"by {self.update.value:.1e} of {UPDATE:.0e} learning rates"
        )


def examine(reference: ReferenceModel, batch: Any, saved: Mapping[str, torch.Tensor]) -> FirstStep:
    """Compare a checkpoint with the first step of ``reference``, still untrained."""
    config = reference.config
    begin = reference.weights
    gradients, _, norm = reference.gradients(batch)
    factor = clip_factor(norm, config.max_grad_norm)
    expected = {name: gradient * factor for name, gradient in gradients.items()}
    weights = part(saved, WEIGHTS)
    if config.optimizer is Optimizer.SGD:
        found = _descended(begin, weights, config)
        update = Distance(name="none", value=0.0)
    else:
        found = {name: moment / (1 - config.beta1) for name, moment in part(saved, FIRST).items()}
        update = _update(begin, weights, saved, config)
    return FirstStep(
        num_parameters=len(expected),
        gradient=distance(found, expected),
        update=update,
        norm=norm,
    )


def _descended(begin: Tensors, weights: Tensors, config: TrainConfig) -> Tensors:
    """Recover the gradients that plain descent followed."""
    rate = config.learning_rate_at(1)
    return {name: (begin[name] - weights[name]) / rate for name in begin if name in weights}


def _update(
    begin: Tensors, weights: Tensors, saved: Mapping[str, torch.Tensor], config: TrainConfig
) -> Distance:
    """Distance of the worst weight from AdamW's rule, in learning rates.

    The rule is applied to the saved moments: a gradient near 0 with a different sign would move a
    weight by two learning rates, which the gradients' tolerance covers. Master weights begin in
    fp32, or rounded to bf16.
    """
    rate = config.learning_rate_at(1)
    first, second = part(saved, FIRST), part(saved, SECOND)
    worst = Distance(name="", value=-1.0)
    for name, initial in begin.items():
        value = float("inf")
        if name in weights and name in first and name in second:
            slope = first[name] / (1 - config.beta1)
            size = (second[name] / (1 - config.beta2)).sqrt()
            decay = config.weight_decay if initial.dim() > 1 else 0.0
            starts = (initial, initial.to(torch.bfloat16).float())
            moved = [
                start * (1 - rate * decay) - rate * slope / (size + config.adam_eps)
                for start in starts
            ]
            off = min(float((weights[name] - one).abs().max()) / rate for one in moved)
            # The second moment comes from the same gradient.
            off = max(off, distance({name: size}, {name: slope.abs()}).value)
            value = off if off == off else float("inf")
        if value > worst.value:
            worst = Distance(name=name, value=value)
    return worst
