"""Files on this machine that several processes may write and read at once."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from trainium_catalogue.safe_folder import PART_PREFIX


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file atomically: readers see the old or the new one, never part of either.

    Several processes and threads may do so at once, since each has its own temporary file; the
    last one wins.
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


def sha256_of(path: Path) -> str:
    """Checksum of a file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
