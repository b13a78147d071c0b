"""The real kubectl and Python client against the emulated API server."""

from __future__ import annotations

import json
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException

from rehearsal.deployment import binaries
from tests.emulators import kubeconfig
from tests.emulators.volcano_jobs import job, serving
from tests.support.limits import scaled
from trainium_catalogue.kubernetes import NAMESPACE, QUEUE
from trainium_emulators.kubernetes import ClusterEmulator
from trainium_emulators.kubernetes.resources import CONFIG_MAP

Json = dict[str, Any]
SLEEP = ["sh", "-c", "echo working; sleep 60"]


@dataclass(frozen=True)
class Kubectl:
    """kubectl with the kubeconfig of a cluster."""

    config: Path

    def __call__(self, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [binaries.kubectl(), *words],
            input=stdin, capture_output=True, text=True, timeout=scaled(60),
            env={"KUBECONFIG": str(self.config), "HOME": str(self.config.parent)},
        )  # fmt: skip

    def ok(self, *words: str, stdin: str | None = None) -> str:
        done = self(*words, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterEmulator]:
    with serving("127.0.93") as running:
        yield running


@pytest.fixture(scope="module")
def kubectl(cluster: ClusterEmulator, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    return Kubectl(kubeconfig.write(tmp_path_factory.mktemp("kube") / "config", cluster.endpoint))


@pytest.fixture(scope="module")
def api(kubectl: Kubectl) -> client.ApiClient:
    return config.new_client_from_config(str(kubectl.config))


@pytest.fixture(scope="module")
def gang(cluster: ClusterEmulator, kubectl: Kubectl) -> str:
    """A job that runs, submitted with kubectl."""
    kubectl.ok("apply", "-f", "-", stdin=yaml.safe_dump(job("gang", SLEEP)))
    ready = (
        "wait",
        "--for=jsonpath={.status.state.phase}=Running",
        "vcjob/gang",
        f"--timeout={scaled(20):.0f}s",
    )
    kubectl.ok(*ready)
    return "gang"


def test_kubectl_shows_a_job_and_its_pods(kubectl: Kubectl, gang: str) -> None:
    lines = [line.split() for line in kubectl.ok("get", "pods,vcjob").splitlines()]

    assert lines[0] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert lines[1][:4] == ["pod/gang-node-0-0", "1/1", "Running", "0"]
    assert lines[4] == ["NAME", "STATUS", "MINAVAILABLE", "RUNNINGS", "AGE"]
    assert lines[5][:4] == ["job.batch.volcano.sh/gang", "Running", "2", "2"]


def test_kubectl_follows_a_log(kubectl: Kubectl, gang: str) -> None:
    assert kubectl.ok("logs", "gang-node-0-0", "--tail=1") == "working\n"


def test_kubectl_deletes_namespace_content(kubectl: Kubectl, cluster: ClusterEmulator) -> None:
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "short"}})
    inside = {"name": "inside", "namespace": "short"}
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": inside})

    kubectl.ok("delete", "namespace", "short")

    assert cluster.store.list(CONFIG_MAP, "short") == []


def test_python_client_watches_from_version(
    api: client.ApiClient, cluster: ClusterEmulator
) -> None:
    core = client.CoreV1Api(api)
    version = core.list_namespaced_config_map(NAMESPACE).metadata.resource_version
    body = {"metadata": {"name": "watched", "labels": {"a": "b"}}}

    def change() -> None:
        time.sleep(0.2)
        cluster.store.create(CONFIG_MAP, NAMESPACE, body)
        core.patch_namespaced_config_map("watched", NAMESPACE, {"data": {"x": "y"}})
        core.delete_namespaced_config_map("watched", NAMESPACE)

    threading.Thread(target=change).start()
    stream = watch.Watch().stream(
        core.list_namespaced_config_map, NAMESPACE, label_selector="a=b",
        resource_version=version, timeout_seconds=2,
    )  # fmt: skip

    assert [event["type"] for event in stream] == ["ADDED", "MODIFIED", "DELETED"]


