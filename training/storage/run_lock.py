"""The lock that gives a run's name to one job at a time."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Annotated

from training.storage.interface import ObjectMissing, Objects, PreconditionFailed, StorageError
from training.storage.results import now_utc
from trainium_catalogue.contract import RUN_LOCK
from trainium_catalogue.documents import Keywords, Positive, Timestamp
from trainium_catalogue.typed_json import read_json

HEARTBEAT_S = 10.0
_MAX_HEARTBEAT_S = 60.0
"""No lock has others wait for longer, whatever has been written into it."""
_MISSED = 3
"""Missed heartbeats after which a holder counts as dead."""
_LOOKS_PER_HEARTBEAT = 5


class RunLocked(ValueError):
    """Another job trains under the run's name."""


class RunLost(ValueError):
    """Another job has taken the run's name from this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The content of ``lock.json``."""

    job_id: str
    attempt: Positive
    node: str
    """Where the job runs."""
    since: Timestamp
    """Time at which the job took the lock."""
    heartbeat: Timestamp
    """Time of the latest renewal."""
    heartbeat_s: Annotated[float, Keywords(exclusiveMinimum=0)]
    """Seconds between two heartbeats; a holder that misses three is succeeded."""
    released: bool = False
    """The job has ended, and the next one may begin."""

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_s <= _MAX_HEARTBEAT_S:
            raise ValueError(f"heartbeat_s is {self.heartbeat_s}")

    def dump(self) -> bytes:
        """Encode as JSON."""
        return json.dumps(asdict(self), indent=2).encode() + b"\n"

    @staticmethod
    def parse(data: bytes) -> Holder | None:
        """Parse a lock; None if it is not one of this version."""
        try:
            return read_json(data, Holder)
        except ValueError:
            return None


def check_holder(objects: Objects, job_id: str, attempt: int, *, run: str) -> None:
    """Raise ``RunLost`` if the lock below ``objects`` is another job's.

    For the processes of a job that do not keep the lock themselves. A lock that is missing or
    unreadable is left to the one that does.
    """
    try:
        holder = Holder.parse(objects.get(RUN_LOCK))
    except ObjectMissing:
        return
    if holder is not None and (holder.job_id, holder.attempt) != (job_id, attempt):
        raise RunLost(_loss(run, holder))


def _loss(run: str, holder: Holder | None) -> str:
    by = "its lock has been deleted"
    if holder is not None:
        by = f"job {holder.job_id} (attempt {holder.attempt}) has taken it at {holder.since}"
    return (
        f"this job no longer holds run {run}: {by}; stop one of the two, or give each its own "
        "--name"
    )


class RunLock:
    """The lock of the run with root ``objects``; the main node's rank 0 holds it.

    Built on conditional writes (S3's If-None-Match and If-Match), so that of two jobs starting
    together one wins. A holder is alive if its heartbeat changes, whatever time it contains: no
    clocks are compared.
    """

    def __init__(
        self,
        objects: Objects,
        job_id: str,
        attempt: int,
        *,
        run: str,
        node: str = "",
        heartbeat_s: float = HEARTBEAT_S,
        say: Callable[[str], None] = lambda text: None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._objects, self._run = objects, run
        self._say, self._report = say, report
        self._mine = Holder(
            job_id=job_id,
            attempt=attempt,
            node=node,
            since="",
            heartbeat="",
            heartbeat_s=heartbeat_s,
        )
        self._etag = ""
        self._unanswered: set[bytes] = set()
        """What was sent without an answer: it may have been written all the same."""
        self._lost: str | None = None
        self._renewing = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Take the lock and keep it; ``RunLocked`` if another job holds it.

        A lock that is free, released or left by an earlier attempt of this job is taken at once.
        Another job's is watched: it is renewed within a heartbeat (10 s), or dead after three.
        """
        watched: tuple[str, float] | None = None
        while True:
            found = self._found()
            if found is None:
                if self._take(None):
                    break
                continue
            holder, etag = found
            if holder is None or holder.released or self._is_earlier(holder):
                if self._take(etag):
                    break
                continue
            now = time.monotonic()
            if watched is None:
                watched = etag, now + _MISSED * holder.heartbeat_s
            elif etag != watched[0]:
                raise RunLocked(self._refusal(holder))
            elif now > watched[1]:
                if self._take(etag):
                    self._say(
                        f"took run {self._run} over from job {holder.job_id}, which has not been "
                        f"heard of since {holder.heartbeat}"
                    )
                    break
                continue
            self._report(f"seeing whether job {holder.job_id} still holds run {self._run}")
            time.sleep(holder.heartbeat_s / _LOOKS_PER_HEARTBEAT)
        self._thread = threading.Thread(target=self._keep, name="run-lock", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise ``RunLost`` once another job has taken the lock; called at every step."""
        if self._lost is not None:
            raise RunLost(self._lost)

    def confirm(self) -> None:
        """Renew the lock now, or raise ``RunLost``: a job that was frozen does not know it yet."""
        self._renew()
        self.check()

    def release(self) -> None:
        """Release the lock, so that the next job need not wait."""
        self._ending.set()
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        if self._lost is None:
            try:
                self._write(replace(self._mine, heartbeat=now_utc(), released=True), self._etag)
            except StorageError as error:
                self._say(f"the lock of run {self._run} could not be released: {error}")

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def _found(self) -> tuple[Holder | None, str] | None:
        try:
            data, etag = self._objects.get_with_etag(RUN_LOCK)
        except ObjectMissing:
            return None
        return Holder.parse(data), etag

    def _is_earlier(self, holder: Holder) -> bool:
        """Detect an earlier attempt of this job, which Batch ended before starting this one."""
        mine = self._mine
        return holder.job_id == mine.job_id and holder.attempt <= mine.attempt

    def _take(self, etag: str | None) -> bool:
        """Try to take the lock; False if somebody else was faster."""
        now = now_utc()
        self._mine = replace(self._mine, since=now, heartbeat=now)
        try:
            self._write(self._mine, etag)
        except PreconditionFailed:
            return False
        return True

    def _write(self, holder: Holder, etag: str | None) -> None:
        data = holder.dump()
        self._unanswered.add(data)
        self._etag = self._objects.put(RUN_LOCK, data, if_absent=etag is None, if_match=etag)
        self._unanswered.clear()

    def _keep(self) -> None:
        while self._lost is None and not self._ending.wait(self._mine.heartbeat_s):
            try:
                self._renew()
            except Exception as error:
                # While storage fails, nobody else can take the lock either.
                self._say(f"the lock of run {self._run} could not be renewed: {error}")

    def _renew(self) -> None:
        with self._renewing:
            if self._lost is not None:
                return
            mine = replace(self._mine, heartbeat=now_utc())
            try:
                self._write(mine, self._etag)
            except PreconditionFailed:
                if (loss := self._loss()) is None:
                    self._write(mine, self._etag)
                self._lost = loss

    def _loss(self) -> str | None:
        """Explain who has written the lock; None if it was this job, which got no answer."""
        try:
            data, etag = self._objects.get_with_etag(RUN_LOCK)
        except ObjectMissing:
            return _loss(self._run, None)
        if data in self._unanswered:
            self._etag = etag
            return None
        return _loss(self._run, Holder.parse(data))

    def _refusal(self, holder: Holder) -> str:
        where = f" on {holder.node}" if holder.node else ""
        return (
            f"run {self._run} is being trained by job {holder.job_id} (attempt {holder.attempt})"
            f"{where} since {holder.since}; wait until it ends, stop it (python -m jobs stop "
            f"{self._run}), or submit under another --name"
        )
