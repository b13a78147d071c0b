"""The node scaler of the template, as a process in a cluster whose group it scales."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.emulators.conftest import Server, serving_aws
from tests.emulators.test_eks_models import (
    Json,
    cluster,
    deploy,
    group,
    listed,
    manifest,
    resource,
)
from tests.emulators.volcano_jobs import job
from tests.stacks.cluster_objects import objects_of, with_cluster
from trainium_catalogue import contract, kubernetes
from trainium_catalogue.instances import find_instance_type

POD = {"limits": kubernetes.pod_resources(find_instance_type("trn1.32xlarge"))}
CLOCK = 600
"""The default of 30 minutes is 3 seconds."""
JOBS = f"/apis/batch.volcano.sh/v1alpha1/namespaces/{kubernetes.NAMESPACE}/jobs"
LIMIT_S = 60.0


def scaler_objects(node_group: str) -> list[Json]:
    """The template's objects, with the names of this cluster and a fast clock."""
    found = []
    for each in objects_of(with_cluster()):
        metadata = each["metadata"]
        names = (metadata["name"], metadata.get("namespace"))
        if kubernetes.SCALER in names or kubernetes.NODE_REQUEST in names:
            found.append(each)
    (deployment,) = [each for each in found if each["kind"] == "Deployment"]
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    container["env"] = [
        {"name": contract.ENV_REGION, "value": "us-west-2"},
        {"name": contract.ENV_IDLE_CLOCK, "value": str(CLOCK)},
    ]
    command = container["command"]
    command[command.index("--cluster") + 1] = "training"
    command[command.index("--node-group") + 1] = node_group
    return found


def system_group() -> Json:
    """Where it runs."""
    return group(
        LaunchTemplate={"Id": {"Ref": "SystemTemplate"}, "Version": "1"},
        ScalingConfig={"MinSize": 1, "DesiredSize": 1, "MaxSize": 1},
        Taints=[],
        Labels={"trainium/nodes": "system"},
    )


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving_aws("--addresses", "127.0.91") as started:
        deploy_scaler(started)
        yield started


def deploy_scaler(server: Server) -> None:
    """A cluster whose group has none of up to four nodes, and the scaler."""
    queue = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": kubernetes.QUEUE},
        "spec": {"capability": {kubernetes.NEURON_RESOURCE: "64"}},
    }
    resources = cluster(
        Group=group(ScalingConfig={"MinSize": 0, "DesiredSize": 0, "MaxSize": 4}),
        SystemTemplate=resource(
            "AWS::EC2::LaunchTemplate", LaunchTemplateData={"InstanceType": "m5.xlarge"}
        ),
        System=system_group(),
        Queue={**manifest(queue), "DependsOn": ["Volcano"]},
    )
    deploy(server, "cluster", resources)
    scaler = manifest(*scaler_objects(trainium_group(server)), cluster="training")
    deploy(server, "scaler", {"Scaler": scaler})


def trainium_group(server: Server) -> str:
    names = server.client("eks").list_nodegroups(clusterName="training")["nodegroups"]
    (found,) = [name for name in names if "System" not in name]
    return str(found)


@pytest.fixture(scope="module")
def api(server: Server) -> str:
    described = server.client("eks").describe_cluster(name="training")["cluster"]
    return str(described["endpoint"])


def call(api: str, method: str, path: str, body: Json | None = None) -> None:
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    request = urllib.request.Request(
        api + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": kind},
    )
    urllib.request.urlopen(request).close()


def trainium_nodes(api: str) -> list[Json]:
    return [
        node
        for node in listed(api, "/api/v1/nodes")
        if node["metadata"]["labels"][kubernetes.NODE_LABEL] == "trn1.32xlarge"
    ]


def wait(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def submit(api: str, name: str, seconds: float, *, nodes: int, scales: bool = True) -> None:
    made = job(name, ["sleep", str(seconds)], nodes=nodes, resources=POD)
    made["metadata"]["annotations"] = {kubernetes.SCALE: "true"} if scales else {}
    call(api, "POST", JOBS, made)


def phase(api: str, name: str) -> str:
    (found,) = [each for each in listed(api, JOBS) if each["metadata"]["name"] == name]
    return str(found.get("status", {}).get("state", {}).get("phase"))


def scale_up(server: Server, api: str, number: int) -> None:
    """As `jobs scale` does."""
    server.client("eks").update_nodegroup_config(
        clusterName="training",
        nodegroupName=trainium_group(server),
        scalingConfig={"desiredSize": number},
    )
    assert len(trainium_nodes(api)) == number


def events(api: str, namespace: str) -> list[str]:
    found = listed(api, f"/api/v1/namespaces/{namespace}/events")
    return [each["message"] for each in found if each["source"]["component"] == kubernetes.SCALER]


def is_reported(api: str, words: str) -> bool:
    """Return whether an event reports this about a node; it is written after the node's removal."""
    return any(words in text for text in events(api, "default"))


def test_idle_nodes_are_removed(server: Server, api: str) -> None:
    scale_up(server, api, 2)
    instances = [node["spec"]["providerID"].rpartition("/")[2] for node in trainium_nodes(api)]

    wait(lambda: not trainium_nodes(api))
    wait(lambda: all(is_reported(api, f"terminated {each}: idle since") for each in instances))


def test_job_request_adds_nodes_until_job_ends(server: Server, api: str) -> None:
    submit(api, "asks", 8, nodes=2)

    wait(lambda: phase(api, "asks") == "Running")
    begin = time.monotonic()
    scale_up(server, api, 3)
    # The third is removed, and the job's nodes stay for longer than the idle timeout.
    wait(lambda: len(trainium_nodes(api)) == 2)
    while time.monotonic() < begin + 6:
        assert len(trainium_nodes(api)) == 2
        assert phase(api, "asks") == "Running"
        time.sleep(0.2)
    wait(lambda: phase(api, "asks") == "Completed")
    wait(lambda: not trainium_nodes(api))
    assert "0 -> 2 nodes for asks" in events(api, kubernetes.NAMESPACE)


def test_scaler_uses_only_permissions_of_its_roles(server: Server, api: str) -> None:
    """Its token authenticates it as its service account, so the rounds above were allowed."""
    token = f"system:serviceaccount:{kubernetes.SCALER}:{kubernetes.SCALER}"

    def status(path: str) -> int:
        request = urllib.request.Request(api + path, headers={"Authorization": f"Bearer {token}"})
        try:
            with urllib.request.urlopen(request) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    assert status("/api/v1/nodes") == 200
    assert status("/api/v1/secrets") == 403
    assert status(f"/api/v1/namespaces/{kubernetes.NAMESPACE}/pods") == 200
    assert status(f"/api/v1/namespaces/{kubernetes.NAMESPACE}/configmaps") == 403
