"""The node scaler's snapshot of the cluster, since the function cannot reach the cluster's API."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from jobs.aws import Aws
from jobs.batch.service import BatchService
from jobs.bucket.objects import Bucket
from jobs.deployment import Deployment
from jobs.eks.cluster import Cluster, Json
from jobs.eks.service import EksService
from jobs.orchestrators import JobService
from trainium_catalogue import contract

_MAX_AGE = timedelta(minutes=15)
"""Maximum age of a usable snapshot; the node scaler writes one at least every five minutes."""


class NotInSnapshot(LookupError):
    """Raised if the snapshot does not contain an object."""

    status = 404


class ClusterSnapshot(Cluster):
    """Read-only cluster client backed by a snapshot."""

    def __init__(
        self, aws: Aws, cluster: str, namespace: str, lists: Mapping[str, list[Json]]
    ) -> None:
        super().__init__(aws, cluster, namespace)
        self._lists = lists

    def get(self, path: str, **query: str) -> Json:
        """Return an object, or a list filtered by the query."""
        collection, _, last = path.rpartition("/")
        if last in self._lists:
            return {"items": [each for each in self._lists[last] if _is_selected(each, query)]}
        for each in self._lists[collection.rpartition("/")[2]]:
            if each["metadata"]["name"] == last:
                return each
        raise NotInSnapshot(path)


def _is_selected(item: Json, query: Mapping[str, str]) -> bool:
    label, _, value = query.get("labelSelector", "").partition("=")
    field, _, name = query.get("fieldSelector", "").partition("=")
    assert field in ("", "involvedObject.name"), field
    return (not label or (item["metadata"].get("labels") or {}).get(label) == value) and (
        not field or item["involvedObject"].get("name") == name
    )


def services_in(aws: Aws, target: Deployment, bucket: Bucket) -> Iterator[JobService]:
    """Yield Batch, and the cluster if the deployment has one with a recent snapshot."""
    yield BatchService(aws, target)
    if target.eks is None:
        return
    version = bucket.read_version(contract.CLUSTER_SNAPSHOT)
    if version is None or version.age > _MAX_AGE:
        print("the node scaler has written no recent snapshot: the cluster's runs are unknown")
        return
    lists: dict[str, Any] = json.loads(gzip.decompress(version.data))
    cluster = ClusterSnapshot(aws, target.eks.cluster, target.eks.namespace, lists)
    yield EksService(aws, target, cluster)
