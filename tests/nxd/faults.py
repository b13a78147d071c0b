"""Faults that a test requests of a job's workers by environment variables."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

ENV_HOLD = "NXD_TEST_HOLD"
"""``<step>:<file>``: the checkpoint of that step never becomes complete; the file is
created when everything but its marker is stored."""


def hold_commit(folders: Any) -> None:
    """Patch ``training.checkpoint.folders`` as soon as it is imported."""
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
