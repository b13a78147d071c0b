"""The launcher's first lines of each node, folded into one unless the start fails or is slow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from jobs.job import LAUNCHERS_VERDICT
from jobs.output.streams import LogLine

SLOW_S = 60.0
"""Time after which the lines of a node that has not begun its work are worth reading."""
_LAUNCHERS = "launch: "
_NEWS = re.compile(
    r"program: |launch: (?:preflight (?!passed|skipped)|snapshot |program: resumes"
    r"|waiting for job|job \S+ has|a connection is refused|\w+=.* is (?:kept|removed)[;:])"
)
"""Lines of a launcher, or of a program's preparation, to wait for or to act on."""
_LAST = "launch: start: "
"""Start of the line with which a launcher starts torchrun, or the only process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReady:
    """A node has begun its work."""

    node: int
    attempt: int
    seconds: float
    lines: int
    """Lines of its launcher until then, which were not shown."""


@dataclass(slots=True)
class _Beginning:
    since_s: float
    lines: list[LogLine] = field(default_factory=list)
    is_over: bool = False


@dataclass(slots=True)
class Beginnings:
    """Holds each node's first lines in an attempt until it is known whether they matter."""

    _found: dict[tuple[int, int], _Beginning] = field(default_factory=dict)

    def add(self, line: LogLine, now_s: float) -> Iterator[LogLine | NodeReady]:
        """Take a line; yield what is to be shown by now."""
        key = line.attempt, line.node
        beginning = self._found.setdefault(key, _Beginning(since_s=now_s))
        if LAUNCHERS_VERDICT.match(line.message):
            yield from self.release(line.attempt)
        if beginning.is_over:
            yield line
            return
        if _NEWS.match(line.message):
            yield line
            return
        if not line.message.startswith(_LAUNCHERS):
            # No work has begun: a traceback of the launcher, for example.
            yield from _shown(beginning)
            yield line
            return
        beginning.lines.append(line)
        if line.message.startswith(_LAST):
            held, beginning.lines, beginning.is_over = beginning.lines, [], True
            yield NodeReady(
                node=line.node,
                attempt=line.attempt,
                seconds=(line.timestamp_ms - held[0].timestamp_ms) / 1000,
                lines=len(held),
            )

    def slow(self, now_s: float) -> Iterator[LogLine]:
        """Yield the lines of nodes that take long to begin."""
        for beginning in self._found.values():
            if not beginning.is_over and now_s - beginning.since_s > SLOW_S:
                yield from _shown(beginning)

    def release(self, last_attempt: int | None = None) -> Iterator[LogLine]:
        """Yield what is held of an attempt that failed or ended, and of those before; or all."""
        for (attempt, _), beginning in sorted(self._found.items()):
            if last_attempt is None or attempt <= last_attempt:
                yield from _shown(beginning)


def _shown(beginning: _Beginning) -> Iterator[LogLine]:
    held, beginning.lines, beginning.is_over = beginning.lines, [], True
    yield from held
