"""Deployments and claims of the emulated cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.emulators.volcano_jobs import end, events, job, serving
from tests.support.limits import scaled
from trainium_catalogue.kubernetes import NAMESPACE
from trainium_emulators.aws.cloudformation.eks_cluster import KubernetesCluster
from trainium_emulators.kubernetes import ClusterEmulator
from trainium_emulators.kubernetes.resources import CLAIM, DEPLOYMENT, POD, VOLUME

Json = dict[str, Any]
PORT = 6106
LABELS = {"app": "files"}


def deployment(directory: str) -> Json:
    """A server of files that are on a claim."""
    container = {
        "name": "files",
        "image": "x",
        "command": ["python", "-m", "http.server"],
        "args": ["--bind=0.0.0.0", f"--directory={directory}", str(PORT)],
        "volumeMounts": [{"name": "shared", "mountPath": "/fsx"}],
    }
    volume = {"name": "shared", "persistentVolumeClaim": {"claimName": "lustre"}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "files", "namespace": NAMESPACE},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": LABELS},
            "template": {
                "metadata": {"labels": LABELS},
                "spec": {"containers": [container], "volumes": [volume]},
            },
        },
    }


def volume(name: str, **spec: Any) -> Json:
    offer = {"capacity": {"storage": "1200Gi"}, "accessModes": ["ReadWriteMany"]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {**offer, "storageClassName": "", **spec},
    }


def claim(name: str, **spec: Any) -> Json:
    wanted = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            **wanted, "volumeName": name, "resources": {"requests": {"storage": "1200Gi"}}, **spec
        },
    }  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterEmulator]:
    with serving("127.0.95") as running:
        running.apply(volume("lustre"))
        running.apply(claim("lustre"))
        running.apply(deployment("/fsx/runs"))
        yield running


def wait(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + scaled(20)
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def pods(cluster: ClusterEmulator) -> list[Json]:
    return cluster.store.list(POD, NAMESPACE, labels="app=files")


def ready(cluster: ClusterEmulator) -> int:
    status = cluster.store.get(DEPLOYMENT, NAMESPACE, "files").get("status", {})
    return int(status.get("readyReplicas", 0))


def test_deployment_keeps_its_pod(cluster: ClusterEmulator) -> None:
    wait(lambda: ready(cluster) == 1)
    (before,) = pods(cluster)

    cluster.store.delete(POD, NAMESPACE, before["metadata"]["name"], grace_s=0)
    wait(lambda: (found := pods(cluster)) and found[0]["metadata"]["uid"] != uid(before))

    assert len(pods(cluster)) == 1


def test_namespace_manifest_is_deleted_after_its_pods(
    cluster: ClusterEmulator,
) -> None:
    deployed, place = KubernetesCluster(), {"name": "brief"}
    deployed.use(lambda: cluster)
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": place}
    deployed.apply(manifest)
    slow = deployment("/fsx/runs")
    slow["metadata"]["namespace"] = "brief"
    (container,) = slow["spec"]["template"]["spec"]["containers"]
    container |= {"command": ["sh", "-c"], "args": ["trap 'sleep 1; exit' TERM; sleep 60 & wait"]}
    del container["volumeMounts"], slow["spec"]["template"]["spec"]["volumes"]
    deployed.apply(slow)
    wait(lambda: cluster.store.get(DEPLOYMENT, "brief", "files").get("status", {}).get("replicas"))
    time.sleep(scaled(1))  # the shell has to set its trap

    deployed.delete(manifest)

    assert cluster.store.list(POD, "brief") == []


def uid(pod: Json) -> str:
    return str(pod["metadata"]["uid"])


def test_job_files_on_claim_are_on_volume(cluster: ClusterEmulator) -> None:
    volume = {"name": "shared", "persistentVolumeClaim": {"claimName": "lustre"}}
    writer = job("writer", ["sh", "-c", "mkdir -p $WHERE/runs && echo loss > $WHERE/runs/x"],
                 nodes=1, environment={"WHERE": "/fsx"}, volumes=[volume])  # fmt: skip
    container = writer["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
    container["volumeMounts"] = [{"name": "shared", "mountPath": "/fsx"}]
    cluster.apply(writer)
    written = cluster.claims / NAMESPACE / "lustre" / "runs" / "x"
    wait(lambda: written.exists() and written.read_text() == "loss\n")


def phase(cluster: ClusterEmulator, name: str) -> str:
    return str(cluster.store.get(CLAIM, NAMESPACE, name)["status"]["phase"])


def test_claim_without_its_volume_is_pending_and_so_are_its_pods(
    cluster: ClusterEmulator,
) -> None:
    cluster.apply(claim("later"))
    mounted = {"name": "shared", "persistentVolumeClaim": {"claimName": "later"}}
    cluster.apply(job("mounts", ["true"], volumes=[mounted]))
    wait(lambda: events(cluster, "mounts"))
    conditions = [
        pod["status"]["conditions"][0]["message"]
        for pod in cluster.store.list(POD, NAMESPACE, labels="volcano.sh/job-name=mounts")
    ]

    assert phase(cluster, "later") == "Pending"
    assert set(conditions) == {"pod has unbound immediate PersistentVolumeClaims"}
    cluster.apply(volume("later"))
    assert phase(cluster, "later") == "Bound"
    assert end(cluster, "mounts")["state"]["phase"] == "Completed"


@pytest.mark.parametrize(
    "offer",
    [
        {"capacity": {"storage": "100Gi"}},
        {"accessModes": ["ReadWriteOnce"]},
        {"claimRef": {"name": "another", "namespace": NAMESPACE}},
    ],
    ids=lambda offer: next(iter(offer)),
)
def test_volume_that_does_not_fit_is_not_bound(cluster: ClusterEmulator, offer: Json) -> None:
    cluster.apply(volume("unfit", **offer))
    cluster.apply(claim("unfit"))
    found = phase(cluster, "unfit")
    cluster.store.delete(CLAIM, NAMESPACE, "unfit")
    cluster.store.delete(VOLUME, "", "unfit")

    assert found == "Pending"


def test_volume_has_one_claim(cluster: ClusterEmulator) -> None:
    cluster.apply(claim("second", volumeName="lustre"))

    assert phase(cluster, "second") == "Pending"
    cluster.store.delete(CLAIM, NAMESPACE, "second")
