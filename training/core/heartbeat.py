"""Heartbeats: when the next one is due, and a thread that gives them while a call cannot."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

Report = Callable[[str], None]
_HEARTBEAT_S = 1.0


class HeartbeatClock:
    """Says when the next heartbeat is due: several are missed before ``timeout_s`` have passed."""

    def __init__(self, timeout_s: float) -> None:
        self._interval_s = min(_HEARTBEAT_S, timeout_s / 5)
        self._last_s = float("-inf")

    def due(self, now_s: float) -> bool:
        """Tell if a heartbeat is due now; the next one is counted from here."""
        if now_s - self._last_s < self._interval_s:
            return False
        self._last_s = now_s
        return True


@contextlib.contextmanager
def heartbeat(
    report: Report, text: str, *, at_most_s: float, when: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Report ``text`` every second that ``when`` holds, for ``at_most_s`` at the longest.

    For a call that cannot say itself that it goes on: an unbroken silence counts as a hang.
    """
    ended = threading.Event()
    until_s = time.monotonic() + at_most_s

    def repeat() -> None:
        while not ended.wait(_HEARTBEAT_S) and time.monotonic() < until_s:
            if when():
                report(text)

    thread = threading.Thread(target=repeat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        # Nothing is reported any more once the block has been left.
        thread.join()
