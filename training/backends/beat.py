"""Say that a call goes on which cannot say so itself: an unbroken silence counts as a hang."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

Report = Callable[[str], None]
_BEAT_S = 1.0


@contextlib.contextmanager
def beating(
    report: Report, text: str, *, at_most_s: float, when: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Report ``text`` every second that ``when`` holds, for ``at_most_s`` at the longest."""
    ended = threading.Event()
    until_s = time.monotonic() + at_most_s

    def beat() -> None:
        while not ended.wait(_BEAT_S) and time.monotonic() < until_s:
            if when():
                report(text)

    thread = threading.Thread(target=beat, name="beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        # Nothing is reported any more once the block has been left.
        thread.join()
