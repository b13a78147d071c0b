"""Read a checkpoint's tensors, and recover the first step's gradients from them.

After the first step, AdamW's first moment is ``1 - beta1`` times the gradient, clipped and averaged
over data-parallel ranks. For any topology a checkpoint contains it in full, by parameter name, so
the comparison covers tensor parallelism, data parallelism, optimizer sharding, clipping and the
checkpoint's layout. Without moments (plain gradient descent) the gradient follows from the weights.
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
from training.checkpoint.dcp import METADATA, Reader
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

    Raises ``CheckpointDamaged`` for corrupt data, ``CheckpointException`` for missing parts.
    """
    reader = Reader(objects.at(info.name), info.files)
    metadata = read_metadata(reader.fetch(METADATA), info.files)
    reader.use_metadata(metadata)
    tensors = {
        name: torch.full(stored.size, math.nan, dtype=stored.properties.dtype)
        for name, stored in metadata.state_dict_metadata.items()
        if isinstance(stored, TensorStorageMetadata)
    }
    state: dict[str, Any] = dict(tensors)
    with warnings.catch_warnings():
        # torch warns when a single process loads.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp_load(state, storage_reader=reader, no_dist=True)
    return tensors


def part(tensors: Mapping[str, torch.Tensor], prefix: str) -> Tensors:
    """Return the tensors below a prefix, with the prefix stripped."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStepComparison:
    """Comparison of a checkpoint after the first step with the reference."""

    num_parameters: int
    gradient: Distance
    """Distance of the clipped gradients."""
    update: Distance
    """Distance of the weights from the update that the optimizer derives from saved gradients."""
    norm: float
    """The expected norm before clipping."""

    def ok(self, tolerance: float) -> bool:
        """Return whether gradients are within ``tolerance`` and weights follow the update rule."""
        return self.gradient.value <= tolerance and self.update.value <= UPDATE

    def describe(self, tolerance: float) -> str:
        """Describe the worst gradient and the worst weight."""
        return (
            f"worst of {self.num_parameters} gradients: {self.gradient.name}, off by "
            f"{self.gradient.value:.1e} (tolerance {tolerance:.0e}); worst weight: "
            f"{self.update.name}, off by {self.update.value:.1e} learning rates (tolerance "
            f"{UPDATE:.0e})"
        )


def compare_first_step(
    reference: ReferenceModel, batch: Any, saved: Mapping[str, torch.Tensor]
) -> FirstStepComparison:
    """Compare a checkpoint with the first step of the untrained ``reference``."""
    config = reference.config
    initial = reference.weights
    gradients, _, norm = reference.gradients(batch)
    factor = clip_factor(norm, config.max_grad_norm)
    expected = {name: gradient * factor for name, gradient in gradients.items()}
    weights = part(saved, WEIGHTS)
    if config.optimizer is Optimizer.SGD:
        found = _sgd_gradients(initial, weights, config)
        update = Distance(name="none", value=0.0)
    else:
        found = {name: moment / (1 - config.beta1) for name, moment in part(saved, FIRST).items()}
        update = _update(initial, weights, saved, config)
    return FirstStepComparison(
        num_parameters=len(expected),
        gradient=distance(found, expected),
        update=update,
        norm=norm,
    )


def _sgd_gradients(initial: Tensors, weights: Tensors, config: TrainConfig) -> Tensors:
    """Recover the gradients of plain gradient descent from the weights."""
    learning_rate = config.learning_rate_at(1)
    return {
        name: (start - weights[name]) / learning_rate
        for name, start in initial.items()
        if name in weights
    }


def _update(
    initial: Tensors, weights: Tensors, saved: Mapping[str, torch.Tensor], config: TrainConfig
) -> Distance:
    """Return the largest distance of a weight from AdamW's update rule, in learning rates.

    Uses the saved moments, not the reference's: a near-zero gradient of the other sign, which the
    gradients' tolerance allows, would move a weight by two learning rates. Master weights start in
    fp32, possibly rounded to bf16.
    """
    learning_rate = config.learning_rate_at(1)
    first, second = part(saved, FIRST), part(saved, SECOND)
    worst = Distance(name="", value=-1.0)
    for name, start in initial.items():
        value = math.inf
        if name in weights and name in first and name in second:
            gradient = first[name] / (1 - config.beta1)
            scale = (second[name] / (1 - config.beta2)).sqrt()
            decay = config.weight_decay if start.dim() > 1 else 0.0
            step = learning_rate * gradient / (scale + config.adam_eps)
            candidates = (start, start.to(torch.bfloat16).float())
            updated = [master * (1 - learning_rate * decay) - step for master in candidates]
            error = min(float((weights[name] - one).abs().max()) for one in updated) / learning_rate
            # The second moment is from the same gradient.
            error = max(error, distance({name: scale}, {name: gradient.abs()}).value)
            value = math.inf if math.isnan(error) else error
        if value > worst.value:
            worst = Distance(name=name, value=value)
    return worst
