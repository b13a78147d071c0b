"""Only one submission at a time holds a run's name.

A submission lists the jobs of the name and then adds one. Two that do so at the same time would
both add one, and both jobs would be paid for. So each first writes itself into
``submission.json``, with a conditional put that only one of them can win, and again before it
changes the run and before it adds its job, because what comes between may take longer than the
name is held.
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
"""After this time a submission has either added its job, and every list has it, or has died. The
bucket's clock tells it: those of two submitters may differ by more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameHolder:
    """The newest submission of a name."""

    by: str
    at: str
    """Time in UTC, as in ISO 8601."""
    token: str = ""
    """Random, so that no two submissions write the same."""
    job_id: str | None = None
    """The job that it has added."""
    ended: bool = False
    """True if it ended without a job."""

    def __str__(self) -> str:
        what = f"submitted job {self.job_id}" if self.job_id else "is submitting a job"
        return f"{self.by} {what} (since {self.at})"

    def allows(self, known: Collection[str], age: timedelta) -> bool:
        """Tell whether another one may submit that has found the jobs ``known``.

        Args:
            age: Time since this one has written itself.
        """
        return self.ended or self.job_id in known or age > _LIMIT

    def encode(self) -> bytes:
        """Encode as JSON."""
        return json.dumps(asdict(self), indent=1).encode()

    @staticmethod
    def parse(data: bytes) -> NameHolder | None:
        """Read the object; None for something else, which holds nothing."""
        try:
            return read_json(data, NameHolder)
        except ValueError:
            return None


class NameHold:
    """A submission's hold of its run's name."""

    def __init__(self, bucket: Bucket, run: str, *, known: Collection[str]) -> None:
        """Take the name; ``known`` are the ids of the run's jobs.

        Raises ``Refusal`` if another submission holds it, or has submitted a job that is not
        among ``known``.
        """
        self._bucket, self._run = bucket, run
        self._key = contract.run_key(run, contract.RUN_SUBMISSION)
        self.adds_job = False
        """True if adding the job comes next; set by the submission, as is the next."""
        self.job_id: str | None = None
        """The job that was added."""
        found = bucket.read_version(self._key)
        other = None if found is None else NameHolder.parse(found.data)
        if found is not None and other is not None and not other.allows(known, found.age):
            raise name_held(run, str(other))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._mine = NameHolder(by=_user(), at=now, token=secrets.token_hex(8))
        self._etag = None if found is None else found.etag
        self._write(self._mine)

    def renew(self) -> None:
        """Hold the name for as long again; ``Refusal`` if another has it."""
        self._mine = replace(self._mine, token=secrets.token_hex(8))
        self._write(self._mine)

    def end(self, error: BaseException | None) -> None:
        """Write how the submission has ended.

        If ``error`` leaves open whether a job was added, the name is held for its whole time.
        """
        known = not self.adds_job or (isinstance(error, Exception) and not is_ambiguous(error))
        if self.job_id is None and not known:
            return
        # Whatever goes wrong now, the name is free in a few minutes.
        with suppress(Exception):
            self._write(replace(self._mine, job_id=self.job_id, ended=self.job_id is None))

    def _write(self, holder: NameHolder) -> None:
        etag = self._bucket.replace(self._key, holder.encode(), etag=self._etag)
        if etag is None:
            first = NameHolder.parse(self._bucket.read(self._key) or b"")
            raise name_held(self._run, str(first or "another submission was first"))
        self._etag = etag


@contextmanager
def hold_name(bucket: Bucket, run: str, *, known: Collection[str]) -> Iterator[NameHold]:
    """Hold a run's name while its job is submitted; see ``NameHold``."""
    hold = NameHold(bucket, run, known=known)
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
    """Make the refusal of a submission that came second."""
    return Refusal(
        "name-held",
        f"run {run} is being submitted twice at the same time: {why}; look with "
        f"`python -m jobs status {run}`, and submit again in {_LIMIT.seconds // 60} minutes, or "
        "with another --name",
    )
