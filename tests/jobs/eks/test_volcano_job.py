"""The Volcano job that TorchX makes: legal, and with what the catalogue says of each type."""

from __future__ import annotations

import ast
import configparser
import inspect
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from jobs import torchx_components
from jobs.deployment import EksTarget
from jobs.eks.request import LaunchSpec, dry_run
from trainium_catalogue import contract, kubernetes
from trainium_catalogue.instances import INSTANCE_TYPES, InstanceType, find_instance_type
from trainium_catalogue.workloads import WORKLOADS, Hardware
from trainium_emulators.kubernetes.pod_environment import expanded

KUBERNETES_VERSION = "1.35"
NODE_WORKLOADS = [item for item in WORKLOADS.values() if item.hardware is Hardware.TRAINIUM]


def made(
    *,
    instance_type: str = "trn1.32xlarge",
    num_nodes: int = 2,
    lustre_claim: str | None = None,
    after_job: str | None = None,
    words: tuple[str, ...] = ("--iterations", "5"),
) -> dict[str, Any]:
    target = EksTarget(
        cluster="cluster",
        namespace="trainium",
        queue="trainium",
        node_group="nodes",
        image="image:1",
        job_time_limit_hours=12,
        lustre_claim=lustre_claim,
    )
    spec = LaunchSpec(
        run="Nightly_7",
        workload="all-reduce",
        command=[*contract.launch_command("all-reduce"), *words],
        num_nodes=num_nodes,
        time_limit_s=3600,
        deployment="default",
        region="us-west-2",
        bucket="bucket",
        neuron_release="2.28.0",
        instance_type=find_instance_type(instance_type),
        image=target.image,
        lustre_claim=lustre_claim,
        after_job=after_job,
    )
    resource: dict[str, Any] = dry_run(spec, target).request.resource
    return resource


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    return made(lustre_claim="lustre")


