"""Volcano jobs for tests, and their results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.limits import scaled
from trainium_catalogue.kubernetes import JOB_POLICIES, MAX_RETRY, NAMESPACE, QUEUE, TAINT
from trainium_emulators.kubernetes import ClusterEmulator, EmulatorSettings, serve
from trainium_emulators.kubernetes.resources import EVENT, POD, VOLCANO_JOB

Json = dict[str, Any]
FINISHED = ("Completed", "Failed", "Terminated", "Aborted")
BASE: tuple[Json, ...] = (
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
    {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": QUEUE},
        "spec": {"capability": {"aws.amazon.com/neuron": "32"}},
    },
)


@contextmanager
def serving(addresses: str, **settings: Any) -> Iterator[ClusterEmulator]:
    """A cluster that has the jobs' namespace and queue."""
    running = serve(EmulatorSettings(addresses=addresses, **settings))
    try:
        for manifest in BASE:
            running.apply(manifest)
        yield running
    finally:
        running.stop()


def job(
    name: str,
    command: list[str],
    *,
    nodes: int = 2,
    environment: dict[str, str] | None = None,
    resources: Json | None = None,
    **pod: Any,
) -> Json:
    """A gang as TorchX writes it: one task of one pod for each node."""

    def task(index: int) -> Json:
        main = "TORCHX_RANK0_HOST" if index == 0 else "VC_NODE_0_HOSTS"
        values = {
            **({"TORCHX_RANK0_HOST": "localhost"} if index == 0 else {}),
            "TRAINIUM_JOB_ID": name,
            "TRAINIUM_NODE_INDEX": str(index),
            "TRAINIUM_NUM_NODES": str(nodes),
            "TRAINIUM_MAIN_HOST_FROM": main,
            **(environment or {}),
        }
        field = {"fieldPath": "metadata.annotations['volcano.sh/job-retry-count']"}
        container = {
            "name": f"node-{index}",
            "image": "x",
            "command": command,
            "resources": resources or {},
            "env": [
                *({"name": key, "value": value} for key, value in values.items()),
                {"name": "TRAINIUM_ATTEMPT", "valueFrom": {"fieldRef": field}},
            ],
        }
        tolerations = [{"key": TAINT, "operator": "Exists", "effect": "NoSchedule"}]
        spec = {
            "restartPolicy": "Never",
            "containers": [container],
            "tolerations": tolerations,
            **pod,
        }
        return {"name": f"node-{index}", "replicas": 1, "template": {"spec": spec}}

    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"trainium/run": name}},
        "spec": {
            "queue": QUEUE,
            "minAvailable": nodes,
            "maxRetry": MAX_RETRY,
            "policies": list(JOB_POLICIES),
            "plugins": {"svc": ["--publish-not-ready-addresses"], "env": []},
            "tasks": [task(index) for index in range(nodes)],
        },
    }


def state(cluster: ClusterEmulator, name: str) -> Json:
    status: Json = cluster.store.get(VOLCANO_JOB, NAMESPACE, name).get("status", {})
    return status


def pods(cluster: ClusterEmulator, name: str) -> list[Json]:
    return cluster.store.list(POD, NAMESPACE, labels=f"volcano.sh/job-name={name}")


def wait(condition: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + scaled(seconds)
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def end(cluster: ClusterEmulator, name: str, seconds: float = 20) -> Json:
    wait(lambda: state(cluster, name).get("state", {}).get("phase") in FINISHED, seconds)
    return state(cluster, name)


def run(cluster: ClusterEmulator, name: str, command: list[str], **more: Any) -> Json:
    cluster.apply(job(name, command, **more))
    return end(cluster, name)


def start(cluster: ClusterEmulator, name: str, command: list[str], **more: Any) -> None:
    """Return once all pods of the job have written a line, and its controller has seen them run."""
    cluster.apply(job(name, command, **more))
    wait(lambda: (found := pods(cluster, name)) and all(output(cluster, pod) for pod in found))
    wait(lambda: state(cluster, name).get("state", {}).get("phase") == "Running")


def output(cluster: ClusterEmulator, pod: Json) -> list[str]:
    return [text for _, text in cluster._kubelet.lines(pod["metadata"]["uid"])]


def events(cluster: ClusterEmulator, name: str) -> list[str]:
    return [
        event["message"]
        for event in cluster.store.list(EVENT, NAMESPACE)
        if event["involvedObject"]["name"].startswith(name)
    ]
