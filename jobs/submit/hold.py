"""Only one submission at a time holds a run's name.

A submission lists the jobs of the name and then adds one. Two that do so at the same time would
both add one, and both jobs would be paid for. So each first writes itself into
``submission.json``, with a conditional put that only one of them can win.
"""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from jobs.bucket.objects import Bucket
from jobs.errors import Refusal
from trainium_catalogue import contract

_LIMIT = timedelta(minutes=5)
"""After this time a submission has either added its job, and every list has it, or has died."""


@dataclass(slots=True, kw_only=True)
class NameHolder:
    """The newest submission of a name."""

    by: str
    at: str
    """Time in UTC, as in ISO 8601."""
    job_id: str | None = None
    """The job that it has added."""
    ended: bool = False
    """True if it ended without a job."""

    def __str__(self) -> str:
        what = f"submitted job {self.job_id}" if self.job_id else "is submitting a job"
        return f"{self.by} {what} (since {self.at})"

    def allows(self, known: Collection[str], now: datetime) -> bool:
        """Tell whether another one may submit that has found the jobs ``known``."""
        age = now - datetime.fromisoformat(self.at)
        return self.ended or self.job_id in known or abs(age) > _LIMIT


@contextmanager
def hold_name(bucket: Bucket, run: str, *, known: Collection[str]) -> Iterator[NameHolder]:
    """Hold a run's name while its job is submitted; the caller sets ``job_id``.

    Raises ``Refusal`` if another submission holds it, or has submitted a job that is not among
    the jobs ``known`` of the run.
    """
    key = contract.run_key(run, contract.RUN_SUBMISSION)
    found = bucket.read_version(key)
    now = datetime.now(UTC)
    if found is not None and (other := _parsed(found[0])) and not other.allows(known, now):
        raise name_held(run, str(other))
    mine = NameHolder(by=_user(), at=now.isoformat(timespec="seconds"))
    if not bucket.replace(key, _encoded(mine), etag=None if found is None else found[1]):
        first = _parsed(bucket.read(key) or b"")
        raise name_held(run, str(first or "another submission was first"))
    try:
        yield mine
    finally:
        mine.ended = mine.job_id is None
        # Whatever goes wrong now, the name is free in a few minutes.
        with suppress(Exception):
            bucket.write(key, _encoded(mine))


def _user() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a container's user may have no name
        return socket.gethostname()


def _encoded(holder: NameHolder) -> bytes:
    return json.dumps(asdict(holder), indent=1).encode()


def _parsed(data: bytes) -> NameHolder | None:
    """Read the object; None for something else, which holds nothing."""
    try:
        document: dict[str, Any] = json.loads(data)
        datetime.fromisoformat(document["at"])
        return NameHolder(**document)
    except (KeyError, TypeError, ValueError):
        return None


def name_held(run: str, why: str) -> Refusal:
    """Make the refusal of a submission that came second."""
    return Refusal(
        "name-held",
        f"run {run} is being submitted twice at the same time: {why}; look with "
        f"`python -m jobs status {run}`, and submit again in {_LIMIT.seconds // 60} minutes, or "
        "with another --name",
    )
