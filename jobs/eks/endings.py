"""How attempts ended whose pods are gone: what their launchers have left in the bucket.

Volcano deletes the pods of an attempt that another one follows, and nodes that are scaled away take
theirs with them, logs included.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from jobs.bucket.objects import Bucket
from trainium_catalogue.contract import attempts_prefix

_NAME = re.compile(r"(?P<attempt>\d+)-node-(?P<node>\d+)\.json")
_LOOK_AGAIN_S = 15.0
"""The nodes of a main node that was killed notice and say so later than Volcano restarts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What a launcher said last."""

    exit_code: int
    reason: str


Endings = Mapping[int, Ending]
"""By the number of the attempt."""


@dataclass(slots=True)
class EndingReader:
    """Reads the endings of jobs, each once it is there."""

    bucket: Bucket
    _found: dict[str, tuple[float, Endings]] = field(default_factory=dict)

    def read(self, run: str, job_id: str, *, attempts: int) -> Endings:
        """Endings of the first ``attempts`` attempts of a job, as far as they are known.

        They only explain, so a bucket that does not answer explains nothing.
        """
        looked_at, known = self._found.get(job_id, (float("-inf"), {}))
        now = time.monotonic()
        if len(known) >= attempts or now - looked_at < _LOOK_AGAIN_S:
            return known
        try:
            known = read_endings(self.bucket, run, job_id)
        except Exception:
            known = {}
        self._found[job_id] = now, known
        return known


def read_endings(bucket: Bucket, run: str, job_id: str) -> dict[int, Ending]:
    """What the main node has left of each attempt, or the first of the others."""
    prefix = attempts_prefix(run, job_id)
    first: dict[int, int] = {}
    for name in bucket.names(prefix):
        if match := _NAME.fullmatch(name):
            attempt, node = int(match["attempt"]), int(match["node"])
            first[attempt] = min(node, first.get(attempt, node))
    found: dict[int, Ending] = {}
    for attempt, node in first.items():
        document = bucket.document(f"{prefix}{attempt}-node-{node}.json") or {}
        if isinstance(document.get("code"), int):
            reason = str(document.get("reason") or "")
            found[attempt] = Ending(exit_code=document["code"], reason=reason)
    return found
