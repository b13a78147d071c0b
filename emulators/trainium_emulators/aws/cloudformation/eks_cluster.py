"""The Kubernetes cluster behind the rehearsed EKS cluster: there is one, started when needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from moto.cloudformation.exceptions import ValidationError

from trainium_emulators.aws.cloudformation.spi import Properties
from trainium_emulators.kubernetes import Cluster, errors


class KubernetesCluster:
    """Manifests in, objects in the API server out."""

    def __init__(self) -> None:
        self._start: Callable[[], Cluster] | None = None
        self._cluster: Cluster | None = None
        self._lock = threading.Lock()

    def use(self, start: Callable[[], Cluster]) -> None:
        """Say how the cluster is started."""
        self._start = start

    @property
    def running(self) -> Cluster:
        """The cluster, which is started if it is not up."""
        with self._lock:
            if self._cluster is None:
                if self._start is None:
                    raise ValidationError(message="this rehearsal has no Kubernetes cluster")
                self._cluster = self._start()
            return self._cluster

    def apply(self, manifest: Properties) -> None:
        """Create an object or change the one that is there; says why the API server refuses."""
        try:
            self.running.apply(manifest)
        except errors.ApiError as error:
            raise ValidationError(message=f"{describe(manifest)}: {error}") from error

    def delete(self, manifest: Properties) -> None:
        """Delete an object; that it is gone already is no error, as with kubectl delete."""
        store = self.running.store
        kind = store.find_kind(manifest["apiVersion"], manifest["kind"])
        metadata = manifest["metadata"]
        namespace = metadata.get("namespace", "default") if kind.namespaced else ""
        try:
            store.delete(kind, namespace, metadata["name"])
        except errors.ApiError as error:
            if error.code != 404:
                raise ValidationError(message=f"{describe(manifest)}: {error}") from error

    def stop(self) -> None:
        """End all pods and the API server."""
        if self._cluster is not None:
            self._cluster.stop()
            self._cluster = None


CLUSTER = KubernetesCluster()


def describe(manifest: Any) -> str:
    """Kind and name, for messages."""
    return f"{manifest.get('kind')} {manifest.get('metadata', {}).get('name')}"
