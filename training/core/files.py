"""Local files that several processes may read and write concurrently."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from trainium_catalogue.safe_folder import PART_PREFIX


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file atomically: readers see either the old content or the new, never a mix.

    Safe to call concurrently, since each call has its own temporary file; the last one wins.
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
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
