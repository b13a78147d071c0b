"""A run's results and metrics, written locally and to the bucket, and background uploads."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from training.storage import ObjectMissing, Objects, PreconditionFailed, RetryPolicy
from trainium_catalogue.contract import run_prefix
from trainium_catalogue.documents import Positive, Timestamp

_UPLOAD_INTERVAL_S = 10.0

log = logging.getLogger(__name__)

UPLOAD_RETRIES = RetryPolicy(total_s=60.0)
"""Shorter than the hang limit."""
_WARNING_INTERVAL_S = 60.0
_FAILURE_DELAY_S = 0.5


@dataclass(frozen=True, kw_only=True)
class MetricsLine:
    """The common fields of all lines of a run's metrics; subclasses add an event."""

    time: Timestamp
    """Time in UTC."""
    run: str
    workload: str
    attempt: Positive

    @classmethod
    def of(cls, run: str, workload: str, attempt: int, fields: Mapping[str, Any]) -> str:
        """Format a line with the current time."""
        line = cls(time=now_utc(), run=run, workload=workload, attempt=attempt, **fields)
        return json.dumps(asdict(line)) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFiles:
    """The files of a run, laid out as in the bucket."""

    root: Path
    run: str
    workload: str
    attempt: int
    bucket: Objects | None
    """Root of the bucket for copies; None to keep files only in the local folder."""
    _uploaded_s: list[float] = field(default_factory=list, repr=False)
    """Times of uploads, from ``time.monotonic()``."""

    @property
    def metrics_key(self) -> str:
        """Key of the metrics file."""
        return f"{run_prefix(self.run, 'metrics')}{self.workload}.jsonl"

    def start_metrics(self) -> None:
        """Create an empty metrics file, to fail early if the bucket refuses it."""
        self._write(self.metrics_key, "")

    def add_metrics(self, kind: type[MetricsLine], fields: Mapping[str, Any]) -> None:
        """Append one metrics line of ``kind`` with ``fields``."""
        line = kind.of(self.run, self.workload, self.attempt, fields)
        with (self.root / self.metrics_key).open("a") as file:
            file.write(line)
        # Upload periodically, so that measurements survive a failure of the job.
        if time.monotonic() - self._uploaded_s[-1] > _UPLOAD_INTERVAL_S:
            self._upload(self.metrics_key)

    def put(self, name: str, document: Mapping[str, Any]) -> str:
        """Write another document to the results; return its location."""
        key = f"{run_prefix(self.run, 'results')}{name}"
        self._write(key, json.dumps(document, indent=2) + "\n")
        return self._location(key)

    def finish(self, result: Mapping[str, Any]) -> list[str]:
        """Write the result, and upload it and the metrics; return their locations."""
        self._upload(self.metrics_key)
        return [self._location(self.metrics_key), self.put(f"{self.workload}.json", result)]

    def _write(self, key: str, text: str) -> None:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self._upload(key)

    def _upload(self, key: str) -> None:
        self._uploaded_s.append(time.monotonic())
        if self.bucket is not None:
            self.bucket.put(key, (self.root / key).read_bytes())

    def _location(self, key: str) -> str:
        return str(self.root / key) if self.bucket is None else f"{self.bucket.uri}/{key}"


