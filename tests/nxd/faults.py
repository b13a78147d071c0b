"""Faults that a test asks a job's workers for, by their environment."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

ENV_HOLD = "NXD_TEST_HOLD"
"""``<step>:<file>``: the checkpoint of that step never becomes complete, and the file tells when
everything but its marker is there."""


def hold_a_commit(folders: Any) -> None:
    """What ``training.checkpoint.folders`` is changed by, as soon as it has been imported."""
    if ENV_HOLD not in os.environ:
        return
    wanted, _, sign = os.environ[ENV_HOLD].partition(":")
    commit = folders.CheckpointFolders.commit

    def held(self: Any, step: int, *args: Any, **kwargs: Any) -> Any:
        if step == int(wanted):
            Path(sign).touch()
            time.sleep(3600)
        return commit(self, step, *args, **kwargs)

    folders.CheckpointFolders.commit = held
