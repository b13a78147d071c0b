"""Reading log streams: every line once, and several streams merged by time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from jobs.aws import LogsClient
from jobs.errors import error_code, is_transient
from jobs.job import LAUNCHERS_LAST_LINE, LAUNCHERS_VERDICT, Job, NodeLog
from trainium_catalogue.documents import Natural, Positive

_LAST_LINES = 50
"""Lines from a log's end in which the launcher's last one is: workers may still print after it."""
_PAGES_PER_READ = 20  # so that one chatty node does not starve the others


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
    """True once the launcher's last line was read: nothing follows, as a stream keeps its order."""
    _token: str | None = None

    def read_into(self, merger: Merger, logs: LogsClient, log_group: str) -> None:
        """Pass everything new to ``merger``.

        The token advances along with the lines of its page, so an error between two pages
        (throttling, a lost connection) neither loses nor repeats any.
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
                self.has_last_line = bool(LAUNCHERS_LAST_LINE.match(line.message))
                merger.add(line, stream=self.name)

    def _page(self, logs: LogsClient, log_group: str) -> Any:
        """Read one page; None while the stream does not exist yet."""
        token = {} if self._token is None else {"nextToken": self._token}
        try:
            return logs.get_log_events(
                logGroupName=log_group, logStreamName=self.name, startFromHead=True, **token
            )
        except Exception as error:
            # Batch names the stream when the task starts; CloudWatch creates it on its first line.
            if error_code(error) == "ResourceNotFoundException":
                return None
            raise


def last_words(logs: LogsClient, log_group: str, stream: str) -> str | None:
    """Read the reason that a failed node's launcher gives with its last line; None without one."""
    try:
        page = logs.get_log_events(
            logGroupName=log_group, logStreamName=stream, startFromHead=False, limit=_LAST_LINES
        )
    except Exception:  # the job's status is worth showing without it
        return None
    for event in reversed(page["events"]):
        message = str(event["message"]).rstrip("\r\n")
        if said := LAUNCHERS_VERDICT.match(message):
            return message[said.end() :]
    return None


@dataclass(slots=True)
class Merger:
    """Merges lines by time as they arrive.

    A line is held for one round of reading, so that older lines of other nodes that are read later
    still come first. Lines of one stream never overtake each other.
    """

    _held: list[tuple[int, int, int, LogLine]] = field(default_factory=list)
    _newest_ms: dict[str, int] = field(default_factory=dict)
    _horizon_ms: int | None = None
    _count: int = 0

    def add(self, line: LogLine, *, stream: str) -> None:
        """Add a line, in the order of its stream."""
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
        """Release everything."""
        while self._held:
            yield heapq.heappop(self._held)[3]


class Phase(Enum):
    """Streams that a round reads."""

    LIVE = "live"
    """The newest attempt and the previous one; older streams have been read to the end."""
    SETTLING = "settling"
    """All streams, since lines may still arrive."""
    LAST = "last"
    """Only the streams that the previous round could not read to the end."""


@dataclass(slots=True, kw_only=True)
class Streams:
    """All streams of one job, found as its nodes start and read round by round."""

    logs: LogsClient
    log_group: str
    only_node: int | None = None
    find_more: Callable[[Job], Iterable[NodeLog]] = lambda job: ()
    """Finds streams that the job's nodes do not name: those of pods that are gone."""
    merger: Merger = field(default_factory=Merger)
    phase: Phase = Phase.LIVE
    _streams: dict[str, LogStream] = field(default_factory=dict)
    _noted: tuple[str, int] | None = None

    def note(self, job: Job, troubles: list[BaseException]) -> None:
        """Add the streams that the nodes of ``job`` have by now."""
        found = list(job.node_logs)
        state = job.status, len(job.attempts)
        if state != self._noted or self.phase is not Phase.LIVE:
            try:
                found += self.find_more(job)
                self._noted = state
            except Exception as error:
                if not is_transient(error):
                    raise
                troubles.append(error)
        for each in found:
            if self.only_node in (None, each.node):
                self._streams.setdefault(
                    each.name, LogStream(name=each.name, node=each.node, attempt=each.attempt)
                )

    def in_use(self) -> list[LogStream]:
        """List the streams that the next round reads."""
        newest = max((stream.attempt for stream in self._streams.values()), default=1)
        return [
            stream
            for stream in self._streams.values()
            if not stream.caught_up
            or self.phase is Phase.SETTLING
            or (self.phase is Phase.LIVE and stream.attempt >= newest - 1)
        ]

    def read(self, troubles: list[BaseException]) -> int:
        """Read one round; return how many streams answered. Transient errors go to ``troubles``."""
        answered = 0
        for stream in self.in_use():
            try:
                stream.read_into(self.merger, self.logs, self.log_group)
                answered += 1
            except Exception as error:
                if not is_transient(error):
                    raise
                troubles.append(error)
        return answered

    def read_all(self, job: Job) -> list[LogLine]:
        """Read what there is, sorted by time."""
        troubles: list[BaseException] = []
        self.note(job, troubles)
        if troubles:
            raise troubles[0]
        for stream in self._streams.values():
            while not stream.caught_up:
                stream.read_into(self.merger, self.logs, self.log_group)
        return list(self.merger.flush())

    def have_last_lines(self, job: Job) -> bool:
        """Tell whether the last line of every node's newest attempt has been read."""
        nodes = [n for n in job.nodes if self.only_node is None or n.index == self.only_node]
        names = [node.last.log_stream if node.last else None for node in nodes]
        newest = [self._streams.get(name or "") for name in names]
        all_known = self.only_node is not None or len(nodes) == job.shape.size
        return all_known and all(stream is not None and stream.has_last_line for stream in newest)

    @property
    def caught_up(self) -> bool:
        """True if everything that exists has been read to the end."""
        return all(stream.caught_up for stream in self._streams.values())
