"""Checkpoints: committed by a marker, verified on load, independent of topology."""

from training.checkpoint.checkpoints import Checkpoints
from training.checkpoint.marker import CheckpointDamaged, CheckpointInfo, CheckpointUnusable

__all__ = ["CheckpointDamaged", "CheckpointInfo", "CheckpointUnusable", "Checkpoints"]
