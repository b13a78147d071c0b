"""The Volcano job created by TorchX: valid, with the catalogue's values for each type."""

from __future__ import annotations

import ast
import configparser
import inspect
from datetime import UTC, datetime, timedelta
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
    **more: Any,
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
        **more,
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
def test_limits_and_dev_shm_match_catalogue(instance_type: InstanceType) -> None:
    spec = pod(made(instance_type=instance_type.name, num_nodes=1))
    expected = kubernetes.pod_resources(instance_type)
    shm = {"medium": "Memory", "sizeLimit": f"{instance_type.shared_memory_mib}Mi"}

    assert spec["containers"][0]["resources"] == {"limits": expected, "requests": expected}
    assert spec["volumes"] == [{"name": "dshm", "emptyDir": shm}]


def test_pods_of_several_zones_select_nodes_of_their_run() -> None:
    several = made(has_zones=True, after_job="compiles", scales=True, zone_patience_minutes=5)
    of_type = {kubernetes.NODE_LABEL: "trn1.32xlarge"}

    assert pod(several, 1)["nodeSelector"] == {**of_type, kubernetes.LABEL_RUN: "Nightly_7"}
    assert pod(made())["nodeSelector"] == of_type
    assert several["metadata"]["annotations"][kubernetes.ZONE_PATIENCE] == "5"


def test_pods_are_valid_in_kubernetes(job: dict[str, Any]) -> None:
    for task in job["spec"]["tasks"]:
        metadata = {**task["template"]["metadata"], "name": task["name"]}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
        manifest["spec"] = task["template"]["spec"]

        kubernetes_validate.validate(manifest, KUBERNETES_VERSION, strict=True)


def test_gang_contains_all_nodes_and_only_job_has_policies(job: dict[str, Any]) -> None:
    """Task policies would take precedence, and do not support exit codes."""
    tasks = job["spec"]["tasks"]

    assert job["spec"]["minAvailable"] == 2
    assert [(task["name"], task["replicas"]) for task in tasks] == [("node-0", 1), ("node-1", 1)]
    assert job["spec"]["policies"] == list(kubernetes.JOB_POLICIES)
    assert all("policies" not in task for task in tasks)


def test_restart_waits_until_unfit_host_is_cordoned(job: dict[str, Any]) -> None:
    policy = {"exitCode": 71, "action": "RestartJob", "timeout": "15s"}

    assert policy in job["spec"]["policies"]


def test_job_requests_no_nodes_unless_asked(job: dict[str, Any]) -> None:
    assert "annotations" not in job["metadata"]


def test_nodes_know_rank_and_address_of_rank_0(job: dict[str, Any]) -> None:
    first, second = environment(job, 0), environment(job, 1)

    assert (first[contract.ENV_NODE_INDEX], second[contract.ENV_NODE_INDEX]) == ("0", "1")
    assert first[contract.ENV_MAIN_HOST_FROM] == "TORCHX_RANK0_HOST"
    assert second[contract.ENV_MAIN_HOST_FROM] == "VC_NODE_0_HOSTS"
    assert second[contract.ENV_JOB_ID] == job["metadata"]["name"]


def test_attempt_is_volcano_retry_count(job: dict[str, Any]) -> None:
    assert environment(job, 1)[contract.ENV_ATTEMPT] == {
        "fieldRef": {"fieldPath": kubernetes.RETRY_COUNT_FIELD}
    }


def test_launcher_time_limit_precedes_kubelet_deadline(job: dict[str, Any]) -> None:
    """A pod terminated by the kubelet would be restarted, like one of a drained node."""
    compiled = made(after_job="first")

    assert environment(job, 0)[contract.ENV_TIME_LIMIT] == "3600"
    assert pod(job)["activeDeadlineSeconds"] == 3600 + 3600
    assert pod(compiled)["activeDeadlineSeconds"] == 3600 + 3600 + 3 * 6 * 3600
    assert {"exitCode": 124, "action": "TerminateJob"} in job["spec"]["policies"]


def test_job_in_capacity_block_has_start_and_stop_time() -> None:
    begins = datetime(2027, 1, 30, 11, 30, tzinfo=UTC)
    job = made(scales=True, not_before=begins, stop_at=begins + timedelta(days=1))

    assert job["metadata"]["annotations"] == {
        kubernetes.SCALE: "true",
        kubernetes.NOT_BEFORE: "2027-01-30T11:30:00Z",
    }
    assert environment(job, 1)[contract.ENV_STOP_AT] == "2027-01-31T11:30:00Z"


def test_efa_uses_no_unrequested_huge_pages(job: dict[str, Any]) -> None:
    limits = pod(job)["containers"][0]["resources"]["limits"]

    assert not any(name.startswith("hugepages") for name in limits)
    assert environment(job, 1)["FI_EFA_USE_HUGE_PAGE"] == "0"


def test_program_gets_arguments_verbatim() -> None:
    words = ("$(HOSTNAME)", "$$", "$HOME", "${app_id}", "costs 5$", "^a$")
    container = pod(made(words=words))["containers"][0]

    argv = [expanded(word, {"HOSTNAME": "pod"}) for word in container["command"]]

    assert tuple(argv[-len(words) :]) == words


def test_file_system_is_mounted_at_same_path_as_on_batch(job: dict[str, Any]) -> None:
    mounts = {mount["mountPath"] for mount in pod(job)["containers"][0]["volumeMounts"]}

    assert mounts == {"/dev/shm", contract.LUSTRE_MOUNT}
    assert environment(job, 0)[contract.ENV_LUSTRE] == contract.LUSTRE_MOUNT


def test_no_file_system_is_mounted_without_one() -> None:
    without = made()

    assert [volume["name"] for volume in pod(without)["volumes"]] == ["dshm"]
    assert contract.ENV_LUSTRE not in environment(without, 0)


def test_pods_have_service_account_of_workload(job: dict[str, Any]) -> None:
    assert pod(job)["serviceAccountName"] == kubernetes.service_account("all-reduce")
    assert pod(job)["automountServiceAccountToken"] is False


def test_torchx_config_has_queue_and_namespace() -> None:
    config = configparser.ConfigParser()
    config.read(Path(__file__).parents[3] / ".torchxconfig")

    assert dict(config["kubernetes"]) == {
        "queue": kubernetes.QUEUE,
        "namespace": kubernetes.NAMESPACE,
    }


@pytest.mark.parametrize("workload", NODE_WORKLOADS, ids=lambda item: item.name)
def test_every_node_workload_has_component(workload: Any) -> None:
    component = getattr(torchx_components, workload.name.replace("-", "_"))
    parameters = inspect.signature(component).parameters

    assert parameters["nnodes"].default == workload.default_nodes


def test_every_component_is_a_workload() -> None:
    source = ast.parse(inspect.getsource(torchx_components))
    functions = {item.name for item in source.body if isinstance(item, ast.FunctionDef)}

    assert {name for name in functions if not name.startswith("_")} == {
        item.name.replace("-", "_") for item in NODE_WORKLOADS
    }
