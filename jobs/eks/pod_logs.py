"""Pod logs behind the interface of CloudWatch's streams: pages that start where the last one ended.

A follower keeps each pod's log open. Volcano deletes the pods of a failed attempt at once, so
polling the logs would miss the last lines, which tell the reason.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from jobs.eks.cluster import PODS, Cluster, from_kubernetes, is_missing, status_of

_WAIT_S = 5.0
"""Pause between two attempts to open a log."""
_SILENCE_S = 300.0
"""Silence after which the connection may be dead and is opened again."""


@dataclass(slots=True)
class _Tail:
    """One pod's log as read so far."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    is_over: bool = False
    _newest: str = ""
    _with_newest: int = 0
    _known: str = ""
    _with_known: int = 0

    def reopen(self) -> None:
        """Prepare for a page that begins with lines already read."""
        self._known, self._with_known = self._newest, self._with_newest

    def take(self, line: str) -> None:
        """Add a line with the kubelet's time stamp, unless it has already been read."""
        stamp, _, message = line.partition(" ")
        # Stamps have nine fractional digits and one time zone, so they sort chronologically. Lines
        # written together may share a stamp.
        if stamp < self._known:
            return
        if stamp == self._known and self._with_known:
            self._with_known -= 1
            return
        self._with_newest = self._with_newest + 1 if stamp == self._newest else 1
        self._newest = stamp
        self.lines.append({"timestamp": _ms(stamp), "message": message})


class PodLogs:
    """Emulates the CloudWatch Logs client; a stream is ``<pod>/<uid>``."""

    def __init__(self, cluster: Cluster, *, follow: bool) -> None:
        self._cluster = cluster
        self._follow = follow
        self._tails: dict[str, _Tail] = {}
        self._lock = threading.Lock()

    def get_log_events(self, **kwargs: Any) -> Mapping[str, Any]:
        """Return the lines after the token, which is a count of lines."""
        stream = str(kwargs["logStreamName"])
        begin = int(kwargs.get("nextToken", "0"))
        with self._lock:
            tail = self._tails.get(stream)
            if tail is None:
                tail = self._tails[stream] = _Tail()
                self._begin(stream, tail)
        lines = tail.lines[begin:]
        return {"events": lines, "nextForwardToken": str(begin + len(lines))}

    def _begin(self, stream: str, tail: _Tail) -> None:
        if self._follow:
            threading.Thread(target=self._keep_reading, args=(stream, tail), daemon=True).start()
            return
        try:
            self._read(stream, tail, follow=False)
        except Exception as error:
            # The kubelet of one node does not answer; the others' lines matter all the more.
            said = from_kubernetes(error)
            if said is None or status_of(error) in (401, 403):
                raise
            tail.lines.append(
                {"timestamp": _now_ms(), "message": f"(the log cannot be read: {said.message})"}
            )

    def _keep_reading(self, stream: str, tail: _Tail) -> None:
        pause = threading.Event()
        while not tail.is_over:
            try:
                self._read(stream, tail, follow=True)
            except Exception:
                # The pod may have ended or the connection broken: the follower keeps asking the
                # cluster about the job and reports what is wrong.
                pause.wait(_WAIT_S)

    def _read(self, stream: str, tail: _Tail, *, follow: bool) -> None:
        name, _, uid = stream.partition("/")
        query = {"timestamps": "true", **({"follow": "true"} if follow else {})}
        try:
            if self._cluster.get(f"{PODS}/{name}")["metadata"]["uid"] != uid:
                tail.is_over = True
                return
            path = f"{PODS}/{name}/log"
            tail.reopen()
            with self._cluster.open("GET", path, query=query, timeout=(5, _SILENCE_S)) as answer:
                for line in answer:
                    tail.take(line.decode(errors="replace").rstrip("\r\n"))
            # The server ends a followed log when the container ends, or after some hours.
            tail.is_over = not follow or self._has_ended(name, uid)
        except Exception as error:
            if not is_missing(error):
                raise
            tail.is_over = True

    def _has_ended(self, name: str, uid: str) -> bool:
        pod = self._cluster.get(f"{PODS}/{name}")
        is_same = pod["metadata"]["uid"] == uid
        return not is_same or pod["status"].get("phase") in ("Succeeded", "Failed")


def _now_ms() -> int:
    return round(time.time() * 1000)


def _ms(stamp: str) -> int:
    # fromisoformat accepts six fractional digits; Kubernetes writes nine.
    whole, _, fraction = stamp.rstrip("Z").partition(".")
    return round(datetime.fromisoformat(f"{whole}.{fraction[:6] or '0'}+00:00").timestamp() * 1000)