def pod(job: dict[str, Any], index: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["tasks"][index]["template"]["spec"]
    return found


def environment(job: dict[str, Any], index: int) -> dict[str, Any]:
    return {
        item["name"]: item.get("value", item.get("valueFrom"))
        for item in pod(job, index)["containers"][0]["env"]
    }


@pytest.mark.parametrize("instance_type", INSTANCE_TYPES.values(), ids=lambda item: item.name)
def test_limits_are_the_catalogues(instance_type: InstanceType) -> None:
    nodes = 2 if instance_type.supports_multi_node else 1
    container = pod(made(instance_type=instance_type.name, num_nodes=nodes))["containers"][0]
    expected = kubernetes.pod_resources(instance_type)

    assert container["resources"] == {"limits": expected, "requests": expected}
    assert "aws.amazon.com/neurondevice" not in container["resources"]["limits"]


@pytest.mark.parametrize("instance_type", INSTANCE_TYPES.values(), ids=lambda item: item.name)
def test_dev_shm_has_the_catalogues_size(instance_type: InstanceType) -> None:
    volumes = pod(made(instance_type=instance_type.name, num_nodes=1))["volumes"]

    assert volumes == [
        {
            "name": "dshm",
            "emptyDir": {"medium": "Memory", "sizeLimit": f"{instance_type.shared_memory_mib}Mi"},
        }
    ]


def test_pods_are_legal_in_kubernetes(job: dict[str, Any]) -> None:
    for task in job["spec"]["tasks"]:
        metadata = {**task["template"]["metadata"], "name": task["name"]}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
        manifest["spec"] = task["template"]["spec"]

        kubernetes_validate.validate(manifest, KUBERNETES_VERSION, strict=True)


def test_the_gang_is_all_nodes(job: dict[str, Any]) -> None:
    assert job["spec"]["minAvailable"] == 2
    assert [task["replicas"] for task in job["spec"]["tasks"]] == [1, 1]
    assert [task["name"] for task in job["spec"]["tasks"]] == ["node-0", "node-1"]


def test_policies_are_the_jobs_alone(job: dict[str, Any]) -> None:
    """Those of a task would come first, and know no exit codes."""
    assert job["spec"]["policies"] == list(kubernetes.JOB_POLICIES)
    assert all("policies" not in task for task in job["spec"]["tasks"])


def test_nodes_know_their_rank_and_where_rank_0_is(job: dict[str, Any]) -> None:
    first, second = environment(job, 0), environment(job, 1)

    assert (first[contract.ENV_NODE_INDEX], second[contract.ENV_NODE_INDEX]) == ("0", "1")
    assert first[contract.ENV_MAIN_HOST_FROM] == "TORCHX_RANK0_HOST"
    assert second[contract.ENV_MAIN_HOST_FROM] == "VC_NODE_0_HOSTS"
    assert second[contract.ENV_JOB_ID] == job["metadata"]["name"]


def test_the_attempt_is_volcanos_count(job: dict[str, Any]) -> None:
    assert environment(job, 1)[contract.ENV_ATTEMPT] == {
        "fieldRef": {"fieldPath": kubernetes.RETRY_COUNT_FIELD}
    }


def test_the_time_limit_is_the_launchers_and_the_kubelet_comes_later(job: dict[str, Any]) -> None:
    """A pod that the kubelet ends would be restarted, as one of a drained node is."""
    compiled = made(after_job="first")

    assert environment(job, 0)[contract.ENV_TIME_LIMIT] == "3600"
    assert pod(job)["activeDeadlineSeconds"] == 3600 + 3600
    assert pod(compiled)["activeDeadlineSeconds"] == 3600 + 3600 + 3 * 6 * 3600
    assert {"exitCode": 124, "action": "TerminateJob"} in job["spec"]["policies"]


def test_efa_takes_no_huge_pages_that_the_pod_does_not_request(job: dict[str, Any]) -> None:
    limits = pod(job)["containers"][0]["resources"]["limits"]

    assert not any(name.startswith("hugepages") for name in limits)
    assert environment(job, 1)["FI_EFA_USE_HUGE_PAGE"] == "0"


def test_arguments_stay_apart(job: dict[str, Any]) -> None:
    assert pod(job)["containers"][0]["command"][-3:] == ["all-reduce", "--iterations", "5"]


def test_a_program_gets_its_arguments_as_they_were_typed() -> None:
    words = ("$(HOSTNAME)", "$$", "$HOME", "${app_id}", "costs 5$", "^a$")
    container = pod(made(words=words))["containers"][0]

    argv = [expanded(word, {"HOSTNAME": "pod"}) for word in container["command"]]

    assert tuple(argv[-len(words) :]) == words


def test_the_file_system_is_mounted_where_batch_mounts_it(job: dict[str, Any]) -> None:
    mounts = {mount["mountPath"] for mount in pod(job)["containers"][0]["volumeMounts"]}

    assert mounts == {"/dev/shm", contract.LUSTRE_MOUNT}
    assert environment(job, 0)[contract.ENV_LUSTRE] == contract.LUSTRE_MOUNT


def test_without_a_file_system_none_is_mounted() -> None:
    without = made()

    assert [volume["name"] for volume in pod(without)["volumes"]] == ["dshm"]
    assert contract.ENV_LUSTRE not in environment(without, 0)


def test_pods_have_the_workloads_rights_and_no_others(job: dict[str, Any]) -> None:
    assert pod(job)["serviceAccountName"] == kubernetes.service_account("all-reduce")
    assert pod(job)["automountServiceAccountToken"] is False


def test_names_fit_into_a_host_name(job: dict[str, Any]) -> None:
    assert len(f"{job['metadata']['name']}-node-999-0") <= 63


def test_torchx_finds_the_queue_and_the_namespace_by_itself() -> None:
    config = configparser.ConfigParser()
    config.read(Path(__file__).parents[3] / ".torchxconfig")

    assert dict(config["kubernetes"]) == {
        "queue": kubernetes.QUEUE,
        "namespace": kubernetes.NAMESPACE,
    }


@pytest.mark.parametrize("workload", NODE_WORKLOADS, ids=lambda item: item.name)
def test_every_workload_of_nodes_has_a_component(workload: Any) -> None:
    component = getattr(torchx_components, workload.name.replace("-", "_"))
    parameters = inspect.signature(component).parameters

    assert parameters["nnodes"].default == workload.default_nodes


def test_every_component_is_a_workload() -> None:
    source = ast.parse(inspect.getsource(torchx_components))
    functions = {item.name for item in source.body if isinstance(item, ast.FunctionDef)}

    assert {name for name in functions if not name.startswith("_")} == {
        item.name.replace("-", "_") for item in NODE_WORKLOADS
    }
