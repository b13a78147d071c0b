"""Download files with known SHA-256 checksums and verify them."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from training.datasets.manifest import DatasetError

_BLOCK_BYTES = 1024 * 1024
TIMEOUT_S = 60
_ATTEMPTS = 5
_MIB = 1024 * 1024
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A file on the web, with its exact size and checksum."""

    url: str
    bytes: int
    sha256: str


def fetch(archive: Archive, path: Path, report: Callable[[str], None]) -> None:
    """Download to ``path`` and verify the file, which is deleted after any error.

    Interrupted downloads resume if the server supports range requests. Raises ``DatasetError`` if
    the file does not fit on the disk, is not available or differs, and ``ConnectionError`` after
    repeated network errors.
    """
    free = shutil.disk_usage(path.parent).free
    if free < archive.bytes:
        raise DatasetError(
            f"{path.parent} has {free // _MIB:,} MiB free, but {archive.url} needs "
            f"{archive.bytes // _MIB:,} MiB; give the instance a larger volume"
        )
    try:
        with_retries(
            archive.url,
            lambda: _download(archive, path, report),
            remedy="download it elsewhere, convert it to JSONL and run jobs upload",
        )
        _verify(archive, path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def with_retries(url: str, action: Callable[[], T], *, remedy: str) -> T:
    """Call ``action``, again after connection errors and server errors (5xx).

    Raises ``DatasetError`` for other responses, with the ``remedy`` if the file has moved, and
    ``ConnectionError`` after repeated network errors.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return action()
        except urllib.error.HTTPError as error:
            if error.code < 500 or attempt == _ATTEMPTS - 1:
                raise DatasetError(
                    f"{url} returned {error.code} {error.reason}; if it has moved, {remedy}"
                ) from None
        except (OSError, http.client.IncompleteRead) as error:  # timeouts, unresolved names
            if attempt == _ATTEMPTS - 1:
                raise ConnectionError(
                    f"{url} cannot be fetched: {error}; the job needs internet access"
                ) from None
        time.sleep(2**attempt)
    raise AssertionError  # the last attempt returns or raises


def _download(archive: Archive, path: Path, report: Callable[[str], None]) -> None:
    offset = path.stat().st_size if path.exists() else 0
    headers = {"Range": f"bytes={offset}-"} if offset else {}
    request = urllib.request.Request(archive.url, headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        resumed = response.status == 206
        done = offset if resumed else 0
        with path.open("ab" if resumed else "wb") as file:
            # A single byte more than expected reveals a different file.
            while done <= archive.bytes and (block := response.read(_BLOCK_BYTES)):
                file.write(block)
                done += len(block)
                report(f"fetched {done // _MIB} of {archive.bytes // _MIB} MiB")
    if done < archive.bytes and response.length:
        raise ConnectionError(f"the connection closed after {done:,} of {archive.bytes:,} bytes")


def _verify(archive: Archive, path: Path) -> None:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    if digest.hexdigest() != archive.sha256:
        raise DatasetError(
            f"{archive.url} returned {path.stat().st_size:,} bytes with SHA-256 "
            f"{digest.hexdigest()}, not the expected {archive.bytes:,} with {archive.sha256}: the "
            "publisher's file has changed, so nothing was stored; use another corpus, or upload "
            "your own copy with jobs upload"
        )
