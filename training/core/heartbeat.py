"""Heartbeats: when the next one is due, and a thread that sends them during blocking calls."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

Report = Callable[[str], None]
_HEARTBEAT_S = 1.0


class Pacer:
    """Limits an action to one per interval."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._last_s = float("-inf")

    def due(self, now_s: float) -> bool:
        """Return whether the action is due now; if so, restart the interval."""
        if now_s - self._last_s < self._interval_s:
            return False
        self._last_s = now_s
        return True


class HeartbeatClock(Pacer):
    """Schedules heartbeats often enough that several may be missed within ``timeout_s``."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(min(_HEARTBEAT_S, timeout_s / 5))


@contextlib.contextmanager
def heartbeat(
    report: Report, text: str, *, at_most_s: float, when: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Report ``text`` every second while ``when`` holds, for at most ``at_most_s``.

    For calls that cannot report progress themselves and would otherwise count as a hang.
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
        # Ensures that nothing is reported after the block exits.
        thread.join()