def now_utc() -> str:
    """Return the current time as ISO 8601 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


Content = Path | bytes | Callable[[], bytes]
"""Content to upload: bytes, or a file or function that is read or called at upload time."""


class Uploads:
    """A thread that uploads changed files, each at most every few seconds.

    An upload replaces only the version that this job wrote or found last, because a job that was
    frozen and replaced does not notice this when it continues. ``holds`` returns whether this job
    may replace a version it has not written; if not, uploads stop. Failed uploads are logged and
    retried.
    """

    def __init__(
        self, objects: Objects, *, every_s: float, holds: Callable[[], bool] = lambda: True
    ) -> None:
        self._objects, self._every_s, self._holds = objects, every_s, holds
        self._changed = threading.Condition()
        self._due: dict[str, tuple[float, Content]] = {}
        """Maps keys to the earliest upload time and the content."""
        self._sent_s: dict[str, float] = {}
        self._etags: dict[str, str | None] = {}
        """Maps keys to the version to replace; None if there is none."""
        self._busy: str | None = None
        self._closing = self._abandoned = False
        self._warned_s = float("-inf")

    @classmethod
    def open(
        cls, objects: Objects, *, every_s: float, holds: Callable[[], bool] = lambda: True
    ) -> Uploads:
        """Start the thread, which stops with ``close``, ``abandon`` or the process."""
        uploads = cls(objects, every_s=every_s, holds=holds)
        threading.Thread(target=uploads._run, name="uploads", daemon=True).start()
        return uploads

    def claim(self, key: str) -> bytes | None:
        """Read the version that this job's next upload will replace; None if there is none."""
        try:
            data, self._etags[key] = self._objects.get_with_etag(key)
        except ObjectMissing:
            data, self._etags[key] = None, None
        # Check after reading, since the version may be from a job that has replaced this one.
        if not self._holds():
            log.warning("another job is writing to %s; this job no longer does", self._objects.uri)
            self.abandon()
        return data

    def offer(self, key: str, content: Content, *, now: bool = False) -> None:
        """Queue new or changed content; ``now`` skips the interval."""
        with self._changed:
            if self._abandoned:
                return
            due = 0.0 if now else self._sent_s.get(key, float("-inf")) + self._every_s
            if key in self._due:
                due = min(due, self._due[key][0])
            self._due[key] = (due, content)
            self._changed.notify_all()

    def close(self, *, within_s: float) -> bool:
        """Upload pending content; return whether all of it was uploaded in time."""
        deadline = time.monotonic() + within_s
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            while self._due or self._busy is not None:
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    return False
                self._changed.wait(remaining_s)
        return True

    def abandon(self) -> None:
        """Stop all uploads."""
        with self._changed:
            self._due.clear()
            self._closing = self._abandoned = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while (key := self._next()) is None:
                    if self._closing and not self._due:
                        return
                    self._changed.wait(self._pause_s())
                content = self._due.pop(key)[1]
                self._sent_s[key] = time.monotonic()
                self._busy = key
            is_sent = self._send(key, content)
            with self._changed:
                self._busy = None
                if not is_sent and not self._abandoned:
                    # Retry, unless newer content is queued.
                    self._due.setdefault(key, (time.monotonic() + self._every_s, content))
                self._changed.notify_all()
            if not is_sent:
                time.sleep(_FAILURE_DELAY_S)

    def _next(self) -> str | None:
        now = time.monotonic()
        ready = [key for key, (due, _) in self._due.items() if self._closing or due <= now]
        return min(ready, key=lambda key: self._due[key][0]) if ready else None

    def _pause_s(self) -> float | None:
        if not self._due:
            return None
        return max(0.01, min(due for due, _ in self._due.values()) - time.monotonic())

    def _send(self, key: str, content: Content) -> bool:
        """Upload one file; return False on failure."""
        try:
            if isinstance(content, Path):
                content = content.read_bytes()  # a single read: concurrent appends cannot tear it
            self._put(key, content if isinstance(content, bytes) else content())
        except Exception as error:
            now = time.monotonic()
            if now - self._warned_s > _WARNING_INTERVAL_S:
                self._warned_s = now
                log.warning("%s could not be uploaded; training continues: %s", key, error)
            return False
        return True

    def _put(self, key: str, data: bytes) -> None:
        if key not in self._etags:
            self.claim(key)
        while not self._abandoned:
            etag = self._etags[key]
            try:
                self._etags[key] = self._objects.put(
                    key, data, if_absent=etag is None, if_match=etag
                )
                return
            except PreconditionFailed:
                self.claim(key)
