"""Fold each launcher's startup lines into one, unless startup fails or is slow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from jobs.job import LAUNCHER_VERDICT
from jobs.output.streams import LogLine

SLOW_S = 60.0
"""Time after which the lines of a node that is still starting are shown."""
_PREFIX = "launch: "
_NOTABLE = re.compile(
    r"program: |launch: (?:preflight (?!passed|skipped)|snapshot |program: resumes"
    r"|waiting for job|job \S+ has|a connection is refused|\w+=.* is (?:kept|removed)[;:])"
)
"""Startup lines to show anyway, because they need attention or explain a wait."""
_LAST = "launch: start: "
"""Prefix of the line that a launcher prints when it starts torchrun, or the only process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReady:
    """A node has finished starting."""

    node: int
    attempt: int
    seconds: float
    lines: int
    """Number of hidden startup lines."""


@dataclass(slots=True)
class _Startup:
    """The startup of one node in one attempt."""

    since_s: float
    lines: list[LogLine] = field(default_factory=list)
    is_over: bool = False


@dataclass(slots=True)
class StartupFilter:
    """Buffers the startup lines of each node and attempt until it is known whether they matter."""

    _startups: dict[tuple[int, int], _Startup] = field(default_factory=dict)

    def add(self, line: LogLine, now_s: float) -> Iterator[LogLine | NodeReady]:
        """Add a line; yield what to show."""
        key = line.attempt, line.node
        startup = self._startups.setdefault(key, _Startup(since_s=now_s))
        if LAUNCHER_VERDICT.match(line.message):
            yield from self.release(line.attempt)
        if startup.is_over:
            yield line
            return
        if _NOTABLE.match(line.message):
            yield line
            return
        if not line.message.startswith(_PREFIX):
            # A traceback of the launcher, for example.
            yield from _release(startup)
            yield line
            return
        startup.lines.append(line)
        if line.message.startswith(_LAST):
            held, startup.lines, startup.is_over = startup.lines, [], True
            yield NodeReady(
                node=line.node,
                attempt=line.attempt,
                seconds=(line.timestamp_ms - held[0].timestamp_ms) / 1000,
                lines=len(held),
            )

    def slow(self, now_s: float) -> Iterator[LogLine]:
        """Yield the lines of nodes that start slowly."""
        for startup in self._startups.values():
            if not startup.is_over and now_s - startup.since_s > SLOW_S:
                yield from _release(startup)

    def release(self, last_attempt: int | None = None) -> Iterator[LogLine]:
        """Yield buffered lines of attempts up to ``last_attempt``, or of all attempts."""
        for (attempt, _), startup in sorted(self._startups.items()):
            if last_attempt is None or attempt <= last_attempt:
                yield from _release(startup)


def _release(startup: _Startup) -> Iterator[LogLine]:
    held, startup.lines, startup.is_over = startup.lines, [], True
    yield from held
