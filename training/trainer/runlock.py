"""One job at a time under a run's name: a lock in storage that its holder renews."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from types import TracebackType

from training.storage import ObjectMissing, Objects, PreconditionFailed, StorageError
from trainium_catalogue.contract import RUN_LOCK

HEARTBEAT_S = 10.0
_MISSED = 3
"""Heartbeats after which a holder counts as dead."""
_LOOKS_PER_HEARTBEAT = 5


class RunLocked(ValueError):
    """Another job trains under the run's name."""


class RunLost(ValueError):
    """Another job has taken the run's name from this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """What ``lock.json`` says."""

    job_id: str
    attempt: int
    node: str
    since: str
    """When the job took the lock, ISO 8601."""
    heartbeat: str
    """When it last renewed it."""
    heartbeat_s: float
    """How often it does."""
    released: bool = False

    def dump(self) -> bytes:
        """As JSON."""
        return json.dumps(asdict(self), indent=2).encode() + b"\n"

    @staticmethod
    def parse(data: bytes) -> Holder | None:
        """Read it; None if it is not a lock of this version."""
        try:
            return Holder(**json.loads(data))
        except (TypeError, ValueError):
            return None


class RunLock:
    """The lock of the run whose root ``objects`` is; the main node's rank 0 holds it.

    Built on conditional writes (S3's If-None-Match and If-Match), so that of two jobs that start
    together one wins. Whether a holder lives is seen from its heartbeat changing, not from the
    time in it: no clocks are compared.
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
        self._lost: str | None = None
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Take the lock and keep it; ``RunLocked`` when another job is seen to hold it.

        A free lock, a released one, and one of an earlier attempt of this job are taken at once.
        Another job's is watched: it renews within a heartbeat (10 s), or is dead after three.
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
        self._thread = threading.Thread(target=self._renew, name="run-lock", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise ``RunLost`` once another job has taken the lock; call it at every step."""
        if self._lost is not None:
            raise RunLost(self._lost)

    def release(self) -> None:
        """Let the next job in at once."""
        self._ending.set()
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        if self._lost is None:
            try:
                self._write(replace(self._mine, heartbeat=_now(), released=True), self._etag)
            except StorageError as error:
                self._say(f"the lock of run {self._run} could not be released: {error}")

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _found(self) -> tuple[Holder | None, str] | None:
        try:
            data, etag = self._objects.get_with_etag(RUN_LOCK)
        except ObjectMissing:
            return None
        return Holder.parse(data), etag

    def _is_earlier(self, holder: Holder) -> bool:
        """Whether it is an attempt of this job that Batch has ended before it began this one."""
        mine = self._mine
        return holder.job_id == mine.job_id and holder.attempt <= mine.attempt

    def _take(self, etag: str | None) -> bool:
        """Whether this job has it now; somebody else may have been faster."""
        now = _now()
        self._mine = replace(self._mine, since=now, heartbeat=now)
        try:
            self._write(self._mine, etag)
        except PreconditionFailed:
            return False
        return True

    def _write(self, holder: Holder, etag: str | None) -> None:
        data = holder.dump()
        if etag is None:
            self._etag = self._objects.put(RUN_LOCK, data, if_absent=True)
        else:
            self._etag = self._objects.put(RUN_LOCK, data, if_match=etag)

    def _renew(self) -> None:
        while not self._ending.wait(self._mine.heartbeat_s):
            try:
                self._write(replace(self._mine, heartbeat=_now()), self._etag)
            except PreconditionFailed:
                self._lost = self._loss()
                return
            except Exception as error:
                # As long as storage fails nobody else can take the lock either.
                self._say(f"the lock of run {self._run} could not be renewed: {error}")

    def _loss(self) -> str:
        try:
            found = self._found()
        except Exception:
            found = None
        holder = found[0] if found is not None else None
        by = "somebody has removed it"
        if holder is not None:
            by = f"job {holder.job_id} (attempt {holder.attempt}) has taken it at {holder.since}"
        return (
            f"this job no longer holds run {self._run}: {by}; stop one of the two, or give each "
            "its own --name"
        )

    def _refusal(self, holder: Holder) -> str:
        where = f" on {holder.node}" if holder.node else ""
        return (
            f"run {self._run} is being trained by job {holder.job_id} (attempt {holder.attempt})"
            f"{where} since {holder.since}; wait until it ends, stop it (python -m jobs stop "
            f"{self._run}), or submit under another --name"
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
