"""Runs the emulated cluster: API server, Volcano and kubelet, in threads of this process."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from concurrent.futures import Future
from pathlib import Path

from aiohttp import web

from trainium_catalogue.instances import InstanceType
from trainium_emulators.kubernetes import nodes, rbac, schemas
from trainium_emulators.kubernetes.admission import ADMISSIONS
from trainium_emulators.kubernetes.api import application
from trainium_emulators.kubernetes.deployments import Deployments
from trainium_emulators.kubernetes.kubelet import Kubelet
from trainium_emulators.kubernetes.pod_environment import ApiAccess
from trainium_emulators.kubernetes.resources import NAMESPACE, POD, QUEUE, VOLCANO_JOB, Json
from trainium_emulators.kubernetes.scaling_group import ScalingGroup
from trainium_emulators.kubernetes.settings import EmulatorSettings
from trainium_emulators.kubernetes.store import Store
from trainium_emulators.kubernetes.volcano import VolcanoController
from trainium_emulators.kubernetes.volcano_objects import JOB_NAME
from trainium_emulators.kubernetes.volcano_scheduler import GangScheduler

_HOST = "127.0.0.1"
_STOP_LIMIT_S = 30.0
_NAMESPACES = ("default", "kube-system", "volcano-system")


class ClusterEmulator:
    """A running cluster."""

    def __init__(self, settings: EmulatorSettings) -> None:
        self.store = Store(ADMISSIONS)
        for name in _NAMESPACES:
            self.store.create(NAMESPACE, "", {"metadata": {"name": name}})
        self.store.create(QUEUE, "", {"metadata": {"name": "default"}, "spec": {"weight": 1}})
        self._groups: dict[str, ScalingGroup] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="rehearsal-claims-")
        self.claims = settings.claims or Path(self._folder.name)
        """Files of claims, in ``<namespace>/<claim>``; deleted with the cluster."""
        self._kubelet = Kubelet(self.store, settings, self.claims)
        scheduler = GangScheduler(self.store, self._kubelet, settings)
        self._volcano = VolcanoController(self.store, self._kubelet, scheduler, settings)
        self._deployments = Deployments(self.store, self._kubelet, scheduler)
        self._app = application(
            self.store,
            self._kubelet,
            identify=lambda given: rbac.account_of(given) or settings.identify(given),
        )
        self._loop = asyncio.new_event_loop()
        bound: Future[int] = Future()
        self._thread = threading.Thread(
            target=self._serve, args=(bound,), name="kubernetes", daemon=True
        )
        self._thread.start()
        self.endpoint = f"http://{_HOST}:{bound.result()}"
        accounts = Path(self._folder.name) / "service-accounts"
        self._kubelet.api = ApiAccess(endpoint=self.endpoint, folder=accounts)
        self._volcano.start()
        self._deployments.start()

    def apply(self, manifest: Json) -> Json:
        """Create an object, or replace the fields that are in the manifest."""
        kind = self.store.find_kind(manifest.get("apiVersion", ""), manifest.get("kind", ""))
        metadata = manifest["metadata"]
        schemas.check(kind, manifest)
        namespace = metadata.get("namespace", "default") if kind.namespaced else ""
        if self.store.find(kind, namespace, metadata["name"]) is None:
            return self.store.create(kind, namespace, manifest)
        return self.store.update(
            kind,
            namespace,
            metadata["name"],
            lambda old: {**old, **manifest, "metadata": {**old["metadata"], **metadata}},
        )

    def scale(self, group: str, instance_type: InstanceType, number: int) -> None:
        """Scale a node group."""
        self.scaling_group(nodes.trainium_group(group, instance_type)).set_desired(number)

    def scaling_group(self, group: nodes.EmulatedNodeGroup) -> ScalingGroup:
        """Return the Auto Scaling group behind a node group; ``group`` describes new nodes."""
        scaling_group = self._groups.setdefault(group.name, ScalingGroup(self.store, group))
        scaling_group.group = group
        return scaling_group

    def end_jobs(self) -> None:
        """Delete all Volcano jobs, and wait until their pods are gone."""
        self._delete(JOB_NAME)
        deadline = time.monotonic() + _STOP_LIMIT_S
        while self._pods(JOB_NAME) and time.monotonic() < deadline:
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop every pod, then the server."""
        self._deployments.stop()
        self._delete()
        deadline = time.monotonic() + _STOP_LIMIT_S
        while self._kubelet.running() and time.monotonic() < deadline:
            time.sleep(0.05)
        self._volcano.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._folder.cleanup()

    def _delete(self, annotation: str | None = None) -> None:
        """Delete all Volcano jobs, and all pods, or only those with the annotation."""
        for job in self.store.list(VOLCANO_JOB):
            metadata = job["metadata"]
            self.store.delete(VOLCANO_JOB, metadata["namespace"], metadata["name"])
        for metadata in self._pods(annotation):
            self.store.delete(POD, metadata["namespace"], metadata["name"], grace_s=1)

    def _pods(self, annotation: str | None) -> list[Json]:
        """Return the metadata of all pods, or only of those with the annotation."""
        pods = [pod["metadata"] for pod in self.store.list(POD)]
        return [
            each
            for each in pods
            if annotation is None or annotation in (each.get("annotations") or {})
        ]

    def _serve(self, bound: Future[int]) -> None:
        asyncio.set_event_loop(self._loop)
        runner = web.AppRunner(self._app, access_log=None, shutdown_timeout=0.5)
        try:
            self._loop.run_until_complete(runner.setup())
            site = web.TCPSite(runner, _HOST, 0)
            self._loop.run_until_complete(site.start())
            bound.set_result(runner.addresses[0][1])
        except OSError as error:
            bound.set_exception(error)
            return
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()


def serve(settings: EmulatorSettings) -> ClusterEmulator:
    """Start a cluster on a free port of loopback."""
    return ClusterEmulator(settings)