def test_outdated_replacement_is_a_conflict(
    api: client.ApiClient, cluster: ClusterEmulator
) -> None:
    core = client.CoreV1Api(api)
    core.create_namespaced_config_map(NAMESPACE, {"metadata": {"name": "contended"}})
    old = core.read_namespaced_config_map("contended", NAMESPACE)
    core.patch_namespaced_config_map("contended", NAMESPACE, {"data": {"x": "y"}})
    old.data = {"x": "z"}

    with pytest.raises(ApiException) as error:
        core.replace_namespaced_config_map("contended", NAMESPACE, old)

    assert (error.value.status, json.loads(error.value.body)["reason"]) == (409, "Conflict")


MERGE, STRATEGIC = (f"application/{name}merge-patch+json" for name in ("", "strategic-"))
CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"
QUEUES = "/apis/scheduling.volcano.sh/v1beta1/queues"


def refusal_of(cluster: ClusterEmulator, method: str, path: str, type_: str, body: Json) -> Json:
    """The status that a raw request gets."""
    request = urllib.request.Request(
        cluster.endpoint + path,
        method=method,
        data=json.dumps(body).encode(),
        headers={"Content-Type": type_},
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return {"code": answer.status, "message": ""}
    except urllib.error.HTTPError as error:
        found: Json = json.load(error)
        return found


@pytest.mark.parametrize(
    ("method", "path", "type_", "metadata", "code", "said"),
    [
        ("PATCH", f"{QUEUES}/{QUEUE}", MERGE, {}, 200, ""),
        ("PATCH", f"{QUEUES}/{QUEUE}", "application/json", {}, 415, "in an unknown format"),
        ("PATCH", f"{QUEUES}/{QUEUE}", STRATEGIC, {}, 415, "types include: application/json-patch"),
        ("PATCH", f"{CONFIG_MAPS}/a", MERGE, {"name": "a"}, 404, "not found"),
        ("POST", CONFIG_MAPS, "application/json", {"name": "a"}, 201, ""),
        ("POST", CONFIG_MAPS, "application/x-www-form-urlencoded", {"name": "b"}, 415, "unknown"),
        ("POST", CONFIG_MAPS, "application/json", {"name": "b", "namespace": "default"}, 400,
         "the namespace of the provided object does not match"),
        ("PUT", f"{CONFIG_MAPS}/a", "application/json", {"name": "b"}, 400,
         "the name of the object (b) does not match the name on the URL (a)"),
        ("POST", "/api/v1/configmaps", "application/json", {"name": "b"}, 405, "not allow"),
        ("DELETE", "/api/v1/configmaps/a", "application/json", {}, 404, "could not find"),
        ("PATCH", f"/api/v1/namespaces/{NAMESPACE}/nodes/n", MERGE, {}, 404, "could not find"),
    ],
)  # fmt: skip
def test_request_refused_by_cluster_is_refused(
    cluster: ClusterEmulator,
    method: str,
    path: str,
    type_: str,
    metadata: Json,
    code: int,
    said: str,
) -> None:
    answer = refusal_of(cluster, method, path, type_, {"metadata": metadata})

    assert answer["code"] == code
    assert said in answer["message"]


@pytest.mark.parametrize(
    ("about", "code"), [({"namespace": NAMESPACE}, 201), ({"namespace": "default"}, 422)]
)
def test_event_is_in_the_namespace_of_its_object(
    cluster: ClusterEmulator, about: Json, code: int
) -> None:
    event = {"metadata": {"generateName": "e-"}, "involvedObject": {"name": "x", **about}}

    assert refusal_of(cluster, "POST", EVENTS, "application/json", event)["code"] == code


SERVICE: Json = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web", "namespace": NAMESPACE},
    "spec": {"ports": [{"port": 80}]},
}


def test_kubectl_shows_reason_of_refusal(kubectl: Kubectl) -> None:
    wrong = {**SERVICE, "spec": {"prots": []}}
    done = kubectl("create", "-f", "-", stdin=json.dumps(wrong))

    assert done.returncode == 1
    assert 'unknown field "spec.prots"' in done.stderr


def test_changed_object_is_validated_like_new_one(cluster: ClusterEmulator) -> None:
    cluster.apply(SERVICE)
    path = f"/api/v1/namespaces/{NAMESPACE}/services/web"

    answer = refusal_of(cluster, "PATCH", path, MERGE, {"spec": {"ports": [{"port": "eighty"}]}})

    assert "cannot unmarshal string" in answer["message"]
