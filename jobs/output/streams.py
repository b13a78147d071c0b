"""Read each line of the log streams exactly once, and merge the streams by time."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from jobs.aws import LogsClient
from jobs.errors import error_code, is_transient
from jobs.job import LAUNCHER_LAST_LINE, LAUNCHER_VERDICT, Job, JobKind, NodeLog
from trainium_catalogue.documents import Natural, Positive

_LAST_LINES = 50
"""Number of final lines to search for the launcher's last one, since workers may print after it."""
_NAMED_NODE = re.compile(LAUNCHER_VERDICT.pattern + r"node (\d{1,6})\b")
"""A verdict that names the node at fault."""
_MAX_FAILED = 3
"""Number of failed children of a large array whose last lines are shown."""
_PAGES_PER_READ = 20  # limited so that one verbose node does not starve the others


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line printed by a node."""

    timestamp_ms: int
    node: Natural
    attempt: Positive
    message: str


@dataclass(slots=True, kw_only=True)
class LogStream:
    """One node's stream in one attempt, and the position read so far."""

    name: str
    node: int
    attempt: int
    caught_up: bool = False
    """True if the last read reached the end of the stream, which may be empty."""
    has_last_line: bool = False
    """True if the newest line read is the launcher's last; workers may still print after it."""
    tail_only: bool = False
    """True to read only the tail of the existing lines."""
    named_node: int | None = None
    """Node at fault, from the launcher's last line."""
    _token: str | None = None

    def read_into(self, merger: Merger, logs: LogsClient, log_group: str) -> None:
        """Pass all new lines to ``merger``.

        The token advances page by page, so an error between two pages (throttling, a lost
        connection) neither loses nor repeats lines.
        """
        self.caught_up = False
        for _ in range(_PAGES_PER_READ):
            page = self._page(logs, log_group)
            if page is None:
                self.caught_up = True
                return
            token = page["nextForwardToken"]
            if token == self._token:
                # "If you have reached the end of the stream, it returns the same token you
                # passed in" (GetLogEvents API reference); an empty page alone is not the end.
                self.caught_up = True
                return
            self._token = token
            for event in page["events"]:
                line = LogLine(
                    timestamp_ms=int(event["timestamp"]),
                    node=self.node,
                    attempt=self.attempt,
                    message=str(event["message"]).rstrip("\r\n"),
                )
                self.has_last_line = bool(LAUNCHER_LAST_LINE.match(line.message))
                if named := _NAMED_NODE.match(line.message):
                    self.named_node = int(named[1])
                merger.add(line, stream=self.name)

    def _page(self, logs: LogsClient, log_group: str) -> Any:
        """Read one page; None while the stream does not exist yet."""
        start: dict[str, Any] = {"startFromHead": True}
        if self._token is not None:
            start["nextToken"] = self._token
        elif self.tail_only:
            start = {"startFromHead": False, "limit": _LAST_LINES}
        try:
            return logs.get_log_events(logGroupName=log_group, logStreamName=self.name, **start)
        except Exception as error:
            # Batch may report the stream before the container's log driver has created it.
            if error_code(error) == "ResourceNotFoundException":
                return None
            raise


def read_verdict(logs: LogsClient, log_group: str, stream: str) -> str | None:
    """Read the reason for the last verdict that a node's launcher printed; None without one."""
    try:
        page = logs.get_log_events(
            logGroupName=log_group, logStreamName=stream, startFromHead=False, limit=_LAST_LINES
        )
    except Exception:  # best effort: the status is still useful without it
        return None
    for event in reversed(page["events"]):
        message = str(event["message"]).rstrip("\r\n")
        if match := LAUNCHER_VERDICT.match(message):
            return message[match.end() :]
    return None


@dataclass(slots=True)
class Merger:
    """Merges lines by time as they arrive.

    Each line is held for one round of reading, so that older lines of other nodes, read later,
    still come first. Lines of one stream are never reordered.
    """

    _held: list[tuple[int, int, int, LogLine]] = field(default_factory=list)
    _newest_ms: dict[str, int] = field(default_factory=dict)
    _horizon_ms: int | None = None
    _count: int = 0

    def add(self, line: LogLine, *, stream: str) -> None:
        """Add the next line of a stream."""
        order_ms = max(line.timestamp_ms, self._newest_ms.get(stream, line.timestamp_ms))
        self._newest_ms[stream] = order_ms
        self._count += 1
        heapq.heappush(self._held, (order_ms, line.node, self._count, line))

    def end_round(self) -> Iterator[LogLine]:
        """Release the lines held for a round, and any older ones."""
        horizon_ms = self._horizon_ms
        self._horizon_ms = max((entry[0] for entry in self._held), default=None)
        if horizon_ms is None:
            return
        while self._held and self._held[0][0] <= horizon_ms:
            yield heapq.heappop(self._held)[3]

    def flush(self) -> Iterator[LogLine]:
        """Release all held lines."""
        while self._held:
            yield heapq.heappop(self._held)[3]


