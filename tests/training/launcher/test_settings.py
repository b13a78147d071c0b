"""The environment of the workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.training.nodes import node_on
from training.core import ranks
from training.core.contract import NodeContract
from training.core.progress import MAX_COMPILE_S
from training.launcher.settings import ROOT_COMM_ID, System, worker_environment
from trainium_catalogue.workloads import WORKLOADS

AWS = System(kernel="6.1.148-173.267.amzn2023.x86_64", interface="ens5")
TWO_NODES = node_on("trn1.32xlarge", num_nodes=2)
TRN2 = node_on("trn2.48xlarge", num_nodes=2, release="2.33.1")


def environment(node: NodeContract, **system: Any) -> dict[str, str]:
    """Return the variables that the launcher sets."""
    return worker_environment({}, node, replace(AWS, **system))[0]


def test_only_several_nodes_use_efa_over_the_interface_known_to_peers() -> None:
    assert environment(TWO_NODES)["CCOM_SOCKET_IFNAME"] == "ens5"
    alone = environment(node_on("trn1.32xlarge"))
    assert not [name for name in alone if name.startswith(("FI_", "CCOM_"))]


@pytest.mark.parametrize(
    ("node", "name", "value"),
    [
        (TWO_NODES, "FI_EFA_USE_DEVICE_RDMA", "1"),
        (TWO_NODES, "PJRT_DEVICE", "NEURON"),
        (replace(TWO_NODES, region="us-west-2"), "AWS_DEFAULT_REGION", "us-west-2"),
        (TRN2, "NEURON_LAUNCH_BLOCKING", "0"),
    ],
)
def test_neuron_needs_these_settings(node: NodeContract, name: str, value: str) -> None:
    assert environment(node)[name] == value


def test_whatever_waits_for_a_rank_has_the_compilation_timeout() -> None:
    trn1, trn2 = environment(TWO_NODES), environment(TRN2)

    assert int(trn1["NEURON_RT_EXEC_TIMEOUT"]) >= MAX_COMPILE_S
    assert int(trn2["NEURON_RT_EXEC_TIMEOUT"]) >= MAX_COMPILE_S
    assert int(trn2["TORCH_NEURONX_NEFF_CACHE_LOCK_TIMEOUT"]) >= MAX_COMPILE_S
    assert ranks._TIMEOUT.total_seconds() >= MAX_COMPILE_S


@pytest.mark.parametrize(("kernel", "set_it"), [("5.14.21", True), ("5.15.0", False)])
def test_fork_safety_is_requested_only_on_old_kernels(kernel: str, set_it: bool) -> None:
    assert ("FI_EFA_FORK_SAFE" in environment(TWO_NODES, kernel=kernel)) is set_it


@pytest.mark.parametrize(
    ("workload", "flags"),
    [
        ("llama2-7b", "--model-type transformer --distribution-strategy=llm-training"),
        ("bert", "--model-type transformer"),
        ("mnist", None),
    ],
)
def test_the_compiler_gets_the_references_options(workload: str, flags: str | None) -> None:
    kind = WORKLOADS[workload].dataset_kind

    assert environment(TWO_NODES, dataset_kind=kind).get("NEURON_CC_FLAGS") == flags


def test_a_cpu_node_gets_no_neuron_settings() -> None:
    assert environment(node_on(None), interface="lo") == {
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }


def test_accelerate_uses_the_cpu_on_a_cpu_node() -> None:
    cpu = environment(node_on(None), is_own_model=False)
    trn1 = environment(TWO_NODES, is_own_model=False)

    assert (cpu["ACCELERATE_USE_CPU"], cpu["ACCELERATE_TORCH_DEVICE"]) == ("true", "cpu")
    assert not [name for name in trn1 if name.startswith("ACCELERATE")]


def test_user_settings_take_precedence() -> None:
    env, remarks = worker_environment({"FI_PROVIDER": "mine"}, TWO_NODES, AWS)

    assert env["FI_PROVIDER"] == "mine"
    assert remarks == ["FI_PROVIDER=mine is kept; the launcher would set efa"]


@pytest.mark.parametrize(
    ("preset", "is_kept"), [("localhost:48620", False), ("10.0.0.1:62182", True)]
)
def test_a_root_communicator_on_loopback_is_removed(preset: str, is_kept: bool) -> None:
    env, remarks = worker_environment({ROOT_COMM_ID: preset}, TWO_NODES, AWS)

    assert env.get(ROOT_COMM_ID) == (preset if is_kept else None)
    assert any(f"{ROOT_COMM_ID}={preset} is removed" in line for line in remarks) is not is_kept


def test_torchneuron_gives_each_process_its_core_so_preset_cores_are_removed() -> None:
    preset = {"NEURON_RT_VISIBLE_CORES": "0-63", "NEURON_RT_NUM_CORES": "64"}

    env, remarks = worker_environment(preset, TRN2, AWS)

    assert not preset.keys() & env.keys()
    assert [remark.partition(" ")[0] for remark in remarks] == [
        "NEURON_RT_VISIBLE_CORES=0-63", "NEURON_RT_NUM_CORES=64",
    ]  # fmt: skip


def test_torchneuron_gets_no_variable_of_xla_and_no_silent_fallback() -> None:
    env = environment(replace(TRN2, bucket="bucket"), has_cache=True)

    xla = ("PJRT_", "XLA_", "NEURON_FUSE_", "NEURON_CC_", "NEURON_COMPILE_", "NEURON_RT_ASYNC_")
    assert not [name for name in env if name.startswith(xla)]
    assert env["TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS"] == "1"
    assert env["TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION"] == "1"


@pytest.mark.parametrize(
    ("name", "release", "processes", "threads"),
    [
        ("trn2.48xlarge", "2.33.1", 64, "2"),
        ("trn2.48xlarge", "2.33.1", 4, "36"),
        ("trn1.32xlarge", "2.28.0", 32, "1"),
    ],
)
def test_torchneurons_processes_share_the_containers_vcpus(
    name: str, release: str, processes: int, threads: str
) -> None:
    node = replace(node_on(name, release=release), processes_per_node=processes)

    assert environment(node)["OMP_NUM_THREADS"] == threads
    assert environment(replace(node, is_emulated=True))["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize("node", [TWO_NODES, TRN2], ids=["trn1", "trn2"])
def test_only_this_projects_models_round_to_nearest(node: NodeContract) -> None:
    name = "NEURON_RT_STOCHASTIC_ROUNDING_EN"

    assert environment(node)[name] == "0"
    assert name not in environment(node, is_own_model=False)
