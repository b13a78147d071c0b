"""The Deployment controller: keeps pods running, without intermediate ReplicaSets."""

from __future__ import annotations

import hashlib
import json
import threading
import traceback

from trainium_emulators.kubernetes import errors, volcano_objects
from trainium_emulators.kubernetes.kubelet import Kubelet
from trainium_emulators.kubernetes.resources import DEPLOYMENT, POD, Json
from trainium_emulators.kubernetes.store import Store
from trainium_emulators.kubernetes.volcano_scheduler import GangScheduler

_TICK_S = 0.5
_HASH = "pod-template-hash"


class Deployments:
    """A thread that maintains the pods of all Deployments."""

    def __init__(self, store: Store, kubelet: Kubelet, scheduler: GangScheduler) -> None:
        self._store = store
        self._kubelet = kubelet
        self._scheduler = scheduler
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="deployments", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; pods are not touched."""
        self._stopping.set()
        self._thread.join()

    def _serve(self) -> None:
        while not self._stopping.wait(_TICK_S):
            for deployment in self._store.list(DEPLOYMENT):
                try:
                    self._sync(deployment)
                except errors.ApiError:
                    continue  # gone, or retried in the next round
                except Exception:
                    traceback.print_exc()

    def _sync(self, deployment: Json) -> None:
        """Keep exactly the desired number of pods of the current template."""
        metadata, spec = deployment["metadata"], deployment["spec"]
        namespace = metadata["namespace"]
        digest = hashlib.sha256(json.dumps(spec["template"], sort_keys=True).encode()).hexdigest()
        pods = self._store.list(POD, namespace, owner=metadata["uid"])
        wanted = [f"{metadata['name']}-{digest[:10]}-{i}" for i in range(spec.get("replicas", 1))]
        for pod in pods:
            if pod["metadata"]["name"] not in wanted and not volcano_objects.is_terminating(pod):
                self._store.delete(POD, namespace, pod["metadata"]["name"])
        present = {pod["metadata"]["name"] for pod in pods}
        # Old pods are removed first, as with the Recreate strategy.
        if present <= set(wanted):
            for name in wanted:
                if name not in present:
                    self._store.create(POD, namespace, _pod(deployment, name, digest[:10]))
        for pod in self._scheduler.bind_each(self._store.list(POD, owner=metadata["uid"])):
            self._kubelet.start(pod)
        ready = sum(pod["status"].get("phase") == "Running" for pod in pods)
        status = {
            "replicas": len(pods),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "updatedReplicas": ready,
            "observedGeneration": metadata["generation"],
        }
        if deployment.get("status") != status:
            self._store.set_status(DEPLOYMENT, namespace, metadata["name"], status)


def _pod(deployment: Json, name: str, digest: str) -> Json:
    template = deployment["spec"]["template"]
    metadata = template.get("metadata") or {}
    return {
        "metadata": {
            "name": name,
            "labels": {**(metadata.get("labels") or {}), _HASH: digest},
            "annotations": metadata.get("annotations") or {},
            "ownerReferences": volcano_objects.owner(deployment),
        },
        "spec": template["spec"],
    }
