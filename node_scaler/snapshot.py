"""Write snapshots of the cluster to the bucket, for the notification function.

The function runs outside the cluster, whose API may allow only certain addresses.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from node_scaler.cluster import ClusterClient, Json
from node_scaler.rounds import JOBS, NODES
from trainium_catalogue.contract import CLUSTER_SNAPSHOT

_COLLECTIONS = (
    JOBS,
    "/apis/scheduling.volcano.sh/v1beta1/namespaces/{namespace}/podgroups",
    "/api/v1/namespaces/{namespace}/pods",
    "/api/v1/namespaces/{namespace}/events",
    NODES,
)
"""Jobs come first, because the pods of an ended job exist long enough to be read after it."""
SNAPSHOT_PERIOD = timedelta(minutes=1)
_REWRITE_PERIOD = timedelta(minutes=5)
"""Interval for rewriting an unchanged snapshot, so that it does not look stale."""


@dataclass(slots=True, kw_only=True)
class ClusterSnapshots:
    """Writes a snapshot when it has changed."""

    cluster: ClusterClient
    namespace: str
    s3: Any
    bucket: str
    period: timedelta
    say: Callable[[str], None]
    _due: datetime | None = field(default=None, init=False)
    _written: datetime | None = field(default=None, init=False)
    _data: bytes = field(default=b"", init=False)

    def write(self, now: datetime) -> None:
        """Write a changed snapshot; a failure is only logged, so that scaling continues."""
        if self._due is not None and now < self._due:
            return
        self._due = now + self.period
        try:
            lists = {
                path.rpartition("/")[2]: [_without_noise(each) for each in self._items(path)]
                for path in _COLLECTIONS
            }
            data = gzip.compress(json.dumps(lists).encode(), mtime=0)
            if data == self._data and self._written and now - self._written < _REWRITE_PERIOD:
                return
            self.s3.put_object(Bucket=self.bucket, Key=CLUSTER_SNAPSHOT, Body=data)
            self._data, self._written = data, now
        except Exception as error:
            self.say(f"snapshot for notifications failed: {type(error).__name__}: {error}")

    def _items(self, path: str) -> list[Json]:
        return self.cluster.items(path.format(namespace=self.namespace))


def _without_noise(entry: Json) -> Json:
    """Omit unused fields: managed fields, a node's images, its heartbeats, and resource versions.

    The first two make up most of the size of many objects; heartbeats change a node every
    few minutes.
    """
    metadata = _without(entry["metadata"], "managedFields", "resourceVersion")
    kept = {**entry, "metadata": metadata}
    if status := entry.get("status"):
        kept["status"] = _without(status, "images")
        if conditions := status.get("conditions"):
            stable = [_without(each, "lastHeartbeatTime") for each in conditions]
            kept["status"]["conditions"] = stable
    return kept


def _without(entry: Json, *fields: str) -> Json:
    return {name: value for name, value in entry.items() if name not in fields}
