"""A lock that allows only one job at a time to use a run's name."""

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
"""Upper bound on the heartbeat interval read from a lock."""
_MAX_MISSED = 3
"""Number of missed heartbeats after which a holder counts as dead."""
_POLLS_PER_HEARTBEAT = 5


class RunLocked(ValueError):
    """Another job is using the run's name."""


class RunLost(ValueError):
    """Another job has taken over the run's name from this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The content of ``lock.json``."""

    job_id: str
    attempt: Positive
    node: str
    """The node that holds the lock."""
    since: Timestamp
    """Time at which the job took the lock."""
    heartbeat: Timestamp
    """Time of the latest renewal."""
    heartbeat_s: Annotated[float, Keywords(exclusiveMinimum=0)]
    """Interval between heartbeats in seconds; a holder that misses three loses the lock."""
    released: bool = False
    """True once the job has ended, and the next one may start."""

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_s <= _MAX_HEARTBEAT_S:
            raise ValueError(f"heartbeat_s is {self.heartbeat_s}, not in (0, {_MAX_HEARTBEAT_S:g}]")

    def dump(self) -> bytes:
        """Encode as JSON."""
        return json.dumps(asdict(self), indent=2).encode() + b"\n"

    @staticmethod
    def parse(data: bytes) -> Holder | None:
        """Parse a lock; None if it is not in this version's format."""
        try:
            return read_json(data, Holder)
        except ValueError:
            return None


def check_holder(objects: Objects, job_id: str, attempt: int, *, run: str) -> None:
    """Raise ``RunLost`` if another job holds the lock below ``objects``.

    For processes of a job that do not hold the lock themselves. Ignores a missing or unreadable
    lock, which its holder will handle.
    """
    try:
        holder = Holder.parse(objects.get(RUN_LOCK))
    except ObjectMissing:
        return
    if holder is not None and (holder.job_id, holder.attempt) != (job_id, attempt):
        raise RunLost(_loss(run, holder))


def _loss(run: str, holder: Holder | None) -> str:
    by = "its lock was deleted or overwritten"
    if holder is not None:
        by = f"job {holder.job_id} (attempt {holder.attempt}) took it at {holder.since}"
    return (
        f"this job no longer holds run {run}: {by}; stop one of the two, or give each its own "
        "--name"
    )


class RunLock:
    """The lock of the run with root ``objects``, held on the main node.

    The holder is rank 0 or, for a user's program, the process that prepares the node.

    Uses conditional writes (S3's If-None-Match and If-Match), so that only one of two jobs that
    start together wins. A holder is alive as long as its heartbeat changes; clocks are not
    compared.
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
        """Writes without a response, which may or may not have succeeded."""
        self._lost: str | None = None
        self._renewing = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Acquire the lock and keep renewing it; raise ``RunLocked`` if another job holds it.

        A lock that is free, released or held by an earlier attempt of this job is taken
        immediately. Another job's lock is watched for up to three heartbeats (of 10 s): if it is
        renewed, this job is refused; otherwise the lock is stale and is taken over.
        """
        watched: tuple[str, float] | None = None
        while True:
            found = self._read()
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
                watched = etag, now + _MAX_MISSED * holder.heartbeat_s
            elif etag != watched[0]:
                raise RunLocked(self._refusal(holder))
            elif now > watched[1]:
                if self._take(etag):
                    self._say(
                        f"took over run {self._run} from job {holder.job_id}, whose last heartbeat "
                        f"was at {holder.heartbeat}"
                    )
                    break
                continue
            self._report(f"checking whether job {holder.job_id} still holds run {self._run}")
            time.sleep(holder.heartbeat_s / _POLLS_PER_HEARTBEAT)
        self._thread = threading.Thread(target=self._keep_renewing, name="run-lock", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise ``RunLost`` if another job has taken the lock; makes no request."""
        if self._lost is not None:
            raise RunLost(self._lost)

    def confirm(self) -> None:
        """Renew the lock now; raise ``RunLost`` if this job was frozen and replaced."""
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

    def _read(self) -> tuple[Holder | None, str] | None:
        try:
            data, etag = self._objects.get_with_etag(RUN_LOCK)
        except ObjectMissing:
            return None
        return Holder.parse(data), etag

    def _is_earlier(self, holder: Holder) -> bool:
        """Return whether the holder is an earlier attempt of this job, which must have ended."""
        mine = self._mine
        return holder.job_id == mine.job_id and holder.attempt <= mine.attempt

    def _take(self, etag: str | None) -> bool:
        """Try to take the lock; return False if another job was first."""
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

    def _keep_renewing(self) -> None:
        while self._lost is None and not self._ending.wait(self._mine.heartbeat_s):
            try:
                self._renew()
            except Exception as error:
                # While storage fails, no other job can take the lock either.
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
        """Explain the loss of the lock; None if its content is an unanswered write of this job."""
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
            f"run {self._run} has been in use by job {holder.job_id} (attempt {holder.attempt})"
            f"{where} since {holder.since}; wait for it to end, stop it (python -m jobs stop "
            f"{self._run}), or submit under another --name"
        )
