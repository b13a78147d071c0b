"""Checkpoints: complete only with their marker, verified when loaded, independent of topology."""

from __future__ import annotations

from training.checkpoint.checkpoints import Checkpoints
from training.checkpoint.errors import CheckpointDamaged, CheckpointUnusable, SaveFailed
from training.checkpoint.marker import CheckpointInfo
from training.checkpoint.pending import Pending

__all__ = [
    "CheckpointDamaged",
    "CheckpointInfo",
    "CheckpointUnusable",
    "Checkpoints",
    "Pending",
    "SaveFailed",
]
