"""A Batch node's environment becomes one immutable value, or one message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training.nodes import node_on
from training.core.arguments import ArgumentError, parse
from training.core.contract import DeviceKind, NodeContract, read_contract
from training.core.orchestrators import ContractError
from training.workloads import refuse_unfit

NEWEST = "2.33.1"
MAIN = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"


def batch(index: int, num_nodes: int, main: int = 0, **more: str) -> dict[str, str]:
    """Return the variables set by Batch and the job definition."""
    env = {
        "AWS_BATCH_JOB_ID": f"0f3a#{index}",
        "AWS_BATCH_JOB_ATTEMPT": "2",
        "AWS_BATCH_JOB_NODE_INDEX": str(index),
        "AWS_BATCH_JOB_NUM_NODES": str(num_nodes),
        "AWS_BATCH_JOB_MAIN_NODE_INDEX": str(main),
        "TRAINIUM_DEPLOYMENT": "default",
        "TRAINIUM_INSTANCE_TYPE": "trn1.32xlarge",
        "TRAINIUM_NEURON_RELEASE": "2.28.0",
        "TRAINIUM_BUCKET": "bucket",
        "TRAINIUM_RUN": "first-run",
    }
    if index != main:
        env[MAIN] = "10.0.0.1"
    return env | more


def own_address(main_address: str | None) -> str:
    return "10.0.0.1" if main_address is None else "10.0.0.9"


def read(env: dict[str, str]) -> NodeContract:
    return read_contract(env, own_address)


def refusal(env: dict[str, str]) -> str:
    with pytest.raises(ContractError) as error:
        read(env)
    return str(error.value)


@given(data=st.data(), num_nodes=st.integers(1, 64))
def test_the_main_node_is_rank_0_and_ranks_are_a_permutation(
    data: st.DataObject, num_nodes: int
) -> None:
    main = data.draw(st.integers(0, num_nodes - 1))

    nodes = [read(batch(index, num_nodes, main)) for index in range(num_nodes)]

    assert nodes[main].node_rank == 0
    assert sorted(node.node_rank for node in nodes) == list(range(num_nodes))


@given(data=st.data(), num_nodes=st.integers(2, 64))
def test_all_nodes_agree_on_the_main_address(data: st.DataObject, num_nodes: int) -> None:
    main = data.draw(st.integers(0, num_nodes - 1))

    nodes = [read(batch(index, num_nodes, main)) for index in range(num_nodes)]

    assert {node.main_address for node in nodes} == {"10.0.0.1"}
    assert [node.address == "10.0.0.1" for node in nodes] == [node.is_main for node in nodes]


def test_the_suffix_of_a_nodes_job_id_is_dropped() -> None:
    assert read(batch(1, 4)).job_id == "0f3a"


def test_a_child_uses_its_address_that_faces_the_main_node() -> None:
    asked: list[str | None] = []

    def find(main_address: str | None) -> str:
        asked.append(main_address)
        return "10.0.0.9"

    read_contract(batch(1, 4), find)

    assert asked == ["10.0.0.1"]


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
    env = {"TRAINIUM_DEVICE": "cpu", "AWS_BATCH_JOB_ID": "abc", "AWS_BATCH_JOB_ATTEMPT": "1"}

    assert (read(env).num_nodes, read(env).run) == (1, "abc")


def test_an_empty_variable_counts_as_not_set() -> None:
    assert read({"TRAINIUM_DEVICE": "cpu", "TRAINIUM_BUCKET": ""}).bucket is None


def test_a_node_runs_only_compatible_instance_types_and_releases() -> None:
    node = read(batch(0, 1))
    later = read(
        batch(0, 1, TRAINIUM_INSTANCE_TYPE="trn2.48xlarge", TRAINIUM_NEURON_RELEASE=NEWEST)
    )

    assert (node.device, node.processes_per_node) == (DeviceKind.XLA, 32)
    assert (later.device, later.processes_per_node) == (DeviceKind.TORCH_NEURON, 64)
    assert NEWEST in refusal(batch(0, 1, TRAINIUM_NEURON_RELEASE=NEWEST))


def test_a_cpu_defaults_to_one_process() -> None:
    assert read(batch(0, 1, TRAINIUM_DEVICE="cpu")).processes_per_node == 1
    env = batch(0, 1, TRAINIUM_DEVICE="cpu", TRAINIUM_PROCESSES_PER_NODE="3")
    assert read(env).processes_per_node == 3


def test_the_cpu_takes_any_pair() -> None:
    env = batch(0, 1, TRAINIUM_NEURON_RELEASE="2.33.1", TRAINIUM_DEVICE="cpu")

    assert read(env).device is DeviceKind.CPU


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"AWS_BATCH_JOB_NUM_NODES": ""}, "is set, but not AWS_BATCH_JOB_NUM_NODES"),
        ({"AWS_BATCH_JOB_NUM_NODES": "four"}, "NUM_NODES=four is not a whole number"),
        ({"AWS_BATCH_JOB_NUM_NODES": "0"}, "at least 1"),
        ({"AWS_BATCH_JOB_NODE_INDEX": "7"}, "is outside the job's 4 nodes"),
        ({"AWS_BATCH_JOB_NODE_INDEX": "-1"}, "not a whole number of at least 0"),
        ({"AWS_BATCH_JOB_MAIN_NODE_INDEX": "4"}, "is outside the job's 4 nodes"),
        ({MAIN: ""}, f"{MAIN} is not set on child node 1"),
        ({"AWS_BATCH_JOB_ATTEMPT": "0"}, "AWS_BATCH_JOB_ATTEMPT=0 is not a whole number"),
        ({"TRAINIUM_INSTANCE_TYPE": "trn1.32large"}, "did you mean 'trn1.32xlarge'?"),
        ({"TRAINIUM_NEURON_RELEASE": "2.28"}, "did you mean '2.28.0'?"),
        ({"TRAINIUM_INSTANCE_TYPE": ""}, "set TRAINIUM_DEVICE=cpu to run on this machine's CPU"),
        ({"TRAINIUM_INSTANCE_TYPE": "trn1.2xlarge"}, "has no EFA and cannot join 4 nodes"),
        ({"TRAINIUM_DEVICE": "cpuu"}, "did you mean 'cpu'?"),
        ({"TRAINIUM_PROCESSES_PER_NODE": "0"}, "PROCESSES_PER_NODE=0 is not a whole number"),
        ({"TRAINIUM_RUN": "../other"}, "TRAINIUM_RUN=../other is not a valid run name"),
    ],
)
def test_an_invalid_value_is_refused_with_a_remedy(change: dict[str, str], message: str) -> None:
    assert message in refusal(batch(1, 4) | change)


@given(
    st.dictionaries(
        st.sampled_from(sorted(batch(1, 4))), st.text(max_size=8).filter(lambda t: "\0" not in t)
    )
)
def test_any_environment_is_parsed_or_refused(change: dict[str, str]) -> None:
    try:
        node = read(batch(1, 4) | change)
    except ContractError as error:
        assert "\n" not in str(error) or "\n" in "".join(change.values())
    else:
        assert 0 <= node.node_rank < node.num_nodes


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
