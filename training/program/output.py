"""Passes a program's output on, and notes its last line and its progress.

    <program> | python -m training.program.output <scratch> [<progress-pattern>]

Everything is passed on as it is, except that a progress bar, which rewrites its line with carriage
returns many times a second, gets a line of its own once in a while: a log has no cursor.
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
from pathlib import Path

from training.core.files import write_whole
from training.core.processes import die_with_parent
from training.program.reports import LOSSES_FILE, OutputReport

_READ_BYTES = 64 * 1024
_BAR_EVERY_S = 10.0
_NOTE_EVERY_S = 0.5
_CURVE_EVERY_S = 5.0
_LONGEST_SEARCHED = 2000
"""Characters of a line in which progress is looked for; progress is at the beginning."""
_LONGEST_SHOWN = 500
_RATE_OVER_S = 120.0
_MOST_POINTS = 1000
"""Points up to which nothing is left out; a terminal has some 100 columns."""

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
"""Forms of lines that report progress, each with a step, a loss or both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPoint:
    """A loss that an attempt printed; of many, about a thousand, evenly chosen, and the newest."""

    step: int
    """Number of the loss where lines have no step; steps that restart add to those before."""
    loss: float


class LossCurve:
    """Losses by step, thinned evenly as they become many."""

    def __init__(self) -> None:
        self._points: list[tuple[int, float]] = []
        self._newest: tuple[int, float] | None = None
        self._every = 1
        self._count = 0
        self._base = 0
        """Steps of earlier epochs, where each of them counts from the beginning."""
        self.changed = False
        """True if the file is older than the newest loss."""

    def add(self, step: int | None, loss: float) -> None:
        """Take a loss; where no line tells steps, losses are counted."""
        if not math.isfinite(loss):
            return
        last = self._newest[0] if self._newest is not None else 0
        at = self._base + step if step is not None else last + 1
        if at < last:
            self._base = last
            at = last + (step or 1)
        if self._newest is not None and at > last:
            if self._count % self._every == 0:
                self._points.append(self._newest)
            self._count += 1
        self.changed = True
        self._newest = (at, loss)  # of several for one step the last
        if len(self._points) > _MOST_POINTS:
            self._points = self._points[::2]
            self._every *= 2

    def write(self, scratch: Path) -> None:
        """Replace the file."""
        self.changed = False
        points = [*self._points, *([self._newest] if self._newest is not None else [])]
        lines = (json.dumps(asdict(LossPoint(step=step, loss=loss))) for step, loss in points)
        write_whole(scratch / LOSSES_FILE, "".join(f"{line}\n" for line in lines).encode())


class OutputProgress:
    """Finds steps and losses in lines, and how fast steps come."""

    def __init__(self, report: OutputReport, pattern: str = "") -> None:
        self._report = report
        self.curve = LossCurve()
        self._patterns = [
            re.compile(text) for text in ((pattern,) if pattern else DEFAULT_PATTERNS)
        ]
        self._steps: list[tuple[float, int]] = []

    def look(self, line: str, now_s: float) -> None:
        """Note what a line says."""
        for pattern in self._patterns:
            if (match := pattern.search(line, 0, _LONGEST_SEARCHED)) is not None:
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
            self._steps.clear()  # a new epoch, or another bar
        self._report.step = step
        if self._steps and step == self._steps[-1][1]:
            return
        self._steps.append((now_s, step))
        while now_s - self._steps[0][0] > _RATE_OVER_S and len(self._steps) > 2:
            del self._steps[0]
        (first_s, first), (last_s, last) = self._steps[0], self._steps[-1]
        if last_s > first_s:
            self._report.steps_per_second = round((last - first) / (last_s - first_s), 4)


class Thinning:
    """Cuts output into lines, of which the rewritten ones are mostly left out."""

    def __init__(
        self, write: Callable[[bytes], None], line: Callable[[bytes, float], None]
    ) -> None:
        self._write, self._line = write, line
        self._rest = b""
        self._bar_s = float("-inf")

    def feed(self, data: bytes, now_s: float) -> None:
        """Pass on what is due of ``data``."""
        if b"\r" not in data and b"\r" not in self._rest:
            # Without a bar nothing is held back, not even a line's beginning.
            self._write(data)
            *whole, self._rest = (self._rest + data).split(b"\n")
            for text in whole:
                self._line(text, now_s)
            if len(self._rest) > _READ_BYTES:
                self._rest = self._rest[-_READ_BYTES:]
            return
        # What has been written of the rest must not be written again.
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
        """Pass on what was held back."""
        if b"\r" in self._rest:
            self._write(_last(self._rest) + b"\n")
        elif self._rest:
            self._line(self._rest, now_s)

    @staticmethod
    def _newest(text: bytes, shown: int) -> bytes:
        return _last(text) if b"\r" in text else text[shown:]


def _last(text: bytes) -> bytes:
    """Return the newest state of a line that is rewritten."""
    return next((part for part in reversed(text.split(b"\r")) if part.strip()), b"")


class Recorder:
    """Writes the note, at most twice a second."""

    def __init__(self, scratch: Path, pattern: str) -> None:
        self._scratch = scratch
        self.report = OutputReport()
        self._progress = OutputProgress(self.report, pattern)
        self._written_s = self._drawn_s = float("-inf")
        self._changed = False

    def line(self, text: bytes, now_s: float) -> None:
        """Take one line."""
        shown = text.decode(errors="replace").strip()
        if not shown:
            return
        self.report.lines += 1
        self.report.last_line = shown[:_LONGEST_SHOWN]
        self.report.last_line_at = time.time()
        self._changed = True
        self._progress.look(shown, now_s)

    def passed(self, count: int) -> None:
        """Count bytes, which are a sign of life before they are a line."""
        self.report.bytes += count
        self._changed = True

    def write(self, now_s: float, *, force: bool = False) -> None:
        """Write the note if it is due."""
        curve = self._progress.curve
        with contextlib.suppress(OSError):  # a full disk must not stop the output
            if self._changed and (force or now_s - self._written_s >= _NOTE_EVERY_S):
                self._written_s, self._changed = now_s, False
                self.report.write(self._scratch)
            if curve.changed and (force or now_s - self._drawn_s >= _CURVE_EVERY_S):
                self._drawn_s = now_s
                curve.write(self._scratch)


def main(argv: Sequence[str]) -> int:
    """Pass standard input on until its end."""
    import select

    scratch, pattern = Path(argv[0]), argv[1] if len(argv) > 1 else ""
    recorder = Recorder(scratch, pattern)
    thinning = Thinning(_write_all, recorder.line)
    while True:
        ready, _, _ = select.select([0], [], [], _NOTE_EVERY_S)
        now_s = time.monotonic()
        if ready:
            data = os.read(0, _READ_BYTES)
            if not data:
                break
            recorder.passed(len(data))
            thinning.feed(data, now_s)
        recorder.write(now_s)
    thinning.end(time.monotonic())
    recorder.write(time.monotonic(), force=True)
    return 0


def _write_all(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


if __name__ == "__main__":
    die_with_parent(os.getppid())
    sys.exit(main(sys.argv[1:]))
