"""Files on this machine that several may write and read at once."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

PART_PREFIX = ".part-"
"""Begins the names of files that are still being written."""


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file: readers see the old one or the new one, never half of either.

    Several may do so at once, processes and threads of one process alike, for each has a
    temporary file of its own; the last one stays.
    """
    handle, name = tempfile.mkstemp(prefix=PART_PREFIX, dir=path.parent)
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        part.chmod(0o644)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
