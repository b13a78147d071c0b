"""What a checkpoint holds, whole, and how far that is from what it should be."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from training.checkpoint import CheckpointInfo
from training.checkpoint.dcp import Reader
from training.checks.verify.reference import norm_of
from training.storage import Objects

WEIGHTS = "model."
FIRST, SECOND = "optimizer.exp_avg.", "optimizer.exp_avg_sq."
"""Prefixes of the names of parameters: fp32 weights and AdamW's moments."""

Tensors = dict[str, torch.Tensor]


def read_whole(objects: Objects, info: CheckpointInfo) -> Tensors:
    """Every tensor of a checkpoint in ``objects``, by its full name; one process reads alone.

    ``CheckpointDamaged`` where bytes are wrong, ``CheckpointException`` where parts are missing.
    """
    reader = Reader(objects.at(info.name), info.files)
    reader.use_metadata(reader.fetch_metadata())
    known = reader.read_metadata().state_dict_metadata
    found = {
        name: torch.full(stored.size, math.nan, dtype=stored.properties.dtype)
        for name, stored in known.items()
        if isinstance(stored, TensorStorageMetadata)
    }
    state: dict[str, Any] = dict(found)
    with warnings.catch_warnings():
        # One process reads alone, and torch warns that it does.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp_load(state, storage_reader=reader, no_dist=True)
    return found


def part(tensors: Mapping[str, torch.Tensor], prefix: str) -> Tensors:
    """Those below a prefix, without it."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """Of the worst of all parameters."""

    name: str
    value: float


def distance(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> Distance:
    """The worst of all parameters; infinite for one that is missing, too many or of another size.

    A parameter's distance is the norm of the difference by the norm of what is expected, which
    counts as no less than a thousandth of all parameters' together: the gradient of a bias that
    changes nothing, such as that of BERT's keys, is nothing but rounding.
    """
    least = 1e-3 * norm_of(expected)
    worst = Distance(name="", value=-1.0)
    for name in sorted({*found, *expected}):
        value = math.inf
        if name in found and name in expected and found[name].shape == expected[name].shape:
            wanted = expected[name].double()
            off = float((found[name].double() - wanted).norm()) / max(float(wanted.norm()), least)
            value = off if math.isfinite(off) else math.inf
        if value > worst.value:
            worst = Distance(name=name, value=value)
    return worst
