"""Forward a program's output, and record its last line and its progress.

    <program> | python -m training.program.output <scratch> [<progress-pattern>]

Everything is forwarded unchanged, except progress bars, which rewrite their line with carriage
returns many times a second. In the log, each produces one line every 10 s.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from training.core.files import write_whole
from training.core.processes import die_with_parent
from training.program.reports import LOSSES_FILE, OutputReport
from trainium_catalogue.documents import Timestamp

_READ_BYTES = 64 * 1024
_BAR_EVERY_S = 10.0
_REPORT_EVERY_S = 0.5
_CURVE_EVERY_S = 5.0
_MAX_SEARCHED_CHARACTERS = 2000
"""Maximum number of characters searched for progress at the beginning of each line."""
_MAX_SHOWN_CHARACTERS = 500
_RATE_WINDOW_S = 120.0
_MAX_POINTS = 1000
"""Maximum number of points before thinning; a terminal has about 100 columns."""

log = logging.getLogger(__name__)

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf"
DEFAULT_PATTERNS = (
    # nanoGPT: "iter 100: loss 2.4567, time 130.21ms, mfu 3.14%"; the same with step and epoch.
    rf"\b(?:iter|iteration|step|epoch)\s*[:#]?\s*(?P<step>\d+)\b(?:.*?\bloss\b\D{{0,3}}(?P<loss>{_NUMBER}))?",
    # tqdm, as Hugging Face and Lightning show it: "10%|#   | 10/100 [00:01<00:10,  9.50it/s, ...".
    rf"\|\s*(?P<step>\d+)/\d+\s*\[[^\]]*?(?:\b\w*loss=(?P<loss>{_NUMBER})[^\]]*)?\]",
    # Hugging Face's Trainer: "{'loss': 2.3456, 'grad_norm': 1.2, 'epoch': 0.1}".
    rf"'loss':\s*'?(?P<loss>{_NUMBER})",
)
"""Patterns of progress lines, each with a step, a loss or both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPoint:
    """A loss printed by an attempt. Long curves are thinned evenly to about a thousand points."""

    step: int
    """Step, or ordinal of the loss if lines have no step. If steps restart, counting continues."""
    loss: float
    time: Timestamp
    """Time (UTC) at which the line was printed."""


class LossCurve:
    """Losses by step, thinned evenly as their number grows."""

    def __init__(self) -> None:
        self._points: list[LossPoint] = []
        self._newest: LossPoint | None = None
        self._every = 1
        self._count = 0
        self._base = 0
        """Total steps of earlier epochs, if each epoch counts from 0."""
        self.changed = False
        """True if the newest loss has not been written to the file."""

    def add(self, step: int | None, loss: float) -> None:
        """Add a loss; without steps, losses are numbered."""
        if not math.isfinite(loss):
            return
        last = self._newest.step if self._newest is not None else 0
        at = self._base + step if step is not None else last + 1
        if at < last:
            self._base = last
            at = last + (step or 1)
        if self._newest is not None and at > last:
            if self._count % self._every == 0:
                self._points.append(self._newest)
            self._count += 1
        self.changed = True
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        # Replaces an earlier loss of the same step.
        self._newest = LossPoint(step=at, loss=loss, time=now)
        if len(self._points) > _MAX_POINTS:
            self._points = self._points[::2]
            self._every *= 2

    def write(self, scratch: Path) -> None:
        """Replace the file."""
        self.changed = False
        points = [*self._points, *([self._newest] if self._newest is not None else [])]
        lines = (json.dumps(asdict(point)) for point in points)
        write_whole(scratch / LOSSES_FILE, "".join(f"{line}\n" for line in lines).encode())


class OutputProgress:
    """Extracts steps and losses from lines, and computes the step rate."""

    def __init__(self, report: OutputReport, pattern: str = "") -> None:
        self._report = report
        self.curve = LossCurve()
        self._patterns = [
            re.compile(text) for text in ((pattern,) if pattern else DEFAULT_PATTERNS)
        ]
        self._steps: list[tuple[float, int]] = []

    def extract(self, line: str, now_s: float) -> None:
        """Extract progress from a line."""
        for pattern in self._patterns:
            if (match := pattern.search(line, 0, _MAX_SEARCHED_CHARACTERS)) is not None:
                groups = match.groupdict()
                with contextlib.suppress(TypeError, ValueError):
                    if groups.get("step"):
                        self._step(int(groups["step"]), now_s)
                with contextlib.suppress(TypeError, ValueError):
                    if groups.get("loss"):
                        self._report.loss = float(groups["loss"])
                        self.curve.add(self._report.step, self._report.loss)
                return

    def _step(self, step: int, now_s: float) -> None:
        if self._steps and step < self._steps[-1][1]:
            self._steps.clear()  # a new epoch or a different progress bar
        self._report.step = step
        if self._steps and step == self._steps[-1][1]:
            return
        self._steps.append((now_s, step))
        while now_s - self._steps[0][0] > _RATE_WINDOW_S and len(self._steps) > 2:
            del self._steps[0]
        (first_s, first), (last_s, last) = self._steps[0], self._steps[-1]
        if last_s > first_s:
            self._report.steps_per_second = round((last - first) / (last_s - first_s), 4)


