"""How far a job is, for the log and for a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

_BETWEEN_LINES_S = 5.0
_BETWEEN_CHANGES_S = 0.2


class ProgressLine:
    """How far the job is: one line that changes on a terminal, else a line now and then."""

    def __init__(self, num_parts: int, report: Callable[[str], None]) -> None:
        self._num_parts, self._report = num_parts, report
        self._start_s = self._shown_s = time.monotonic()
        self._is_terminal = sys.stdout.isatty()
        self._tokens = 0

    def show(self, parts: int, tokens: int, uploaded: int) -> None:
        """Say it, unless it was said just now."""
        self._tokens = tokens
        text = (
            f"{parts} of {self._num_parts} parts, {tokens / 1e6:.1f} million tokens, "
            f"{uploaded / 1e6:.0f} MB written"
        )
        self._report(text)
        now = time.monotonic()
        if now - self._shown_s > (_BETWEEN_CHANGES_S if self._is_terminal else _BETWEEN_LINES_S):
            self._shown_s = now
            print(self._line(text, now), end=self._end, flush=True)

    def end(self) -> None:
        """The last line."""
        text = f"{self._num_parts} parts, {self._tokens / 1e6:.1f} million tokens"
        print(self._line(text, time.monotonic()), flush=True)

    @property
    def _end(self) -> str:
        return "" if self._is_terminal else "\n"

    def _line(self, text: str, now: float) -> str:
        rate = self._tokens / max(now - self._start_s, 1e-9) / 1e6
        start = "\r\x1b[K" if self._is_terminal else ""
        return f"{start}tokenize: {text}, {rate:.2f} million a second"