class Phase(Enum):
    """Streams that a round reads."""

    LIVE = "live"
    """Streams of the newest and the previous attempt; older ones have been read to the end."""
    SETTLING = "settling"
    """All streams, since lines may still arrive."""
    LAST = "last"
    """Only streams that the previous round did not read to the end."""


@dataclass(slots=True, kw_only=True)
class Streams:
    """All streams of a job, discovered as its nodes start, and read in rounds."""

    logs: LogsClient
    log_group: str
    only_node: int | None = None
    is_selective: bool = False
    """True to read only the main node's stream and the tails of failed ones, for a large job."""
    find_more: Callable[[Job, frozenset[int] | None], Iterable[NodeLog]] = lambda job, nodes: ()
    """Finds streams missing from the job's description, of some or all nodes."""
    merger: Merger = field(default_factory=Merger)
    phase: Phase = Phase.LIVE
    _streams: dict[str, LogStream] = field(default_factory=dict)
    _noted: tuple[str, int, frozenset[int] | None] | None = None

    def selected(self, job: Job) -> frozenset[int] | None:
        """Return the nodes whose streams are read; None means all."""
        if self.only_node is not None:
            return frozenset({self.only_node})
        if not self.is_selective or not job.shape.is_large:
            return None
        if job.shape.kind is not JobKind.ARRAY:
            named = [stream.named_node for stream in self._streams.values()]
            return frozenset({0, *(node for node in named if node is not None)})
        failed = [node for node in job.nodes if node.status == "FAILED"]
        failed.sort(key=lambda node: (node.last and node.last.stopped_at_ms) or 0)
        return frozenset({0, *(node.index for node in failed[:_MAX_FAILED])})

    def note(self, job: Job, failures: list[BaseException]) -> None:
        """Add new streams of the nodes of ``job``."""
        found = list(job.node_logs)
        selected = self.selected(job)
        state = job.status, len(job.attempts), selected
        if state != self._noted or self.phase is not Phase.LIVE:
            self._noted = state
            try:
                found += self.find_more(job, selected if job.shape.is_large else None)
            except Exception as error:
                if not is_transient(error):
                    raise
                self._noted = None
                failures.append(error)
        for each in found:
            if (selected is None or each.node in selected) and each.name not in self._streams:
                self._streams[each.name] = LogStream(
                    name=each.name,
                    node=each.node,
                    attempt=each.attempt,
                    tail_only=selected is not None and self.only_node is None and each.node > 0,
                )

    def in_use(self) -> list[LogStream]:
        """List the streams to read in the next round."""
        newest = max((stream.attempt for stream in self._streams.values()), default=1)
        return [
            stream
            for stream in self._streams.values()
            if not stream.caught_up
            or self.phase is Phase.SETTLING
            or (self.phase is Phase.LIVE and stream.attempt >= newest - 1)
        ]

    def read(self, failures: list[BaseException]) -> int:
        """Read one round and collect transient errors; return the number of successful reads."""
        num_responses = 0
        for stream in self.in_use():
            try:
                stream.read_into(self.merger, self.logs, self.log_group)
                num_responses += 1
            except Exception as error:
                if not is_transient(error):
                    raise
                failures.append(error)
        return num_responses

    def read_all(self, job: Job) -> list[LogLine]:
        """Read all existing lines, sorted by time."""
        failures: list[BaseException] = []
        self.note(job, failures)
        if failures:
            raise failures[0]
        for stream in self._streams.values():
            while not stream.caught_up:
                stream.read_into(self.merger, self.logs, self.log_group)
        return list(self.merger.flush())

    def have_last_lines(self, job: Job) -> bool:
        """Return whether the last line of every selected node's newest attempt has been read."""
        selected = self.selected(job)
        attempts = {node.index: node.last.number for node in job.nodes if node.last}
        ended = {(s.node, s.attempt) for s in self._streams.values() if s.has_last_line}
        nodes = range(job.shape.size) if selected is None else selected
        return all((node, attempts.get(node)) in ended for node in nodes)

    def is_complete(self, job: Job) -> bool:
        """Return whether no further streams need to be found."""
        return self._noted is not None and self._noted[2] == self.selected(job)

    @property
    def caught_up(self) -> bool:
        """True if all streams have been read to the end."""
        return all(stream.caught_up for stream in self._streams.values())