class ProgressBarFilter:
    """Splits output into lines, dropping most updates of progress bars."""

    def __init__(
        self, write: Callable[[bytes], None], line: Callable[[bytes, float], None]
    ) -> None:
        self._write, self._line = write, line
        self._rest = b""
        self._bar_s = float("-inf")

    def feed(self, data: bytes, now_s: float) -> None:
        """Forward ``data``, except for updates that are not due."""
        if b"\r" not in data and b"\r" not in self._rest:
            # Without a progress bar, forward everything, even incomplete lines.
            self._write(data)
            *whole, self._rest = (self._rest + data).split(b"\n")
            for text in whole:
                self._line(text, now_s)
            if len(self._rest) > _READ_BYTES:
                self._rest = self._rest[-_READ_BYTES:]
            return
        # Skip the part of the rest that has already been written.
        shown = 0 if b"\r" in self._rest else len(self._rest)
        out = bytearray()
        *whole, self._rest = (self._rest + data).split(b"\n")
        for text in whole:
            out += self._newest(text.removesuffix(b"\r"), shown) + b"\n"
            self._line(_last(text), now_s)
            shown, self._bar_s = 0, now_s
        if b"\r" in self._rest:
            bar = _last(self._rest)
            self._line(bar, now_s)
            if now_s - self._bar_s >= _BAR_EVERY_S:
                self._bar_s = now_s
                out += self._newest(self._rest, shown) + b"\n"
            self._rest = b"\r" + bar
        else:
            out += self._rest[shown:]
        self._write(bytes(out))

    def end(self, now_s: float) -> None:
        """Forward the remaining output."""
        if b"\r" in self._rest:
            self._write(_last(self._rest) + b"\n")
        elif self._rest:
            self._line(self._rest, now_s)

    @staticmethod
    def _newest(text: bytes, shown: int) -> bytes:
        return _last(text) if b"\r" in text else text[shown:]


def _last(text: bytes) -> bytes:
    """Return the latest state of a rewritten line."""
    return next((part for part in reversed(text.split(b"\r")) if part.strip()), b"")


class Recorder:
    """Writes the report, at most twice a second."""

    def __init__(self, scratch: Path, pattern: str) -> None:
        self._scratch = scratch
        self.report = OutputReport()
        self._progress = OutputProgress(self.report, pattern)
        self._written_s = self._curve_written_s = float("-inf")
        self._changed = False

    def line(self, text: bytes, now_s: float) -> None:
        """Process one line."""
        shown = text.decode(errors="replace").strip()
        if not shown:
            return
        self.report.lines += 1
        self.report.last_line = shown[:_MAX_SHOWN_CHARACTERS]
        self.report.last_line_at = time.time()
        self._changed = True
        self._progress.extract(shown, now_s)

    def count_bytes(self, count: int) -> None:
        """Count bytes of output; even an incomplete line is a sign of life."""
        self.report.bytes += count
        self._changed = True

    def write(self, now_s: float, *, force: bool = False) -> None:
        """Write the report and the curve if they are due."""
        curve = self._progress.curve
        with contextlib.suppress(OSError):  # a full disk must not stop the output
            if self._changed and (force or now_s - self._written_s >= _REPORT_EVERY_S):
                self._written_s, self._changed = now_s, False
                self.report.write(self._scratch)
            if curve.changed and (force or now_s - self._curve_written_s >= _CURVE_EVERY_S):
                self._curve_written_s = now_s
                curve.write(self._scratch)


def main(argv: Sequence[str]) -> int:
    """Forward standard input until it ends."""
    import select

    scratch, pattern = Path(argv[0]), argv[1] if len(argv) > 1 else ""
    recorder = Recorder(scratch, pattern)
    progress_filter = ProgressBarFilter(_write_all, recorder.line)
    while True:
        ready, _, _ = select.select([0], [], [], _REPORT_EVERY_S)
        now_s = time.monotonic()
        if ready:
            data = os.read(0, _READ_BYTES)
            if not data:
                break
            recorder.count_bytes(len(data))
            progress_filter.feed(data, now_s)
        recorder.write(now_s)
    progress_filter.end(time.monotonic())
    recorder.write(time.monotonic(), force=True)
    return 0


def _write_all(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


if __name__ == "__main__":
    die_with_parent(os.getppid())
    sys.exit(main(sys.argv[1:]))
