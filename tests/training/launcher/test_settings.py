"""The environment of the workers."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training.nodes import node_on
from training.core import ranks
from training.core.progress import MAX_COMPILE_S
from training.launcher.settings import (
    ROOT_COMM_ID,
    SETTINGS,
    System,
    worker_environment,
)
from trainium_catalogue.workloads import WORKLOADS

AWS = System(kernel="6.1.148-173.267.amzn2023.x86_64", interface="ens5")


def test_two_trn1_nodes_use_efa() -> None:
    env, _ = worker_environment({}, node_on("trn1.32xlarge", num_nodes=2), AWS)

    assert env["FI_PROVIDER"] == "efa"
    assert env["FI_EFA_USE_DEVICE_RDMA"] == "1"
    assert env["CCOM_SOCKET_IFNAME"] == "ens5"  # the one known to peers
    assert env["PJRT_DEVICE"] == "NEURON"


def test_one_node_needs_no_efa() -> None:
    env, _ = worker_environment({}, node_on("trn1.32xlarge"), AWS)

    assert not [name for name in env if name.startswith(("FI_", "CCOM_"))]


@pytest.mark.parametrize(("kernel", "set_it"), [("4.14.355", True), ("5.15.0", False)])
def test_fork_safety_is_requested_only_on_old_kernels(kernel: str, set_it: bool) -> None:
    node = node_on("trn1.32xlarge", num_nodes=2)

    env, _ = worker_environment({}, node, System(kernel=kernel, interface="eth0"))

    assert ("FI_EFA_FORK_SAFE" in env) is set_it


@pytest.mark.parametrize(
    ("workload", "flags"),
    [
        ("llama2-7b", "--model-type transformer --distribution-strategy=llm-training"),
        ("verify", "--model-type transformer --distribution-strategy=llm-training"),
        ("bert", "--model-type transformer"),
        ("mnist", None),
    ],
)
def test_the_compiler_gets_the_references_options(workload: str, flags: str | None) -> None:
    system = dataclasses.replace(AWS, dataset_kind=WORKLOADS[workload].dataset_kind)

    env, _ = worker_environment({}, node_on("trn1.32xlarge"), system)

    assert env.get("NEURON_CC_FLAGS") == flags


@pytest.mark.parametrize("instance_type", ["trn1.32xlarge", "trn2.48xlarge"])
def test_a_collective_has_the_compilation_timeout(instance_type: str) -> None:
    env, _ = worker_environment({}, node_on(instance_type, num_nodes=2), AWS)

    assert int(env["NEURON_RT_EXEC_TIMEOUT"]) >= MAX_COMPILE_S


def test_exchange_between_ranks_has_the_compilation_timeout() -> None:
    assert ranks._TIMEOUT.total_seconds() >= MAX_COMPILE_S


def test_a_cpu_node_gets_no_neuron_settings() -> None:
    env, _ = worker_environment({}, node_on(None), System(kernel="6.1", interface="lo"))

    assert env == {
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }


def test_accelerate_uses_the_cpu_on_a_cpu_node() -> None:
    system = System(kernel="6.1", interface="lo", is_own_model=False)

    cpu, _ = worker_environment({}, node_on(None), system)
    trn1, _ = worker_environment({}, node_on("trn1.32xlarge"), system)

    assert (cpu["ACCELERATE_USE_CPU"], cpu["ACCELERATE_TORCH_DEVICE"]) == ("true", "cpu")
    assert not [name for name in trn1 if name.startswith("ACCELERATE")]


def test_boto3_in_user_code_finds_the_region() -> None:
    node = dataclasses.replace(node_on("trn1.32xlarge"), region="us-west-2")

    env, _ = worker_environment({"AWS_REGION": "us-west-2"}, node, AWS)

    assert env["AWS_DEFAULT_REGION"] == "us-west-2"


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
def test_user_settings_take_precedence(setting: object) -> None:
    name = setting.name  # type: ignore[attr-defined]

    env, remarks = worker_environment({name: "mine"}, node_on("trn1.32xlarge", num_nodes=2), AWS)

    assert env[name] == "mine"
    assert all("mine" in remark for remark in remarks)


@given(st.sampled_from(["trn1.32xlarge", "trn2.48xlarge", None]), st.integers(1, 4))
def test_the_root_communicator_is_never_set(name: str | None, num_nodes: int) -> None:
    env, _ = worker_environment({}, node_on(name, num_nodes=num_nodes), AWS)

    assert ROOT_COMM_ID not in env


@pytest.mark.parametrize("preset", ["localhost:48620", "127.0.0.1:62182", "[::1]:1"])
def test_a_root_communicator_on_loopback_is_removed(preset: str) -> None:
    env, remarks = worker_environment(
        {ROOT_COMM_ID: preset}, node_on("trn1.32xlarge", num_nodes=2), AWS
    )

    assert ROOT_COMM_ID not in env
    assert f"{ROOT_COMM_ID}={preset} is removed" in remarks[0]


def test_a_root_communicator_that_peers_can_reach_is_kept() -> None:
    env, _ = worker_environment(
        {ROOT_COMM_ID: "10.0.0.1:62182"}, node_on("trn1.32xlarge", num_nodes=2), AWS
    )

    assert env[ROOT_COMM_ID] == "10.0.0.1:62182"


def test_torchneuron_gives_each_process_its_core_so_preset_cores_are_removed() -> None:
    node = node_on("trn2.48xlarge", num_nodes=2, release="2.33.1")
    preset = {"NEURON_RT_VISIBLE_CORES": "0-63", "NEURON_RT_NUM_CORES": "64"}

    env, remarks = worker_environment(preset, node, AWS)

    assert not preset.keys() & env.keys()
    assert [remark.partition(" ")[0] for remark in remarks] == [
        "NEURON_RT_VISIBLE_CORES=0-63", "NEURON_RT_NUM_CORES=64",
    ]  # fmt: skip


def test_torchneuron_gets_no_variable_of_xla_and_no_silent_fallback() -> None:
    node = dataclasses.replace(
        node_on("trn2.48xlarge", num_nodes=2, release="2.33.1"), bucket="bucket"
    )

    env, _ = worker_environment({}, node, dataclasses.replace(AWS, has_cache=True))

    xla = ("PJRT_", "XLA_", "NEURON_FUSE_", "NEURON_CC_", "NEURON_COMPILE_", "NEURON_RT_ASYNC_")
    assert not [name for name in env if name.startswith(xla)]
    assert env["TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS"] == "1"
    assert env["TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION"] == "1"
    assert env["NEURON_LAUNCH_BLOCKING"] == "0"


@pytest.mark.parametrize(
    ("name", "release", "processes", "threads"),
    [
        ("trn2.48xlarge", "2.33.1", 64, "2"),
        ("trn2.48xlarge", "2.33.1", 4, "36"),
        ("trn2.3xlarge", "2.33.1", 4, "2"),
        ("trn1.32xlarge", "2.28.0", 32, "1"),
    ],
)
def test_torchneurons_processes_share_the_containers_vcpus(
    name: str, release: str, processes: int, threads: str
) -> None:
    node = dataclasses.replace(node_on(name, release=release), processes_per_node=processes)
    emulated = dataclasses.replace(node, is_emulated=True)

    assert worker_environment({}, node, AWS)[0]["OMP_NUM_THREADS"] == threads
    assert worker_environment({}, emulated, AWS)[0]["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize("release", ["2.28.0", "2.33.1"])
@pytest.mark.parametrize(("is_own_model", "value"), [(True, "0"), (False, None)])
def test_only_this_projects_models_round_to_nearest(
    release: str, is_own_model: bool, value: str | None
) -> None:
    name = "trn1.32xlarge" if release == "2.28.0" else "trn2.48xlarge"
    system = dataclasses.replace(AWS, is_own_model=is_own_model)

    env, _ = worker_environment({}, node_on(name, release=release), system)

    assert env.get("NEURON_RT_STOCHASTIC_ROUNDING_EN") == value
