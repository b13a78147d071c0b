"""Concurrent execution of many small tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(
    work: Callable[[Item], Result], items: Iterable[Item], *, at_once: int, name: str
) -> Iterator[Result]:
    """Run ``work`` on every item, ``at_once`` at a time, and yield results as they complete.

    Raises the first exception and cancels items that have not started.
    """
    with ThreadPoolExecutor(at_once, thread_name_prefix=name) as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
