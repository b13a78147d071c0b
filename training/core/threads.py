"""Many small pieces of work at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(
    work: Callable[[Item], Result], items: Iterable[Item], *, at_once: int, name: str
) -> Iterator[Result]:
    """Do ``work`` for every item, ``at_once`` at a time, and yield results as they come.

    The first exception is raised, and what has not begun by then never does.
    """
    with ThreadPoolExecutor(at_once, thread_name_prefix=name) as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
