"""Fetch an object into a file by several ranges at once."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from training.core.files import PART_PREFIX
from training.storage.interface import OnBytes


def download(
    fetch: Callable[[int, int], bytes],
    *,
    size: int,
    path: Path,
    part_bytes: int,
    num_threads: int,
    on_bytes: OnBytes,
) -> None:
    """Write ``size`` bytes to ``path``, which appears when all are there.

    ``fetch(start, length)`` is called on ``num_threads`` threads; ``on_bytes`` on this one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=PART_PREFIX, dir=path.parent)
    part = Path(name)

    def copy(start: int) -> int:
        length = min(part_bytes, size - start)
        data = fetch(start, length)
        if len(data) != length:
            raise ConnectionError(f"{len(data)} of {length} bytes arrived for {path.name}")
        view, at = memoryview(data), start
        while len(view):
            written = os.pwrite(handle, view, at)
            view, at = view[written:], at + written
        return length

    try:
        with ThreadPoolExecutor(num_threads, thread_name_prefix="download") as pool:
            waiting: set[Future[int]] = {
                pool.submit(copy, start) for start in range(0, size, part_bytes)
            }
            try:
                while waiting:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    for future in done:
                        on_bytes(future.result())
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        part.chmod(0o644)
        part.replace(path)
    finally:
        os.close(handle)
        part.unlink(missing_ok=True)
