"""How checkpoints fail."""

from __future__ import annotations


class CheckpointDamaged(Exception):
    """A file of a complete checkpoint is missing, short, or has other bytes than were written."""


class CheckpointUnusable(ValueError):
    """A run has checkpoints and none of them can be loaded, or not into this model."""


class SaveFailed(Exception):
    """A checkpoint could not be written; training goes on without it."""
