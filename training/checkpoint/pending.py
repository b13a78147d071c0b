"""A save that is under way."""

from __future__ import annotations

import threading

from training.checkpoint.errors import SaveFailed
from training.checkpoint.marker import CheckpointInfo


class Pending:
    """Ends once, complete or failed; another thread may wait for that."""

    def __init__(self, *, step: int) -> None:
        self.step = step
        self.stall_s = 0.0
        """How long training stood still for it."""
        self._ended = threading.Event()
        self._info: CheckpointInfo | None = None
        self._error: SaveFailed | None = None

    def complete(self, info: CheckpointInfo) -> None:
        """It is saved."""
        self._info = info
        self._ended.set()

    def fail(self, error: SaveFailed) -> None:
        """It is not."""
        self._error = error
        self._ended.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it has ended, within ``timeout_s`` seconds if given."""
        return self._ended.wait(timeout_s)

    @property
    def ended(self) -> bool:
        """Complete or failed."""
        return self._ended.is_set()

    @property
    def info(self) -> CheckpointInfo | None:
        """The checkpoint, once complete."""
        return self._info

    @property
    def error(self) -> SaveFailed | None:
        """Why it has failed, once it has."""
        return self._error
