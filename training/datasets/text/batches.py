"""Documents in batches, read by a thread while the batch before is encoded."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from queue import Queue
from typing import TypeVar

T = TypeVar("T")

_BATCH_CHARACTERS = 1_000_000
_BATCH_DOCUMENTS = 1_000
_WAITING = 2


def batches(documents: Iterable[str]) -> Iterator[list[str]]:
    """Lists of documents, large enough to encode in parallel and small enough to hold."""
    batch: list[str] = []
    characters = 0
    for text in documents:
        batch.append(text)
        characters += len(text)
        if characters >= _BATCH_CHARACTERS or len(batch) >= _BATCH_DOCUMENTS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def read_ahead(items: Iterable[T]) -> Iterator[T]:
    """The same items, the next ones made meanwhile by a thread; its exception is raised here."""
    queue: Queue[T | _End] = Queue(_WAITING)
    stopped = threading.Event()

    def fill() -> None:
        end = _End(None)
        try:
            for item in items:
                if stopped.is_set():
                    return
                queue.put(item)
        except BaseException as error:
            end = _End(error)
        queue.put(end)

    thread = threading.Thread(target=fill, name="read-ahead", daemon=True)
    thread.start()
    try:
        while not isinstance(item := queue.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stopped.set()
        while thread.is_alive():
            # It may wait for room.
            while not queue.empty():
                queue.get_nowait()
            thread.join(0.01)


class _End:
    """After the last item."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error
