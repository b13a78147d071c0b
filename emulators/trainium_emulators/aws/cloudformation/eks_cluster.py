"""Starts the one Kubernetes cluster behind EKS, and applies the CDK's manifests to it.

On AWS the CDK's kubectl handler, a Lambda function, applies manifests and installs charts. The
emulator reads the handler's custom resources, and only records charts.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from moto.cloudformation.exceptions import ValidationError
from moto.eks.models import eks_backends

from trainium_emulators.aws.cloudformation.contributions import (
    AccountRegion,
    Contribution,
    ModeledResource,
    Properties,
    PropertyChange,
)
from trainium_emulators.kubernetes import ClusterEmulator, errors
from trainium_emulators.kubernetes.resources import NAMESPACE, POD
from trainium_emulators.nodes.events import emit

MANIFEST = "Custom::AWSCDK-EKS-KubernetesResource"
HELM_CHART = "Custom::AWSCDK-EKS-HelmChart"
_TERMINATION_LIMIT_S = 30.0
"""Maximum wait for the pods of a deleted namespace to terminate: their default grace period."""
_POLL_S = 0.05


class KubernetesCluster:
    """The cluster to which manifests are applied."""

    def __init__(self) -> None:
        self._start: Callable[[], ClusterEmulator] | None = None
        self._cluster: ClusterEmulator | None = None
        self._lock = threading.Lock()

    def use(self, start: Callable[[], ClusterEmulator]) -> None:
        """Set the function that starts the cluster."""
        self._start = start

    @property
    def running(self) -> ClusterEmulator:
        """Return the cluster, starting it if needed."""
        with self._lock:
            if self._cluster is None:
                if self._start is None:
                    raise ValidationError(message="this rehearsal has no Kubernetes cluster")
                self._cluster = self._start()
            return self._cluster

    def apply(self, manifest: Properties) -> None:
        """Create or update an object; raise an error with the API server's reason if it refuses."""
        try:
            self.running.apply(manifest)
        except errors.ApiError as error:
            raise ValidationError(message=f"{describe(manifest)}: {error}") from error

    def delete(self, manifest: Properties) -> None:
        """Delete an object if it exists, like the CDK's handler."""
        store = self.running.store
        kind = store.find_kind(manifest["apiVersion"], manifest["kind"])
        metadata = manifest["metadata"]
        namespace = metadata.get("namespace", "default") if kind.namespaced else ""
        try:
            store.delete(kind, namespace, metadata["name"])
        except errors.ApiError as error:
            if error.code != 404:
                raise ValidationError(message=f"{describe(manifest)}: {error}") from error
        if kind == NAMESPACE:
            # kubectl waits for the namespace, which remains until its last pod has terminated.
            deadline_s = time.monotonic() + _TERMINATION_LIMIT_S
            while store.list(POD, metadata["name"]) and time.monotonic() < deadline_s:
                time.sleep(_POLL_S)

    def end_jobs(self) -> None:
        """Terminate all pods of jobs."""
        if self._cluster is not None:
            self._cluster.end_jobs()

    def stop(self) -> None:
        """Terminate all pods and stop the API server."""
        if self._cluster is not None:
            self._cluster.stop()
            self._cluster = None


CLUSTER = KubernetesCluster()


def describe(manifest: Any) -> str:
    """Return kind and name for messages."""
    return f"{manifest.get('kind')} {manifest.get('metadata', {}).get('name')}"


def _check_cluster(properties: Properties, place: AccountRegion) -> None:
    """Let moto refuse a cluster that does not exist."""
    eks_backends[place.account_id][place.region].describe_cluster(properties["ClusterName"])


# --- manifests -----------------------------------------------------------------------------------


def _apply_manifest(name: str, properties: Properties, place: AccountRegion) -> ModeledResource:
    """Custom::AWSCDK-EKS-KubernetesResource: applied to the API server, which validates it."""
    _check_cluster(properties, place)
    for manifest in _parse(properties):
        CLUSTER.apply(manifest)
    return ModeledResource(name)


def _parse(properties: Properties) -> list[Properties]:
    manifests: list[Properties] = json.loads(properties["Manifest"])
    return manifests


def _update_manifest(resource: Any, change: PropertyChange, place: AccountRegion) -> Any:
    """Apply again, then delete objects removed from the manifest (``kubectl apply --prune``)."""
    change.refuse_others(MANIFEST, frozenset({"Manifest", "PruneLabel"}))
    _apply_manifest("", change.properties, place)
    kept = [_identity(manifest) for manifest in _parse(change.properties)]
    for manifest in reversed(_parse(resource.rehearsal_properties)):
        if _identity(manifest) not in kept:
            CLUSTER.delete(manifest)
    return resource


def _identity(manifest: Properties) -> tuple[str, ...]:
    metadata = manifest["metadata"]
    namespace = metadata.get("namespace", "")
    return manifest["apiVersion"], manifest["kind"], namespace, metadata["name"]


def _delete_manifest(_: Any, properties: Properties, place: AccountRegion) -> None:
    for manifest in reversed(_parse(properties)):
        CLUSTER.delete(manifest)


# --- charts --------------------------------------------------------------------------------------


def _install_chart(name: str, properties: Properties, place: AccountRegion) -> ModeledResource:
    """Custom::AWSCDK-EKS-HelmChart: checked and recorded only; charts cannot be fetched here."""
    _check_cluster(properties, place)
    check_release(properties)
    _record("installed", properties)
    return ModeledResource(name)


def check_release(properties: Properties) -> None:
    """Refuse releases that Helm refuses, and unpinned charts, whose version changes over time."""
    release = properties["Release"]
    chart, repository = properties.get("Chart", ""), properties.get("Repository", "")
    if not properties.get("Version"):
        raise ValidationError(message=f"Helm release {release} specifies no chart version")
    if not (chart.startswith("oci://") or repository.startswith(("https://", "oci://"))):
        raise ValidationError(
            message=f"Helm release {release} has no https:// or oci:// repository or chart"
        )
    if not isinstance(json.loads(properties.get("Values", "{}")), dict):
        raise ValidationError(message=f"values of Helm release {release} are not a mapping")


def _record(action: str, properties: Properties) -> None:
    emit(
        "helm-release",
        action=action,
        release=properties["Release"],
        chart=properties.get("Chart", ""),
        repository=properties.get("Repository", ""),
        version=properties.get("Version", ""),
        namespace=properties.get("Namespace", "default"),
    )


def _update_chart(resource: Any, change: PropertyChange, _: AccountRegion) -> Any:
    change.refuse_others(
        HELM_CHART, frozenset({"Chart", "Repository", "Timeout", "Values", "Version", "Wait"})
    )
    check_release(change.properties)
    _record("upgraded", change.properties)
    return resource


CONTRIBUTION = Contribution(
    create={MANIFEST: _apply_manifest, HELM_CHART: _install_chart},
    update={MANIFEST: _update_manifest, HELM_CHART: _update_chart},
    delete={
        MANIFEST: _delete_manifest,
        HELM_CHART: lambda _, properties, place: _record("uninstalled", properties),
    },
)
