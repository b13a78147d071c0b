"""A node's environment, under Batch or Volcano, becomes one immutable value, or one message."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training.nodes import node_on
from training import launch
from training.core.arguments import ArgumentError, parse
from training.core.contract import DeviceKind, NodeContract, read_contract
from training.core.orchestrators import ContractError
from training.launcher.addresses import find_host
from training.workloads import refuse_unfit

NEWEST = "2.33.1"
MAIN = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"
MAIN_ADDRESS = "10.0.0.1"
HOST = "job-x7-node-0-0.job-x7"
OF_DEPLOYMENT = {
    "TRAINIUM_INSTANCE_TYPE": "trn1.32xlarge",
    "TRAINIUM_NEURON_RELEASE": "2.28.0",
    "TRAINIUM_BUCKET": "bucket",
    "TRAINIUM_RUN": "first-run",
}


def batch(index: int, num_nodes: int, main: int = 0, **more: str) -> dict[str, str]:
    """Return the variables set by Batch and the job definition."""
    env = {
        "AWS_BATCH_JOB_ID": f"0f3a#{index}",
        "AWS_BATCH_JOB_ATTEMPT": "2",
        "AWS_BATCH_JOB_NODE_INDEX": str(index),
        "AWS_BATCH_JOB_NUM_NODES": str(num_nodes),
        "AWS_BATCH_JOB_MAIN_NODE_INDEX": str(main),
        **OF_DEPLOYMENT,
    }
    if index != main:
        env[MAIN] = MAIN_ADDRESS
    return env | more


def pod(index: int, num_nodes: int, *, restarts: int = 0, **more: str) -> dict[str, str]:
    """Return the variables set by TorchX and Volcano."""
    env = {
        "TRAINIUM_JOB_ID": "job-x7",
        "TRAINIUM_ATTEMPT": str(restarts),
        "TRAINIUM_NODE_INDEX": str(index),
        "TRAINIUM_NUM_NODES": str(num_nodes),
        "TRAINIUM_MAIN_HOST_FROM": "VC_NODE_0_HOSTS" if index else "TORCHX_RANK0_HOST",
        "VC_NODE_0_HOSTS": HOST,
        **OF_DEPLOYMENT,
    }
    if index == 0:
        env["TORCHX_RANK0_HOST"] = "localhost"
    return env | more


def own_address(main_address: str | None) -> str:
    """Return the address from which ``main_address`` is reached."""
    return MAIN_ADDRESS if main_address is None else {MAIN_ADDRESS: "10.0.0.9"}[main_address]


def read(env: dict[str, str]) -> NodeContract:
    return read_contract(env, own_address, {HOST: MAIN_ADDRESS}.__getitem__)


BATCH, POD = batch(1, 4), pod(1, 4)


@given(data=st.data(), num_nodes=st.integers(2, 64))
def test_nodes_agree_on_the_main_node_which_has_rank_0(data: st.DataObject, num_nodes: int) -> None:
    main = data.draw(st.integers(0, num_nodes - 1))

    nodes = [read(batch(index, num_nodes, main)) for index in range(num_nodes)]

    assert nodes[main].node_rank == 0
    assert sorted(node.node_rank for node in nodes) == list(range(num_nodes))
    assert {node.main_address for node in nodes} == {MAIN_ADDRESS}
    assert [node.address == MAIN_ADDRESS for node in nodes] == [node.is_main for node in nodes]


@given(data=st.data(), num_nodes=st.integers(1, 64), restarts=st.integers(0, 9))
def test_a_node_learns_the_same_from_volcano_as_from_batch(
    data: st.DataObject, num_nodes: int, restarts: int
) -> None:
    index = data.draw(st.integers(0, num_nodes - 1))

    in_pod = read(pod(index, num_nodes, restarts=restarts))
    names = {"AWS_BATCH_JOB_ID": f"job-x7#{index}", "AWS_BATCH_JOB_ATTEMPT": str(restarts + 1)}
    on_batch = read(batch(index, num_nodes) | names)

    assert in_pod.on_cluster and not on_batch.on_cluster
    assert replace(in_pod, on_cluster=False) == on_batch


def test_the_main_node_looks_up_no_host_name() -> None:
    def fail(host: str) -> str:
        raise AssertionError(host)

    assert read_contract(pod(0, 4), own_address, fail).main_address == MAIN_ADDRESS


def test_the_first_of_several_hosts_is_the_main_node() -> None:
    node = read(pod(1, 4, VC_NODE_0_HOSTS=f"{HOST},job-x7-node-0-1.job-x7"))

    assert node.main_address == MAIN_ADDRESS


def test_an_explicit_address_is_not_looked_up() -> None:
    def fail(main_address: str | None) -> str:
        raise AssertionError

    node = read_contract(batch(1, 4, TRAINIUM_NODE_ADDRESS="127.0.0.3"), fail)

    assert node.address == "127.0.0.3"


def test_outside_batch_the_machine_is_a_single_node_job() -> None:
    node = read({"TRAINIUM_DEVICE": "cpu"})

    assert (node.num_nodes, node.node_index, node.is_main) == (1, 0, True)
    assert (node.address, node.run, node.attempt) == ("127.0.0.1", "local", 1)
    assert node.bucket is None


def test_a_plain_batch_job_is_a_job_of_one_node() -> None:
    node = read({"TRAINIUM_DEVICE": "cpu", "AWS_BATCH_JOB_ID": "abc", "AWS_BATCH_JOB_ATTEMPT": "1"})

    assert (node.num_nodes, node.run) == (1, "abc")


def test_the_release_determines_the_device_and_the_instance_type_its_processes() -> None:
    node = read(batch(0, 1))
    later = read(
        batch(0, 1, TRAINIUM_INSTANCE_TYPE="trn2.48xlarge", TRAINIUM_NEURON_RELEASE=NEWEST)
    )

    assert (node.device, node.processes_per_node) == (DeviceKind.XLA, 32)
    assert (later.device, later.processes_per_node) == (DeviceKind.TORCH_NEURON, 64)


def test_a_cpu_defaults_to_one_process() -> None:
    assert read(batch(0, 1, TRAINIUM_DEVICE="cpu")).processes_per_node == 1
    env = batch(0, 1, TRAINIUM_DEVICE="cpu", TRAINIUM_PROCESSES_PER_NODE="3")
    assert read(env).processes_per_node == 3


def test_the_cpu_takes_any_pair() -> None:
    env = batch(0, 1, TRAINIUM_NEURON_RELEASE="2.33.1", TRAINIUM_DEVICE="cpu")

    assert read(env).device is DeviceKind.CPU


@pytest.mark.parametrize(
    ("env", "change", "message"),
    [
        (BATCH, {"AWS_BATCH_JOB_NUM_NODES": ""}, "is set, but not AWS_BATCH_JOB_NUM_NODES"),
        (BATCH, {"AWS_BATCH_JOB_NUM_NODES": "four"}, "NUM_NODES=four is not a whole number"),
        (BATCH, {"AWS_BATCH_JOB_NUM_NODES": "0"}, "at least 1"),
        (BATCH, {"AWS_BATCH_JOB_NODE_INDEX": "4"}, "is outside the job's 4 nodes"),
        (BATCH, {"AWS_BATCH_JOB_MAIN_NODE_INDEX": "4"}, "is outside the job's 4 nodes"),
        (BATCH, {MAIN: ""}, f"{MAIN} is not set on child node 1"),
        (BATCH, {"AWS_BATCH_JOB_ATTEMPT": "0"}, "AWS_BATCH_JOB_ATTEMPT=0 is not a whole number"),
        (BATCH, {"AWS_BATCH_JOB_ARRAY_INDEX": "1"}, "outside an array job of 1 children"),
        (BATCH, {"TRAINIUM_INSTANCE_TYPE": "trn1.32large"}, "did you mean 'trn1.32xlarge'?"),
        (BATCH, {"TRAINIUM_NEURON_RELEASE": NEWEST}, f"{NEWEST} does not run on trn1.32xlarge"),
        (BATCH, {"TRAINIUM_INSTANCE_TYPE": ""}, "set TRAINIUM_DEVICE=cpu to run on this machine"),
        (BATCH, {"TRAINIUM_INSTANCE_TYPE": "trn1.2xlarge"}, "has no EFA and cannot join 4 nodes"),
        (BATCH, {"TRAINIUM_DEVICE": "cpuu"}, "did you mean 'cpu'?"),
        (BATCH, {"TRAINIUM_PROCESSES_PER_NODE": "0"}, "PROCESSES_PER_NODE=0 is not a whole number"),
        (BATCH, {"TRAINIUM_RUN": "../other"}, "TRAINIUM_RUN=../other is not a valid run name"),
        (BATCH, {"TRAINIUM_STOP_AT": "2027-01-31T10:50:00"}, "is not a time such as"),
        # The downward API's value for a missing annotation.
        (POD, {"TRAINIUM_ATTEMPT": ""}, "is set, but not TRAINIUM_ATTEMPT"),
        (POD, {"TRAINIUM_NUM_NODES": ""}, "a Volcano job of this deployment sets all of them"),
        (POD, {"TRAINIUM_NODE_INDEX": "4"}, "TRAINIUM_NODE_INDEX=4 is outside the job's 4 nodes"),
        (POD, {"TRAINIUM_TIME_LIMIT_S": "0"}, "TRAINIUM_TIME_LIMIT_S=0 is not a whole number"),
        (POD, {"VC_NODE_0_HOSTS": ""}, "VC_NODE_0_HOSTS, which TRAINIUM_MAIN_HOST_FROM names, is"),
        (POD, {"AWS_BATCH_JOB_ID": "0f3a"}, "AWS_BATCH_JOB_ID and TRAINIUM_JOB_ID are both set"),
    ],
)
def test_an_invalid_value_is_refused_with_a_remedy(
    env: dict[str, str], change: dict[str, str], message: str
) -> None:
    with pytest.raises(ContractError, match=re.escape(message)):
        read(env | change)


@given(
    st.sampled_from([BATCH, POD]),
    st.dictionaries(
        st.sampled_from(sorted({*BATCH, *POD})),
        st.text(max_size=8).filter(lambda text: "\0" not in text),
    ),
)
def test_any_environment_is_parsed_or_refused(env: dict[str, str], change: dict[str, str]) -> None:
    try:
        node = read_contract(env | change, lambda main: MAIN_ADDRESS, lambda host: MAIN_ADDRESS)
    except ContractError as error:
        assert "\n" not in str(error) or "\n" in "".join(change.values())
    else:
        assert 0 <= node.node_rank < node.num_nodes


def test_a_name_is_looked_up_until_it_has_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def look_up(host: str) -> str:
        asked.append(host)
        if len(asked) < 3:
            raise OSError("unknown")
        return MAIN_ADDRESS

    monkeypatch.setattr("socket.gethostbyname", look_up)
    monkeypatch.setattr("training.launcher.addresses._RETRY_S", 0.01)

    assert find_host(HOST, within_s=5) == MAIN_ADDRESS
    assert asked == [HOST] * 3


def test_a_launcher_without_a_main_node_fails_preflight(
    capsys: pytest.CaptureFixture[str],
) -> None:
    env = pod(1, 2, VC_NODE_0_HOSTS="main.invalid", TRAINIUM_DEVICE="cpu")

    code = launch.main(["all-reduce", "--join-timeout-s", "1"], env)

    assert code == 70
    assert "main.invalid did not resolve within 1 s" in capsys.readouterr().out


LARGE = node_on("trn2.48xlarge", num_nodes=3, release=NEWEST)


def test_an_unroutable_mesh_is_refused() -> None:
    LARGE.check_backend({"tensor-parallel": 4})
    with pytest.raises(ValueError, match="use 1, 2, 4, 16 or 64"):
        LARGE.check_backend({"tensor-parallel": 8})


def test_run_specific_settings_are_not_refused_before_they_are_read() -> None:
    """The defaults fit neither these links nor three nodes; the run's values may."""
    refuse_unfit(parse(["llama2-7b"]), LARGE)
    with pytest.raises(ArgumentError, match="use 1, 2, 4, 16 or 64"):
        refuse_unfit(parse(["verify", "--tensor-parallel=8"]), LARGE)
