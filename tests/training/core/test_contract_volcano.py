"""A Volcano pod's environment becomes the same value as a Batch node's."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.limits import scaled
from tests.training.core.test_contract import batch, own_address
from training.core.contract import NodeContract, read_contract
from training.core.orchestrators import ContractError
from training.launch import main
from training.launcher.addresses import HostNotFound, find_host

MAIN_ADDRESS = "10.0.0.1"
HOST = "job-x7-node-0-0.job-x7"


def pod(index: int, num_nodes: int, *, restarts: int = 0, **more: str) -> dict[str, str]:
    """Return the variables set by TorchX and Volcano."""
    env = {
        "TRAINIUM_JOB_ID": "job-x7",
        "TRAINIUM_ATTEMPT": str(restarts),
        "TRAINIUM_NODE_INDEX": str(index),
        "TRAINIUM_NUM_NODES": str(num_nodes),
        "TRAINIUM_MAIN_HOST_FROM": "VC_NODE_0_HOSTS" if index else "TORCHX_RANK0_HOST",
        "VC_NODE_0_HOSTS": HOST,
        "TRAINIUM_INSTANCE_TYPE": "trn1.32xlarge",
        "TRAINIUM_NEURON_RELEASE": "2.28.0",
        "TRAINIUM_BUCKET": "bucket",
        "TRAINIUM_RUN": "first-run",
    }
    if index == 0:
        env["TORCHX_RANK0_HOST"] = "localhost"
    return env | more


def read(env: dict[str, str]) -> NodeContract:
    return read_contract(env, own_address, {HOST: MAIN_ADDRESS}.__getitem__)


def refusal(env: dict[str, str]) -> str:
    with pytest.raises(ContractError) as error:
        read(env)
    return str(error.value)


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


def test_without_a_run_name_the_job_names_the_run() -> None:
    assert read(pod(0, 1, TRAINIUM_RUN="")).run == "job-x7"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"TRAINIUM_JOB_ID": ""}, "TRAINIUM_ATTEMPT is set, but not TRAINIUM_JOB_ID"),
        # The downward API's value for a missing annotation.
        ({"TRAINIUM_ATTEMPT": ""}, "is set, but not TRAINIUM_ATTEMPT"),
        ({"TRAINIUM_NUM_NODES": ""}, "a Volcano job of this deployment sets all of them"),
        ({"TRAINIUM_NUM_NODES": "two"}, "TRAINIUM_NUM_NODES=two is not a whole number"),
        ({"TRAINIUM_NODE_INDEX": "4"}, "TRAINIUM_NODE_INDEX=4 is outside the job's 4 nodes"),
        ({"TRAINIUM_ATTEMPT": "-1"}, "TRAINIUM_ATTEMPT=-1 is not a whole number"),
        ({"VC_NODE_0_HOSTS": ""}, "VC_NODE_0_HOSTS, which TRAINIUM_MAIN_HOST_FROM names, is not"),
        ({"VC_NODE_0_HOSTS": ""}, "Volcano sets it when the job has the svc plugin"),
        ({"AWS_BATCH_JOB_ID": "0f3a"}, "AWS_BATCH_JOB_ID and TRAINIUM_JOB_ID are both set"),
        ({"TRAINIUM_INSTANCE_TYPE": "trn1.2xlarge"}, "has no EFA and cannot join 4 nodes"),
    ],
)
def test_an_invalid_pod_value_is_refused_with_a_remedy(
    change: dict[str, str], message: str
) -> None:
    assert message in refusal(pod(1, 4) | change)


@given(
    st.dictionaries(
        st.sampled_from(sorted(pod(1, 4))), st.text(max_size=8).filter(lambda t: "\0" not in t)
    )
)
def test_any_pod_environment_is_parsed_or_refused(change: dict[str, str]) -> None:
    try:
        node = read_contract(pod(1, 4) | change, own_address, lambda host: MAIN_ADDRESS)
    except ContractError:
        return
    assert node.node_rank < node.num_nodes


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


def test_an_unresolvable_name_times_out() -> None:
    begin = time.monotonic()

    with pytest.raises(HostNotFound, match=r"x\.invalid did not resolve within 0\.1 s"):
        find_host("x.invalid", within_s=0.1)

    assert time.monotonic() - begin < scaled(5)


def test_a_launcher_without_a_main_node_fails_preflight(
    capsys: pytest.CaptureFixture[str],
) -> None:
    env = pod(1, 2, VC_NODE_0_HOSTS="main.invalid", TRAINIUM_DEVICE="cpu")

    code = main(["all-reduce", "--join-timeout-s", "1"], env)

    assert code == 70
    assert re.search(r"main\.invalid did not resolve within 1 s", capsys.readouterr().out)
