"""A lock on a run's name, held by one submission at a time.

A submission lists the jobs with the name, then adds one. Two concurrent submissions would both add
a job, and both jobs would cost money. So each first records itself in ``submission.json`` with a
conditional put, which only one of them can win. It renews that record before it changes the run and
before it adds its job, because the intermediate steps may outlast the lock.
"""

from __future__ import annotations

import getpass
import json
import secrets
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta

from jobs.bucket.objects import Bucket
from jobs.errors import Refusal, is_ambiguous
from trainium_catalogue import contract
from trainium_catalogue.typed_json import read_json

_LIMIT = timedelta(minutes=5)
"""Time after which a submission has either added its job, visible in every list, or died. Measured
by the bucket's clock, since the clocks of two submitters may differ by more.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameHolder:
    """The newest submission of a name."""

    by: str
    at: str
    """Time in UTC, in ISO 8601 format."""
    token: str = ""
    """Random string that makes each write unique."""
    job_id: str | None = None
    """The job that it added."""
    ended: bool = False
    """True if it ended without a job."""
    stopped: str | None = None
    """Job ended by `jobs stop`, which is not moved to another zone."""

    def __str__(self) -> str:
        if self.job_id:
            return f"{self.by} submitted job {self.job_id} ({self.at})"
        return f"{self.by} is submitting a job (since {self.at})"

    def allows(self, known: Collection[str], age: timedelta) -> bool:
        """Return whether another submission may proceed.

        Args:
            known: Ids of the run's jobs that the other submission has listed.
            age: Time since this record was written.
        """
        return self.ended or self.job_id in known or age > _LIMIT

    def lets_move(self, job_id: str, known: Collection[str]) -> bool:
        """Return whether a job may be resubmitted in another zone.

        It may not if it was stopped, or if there is a newer job on the cluster or in the queue of a
        removed zone.

        Args:
            job_id: The newest of ``known``.
            known: Ids of the run's jobs in Batch's queues.
        """
        return job_id != self.stopped and (self.job_id is None or self.job_id in known)

    def encode(self) -> bytes:
        """Encode as JSON."""
        return json.dumps(asdict(self), indent=1).encode()

    @staticmethod
    def parse(data: bytes) -> NameHolder | None:
        """Parse the object; None if it is invalid, and so holds no lock."""
        try:
            return read_json(data, NameHolder)
        except ValueError:
            return None


class NameHold:
    """A submission's lock on its run's name."""

    def __init__(
        self, bucket: Bucket, run: str, *, known: Collection[str], moves: str | None = None
    ) -> None:
        """Acquire the lock.

        Raise ``Refusal`` if another submission holds it, or has submitted a job that is not in
        ``known``.

        Args:
            known: Ids of the run's jobs.
            moves: Job to resubmit in another zone; refused if the newest submission of any age
                does not allow it.
        """
        self._bucket, self._run = bucket, run
        self._key = contract.run_key(run, contract.RUN_SUBMISSION)
        self.adds_job = False
        """True once the next step adds the job; set by the submission, like ``job_id``."""
        self.job_id: str | None = None
        """The job that was added."""
        found = bucket.read_version(self._key)
        other = None if found is None else NameHolder.parse(found.data)
        if found is not None and other is not None and not other.allows(known, found.age):
            raise name_held(run, str(other))
        stopped = None if other is None else other.stopped
        if moves is not None and other is not None and not other.lets_move(moves, known):
            why = "it was stopped" if moves == stopped else str(other)
            raise Refusal(
                "not-moved",
                f"job {moves} of run {run} was not moved to another zone: {why}; submit the run "
                "again",
            )
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._mine = NameHolder(by=_user(), at=now, token=secrets.token_hex(8), stopped=stopped)
        self._etag = None if found is None else found.etag
        self._write(self._mine)

    def renew(self, *, stopped: str | None = None) -> None:
        """Renew the lock; raise ``Refusal`` if another submission has taken it.

        Args:
            stopped: Job that must no longer be moved to another zone.
        """
        stopped = stopped or self._mine.stopped
        self._mine = replace(self._mine, token=secrets.token_hex(8), stopped=stopped)
        self._write(self._mine)

    def end(self, error: BaseException | None) -> None:
        """Record the outcome of the submission.

        If a job may or may not have been added before ``error``, the lock is held until it
        expires.
        """
        is_certain = not self.adds_job or (isinstance(error, Exception) and not is_ambiguous(error))
        if self.job_id is None and not is_certain:
            return
        # Best effort: the lock expires within minutes.
        with suppress(Exception):
            self._write(replace(self._mine, job_id=self.job_id, ended=self.job_id is None))

    def _write(self, holder: NameHolder) -> None:
        etag = self._bucket.replace(self._key, holder.encode(), etag=self._etag)
        if etag is None:
            first = NameHolder.parse(self._bucket.read(self._key) or b"")
            raise name_held(self._run, str(first or "another submission came first"))
        self._etag = etag


def newest_holder(bucket: Bucket, run: str) -> NameHolder | None:
    """Return the newest submission of a name; None if there is none."""
    return NameHolder.parse(bucket.read(contract.run_key(run, contract.RUN_SUBMISSION)) or b"")


@contextmanager
def hold_name(
    bucket: Bucket, run: str, *, known: Collection[str], moves: str | None = None
) -> Iterator[NameHold]:
    """Lock a run's name while its job is submitted; see ``NameHold``."""
    hold = NameHold(bucket, run, known=known, moves=moves)
    try:
        yield hold
    except BaseException as error:
        hold.end(error)
        raise
    hold.end(None)


def _user() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a container's user may have no name
        return socket.gethostname()


def name_held(run: str, why: str) -> Refusal:
    """Build the refusal of a submission that lost the race."""
    return Refusal(
        "name-held",
        f"run {run} is being submitted twice at the same time: {why}; check `python -m jobs status "
        f"{run}`, and submit again in {_LIMIT.seconds // 60} minutes, or with another --name",
    )
