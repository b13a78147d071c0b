"""Every node failure, provoked on real processes: all nodes end with one coded status.

The peer timeout is 3 s here; the bound ``BOUND_S`` corresponds to 60 s by default.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trainium_catalogue.contract import PEER_WATCH

if TYPE_CHECKING:
    from tests.training.conftest import Cluster

# Silence (3 s), the guardian's second look (1 s), settling (3 s), closing (5 s), a slow machine.
BOUND_S = 20


# test_torchrun gives every node its rank, wherever the main node is, and two nodes work below.
# Three tell a main node whose index is subtracted from one whose index is added.
@pytest.mark.full
@pytest.mark.parametrize(("num_nodes", "processes"), [(3, 1), (4, 2)])
def test_a_multi_node_job_succeeds_wherever_its_main_node_runs(
    large_cluster: Cluster, num_nodes: int, processes: int
) -> None:
    large_cluster.num_nodes = num_nodes
    extra = {"TRAINIUM_PROCESSES_PER_NODE": str(processes)}
    large_cluster.start("--max-bytes=65536", extra=extra)

    ended = large_cluster.end(within_s=120)
    assert ended == dict.fromkeys(range(num_nodes), 0), large_cluster.all_logs()
    path = large_cluster.folder / "build/runs/test-run/results/all-reduce.json"
    result = json.loads(path.read_text())
    assert (result["status"], result["num_ranks"]) == ("passed", num_nodes * processes)
    assert "written:" in large_cluster.log(1)


# `make rehearse` kills one.
@pytest.mark.full
def test_a_killed_child_launcher_ends_all_nodes_for_a_retry(cluster: Cluster) -> None:
    cluster.start_endless()

    os.kill(cluster.launcher(1), signal.SIGKILL)

    assert cluster.end(within_s=BOUND_S) == {0: 75, 1: 137}, cluster.all_logs()
    assert "node 1 was lost: its launcher exited" in cluster.log(0)


# A frozen one, killed by its guardian, is below.
@pytest.mark.full
def test_a_killed_main_launcher_ends_all_nodes_for_a_retry(cluster: Cluster) -> None:
    cluster.start_endless()

    os.kill(cluster.launcher(0), signal.SIGKILL)

    assert cluster.end(within_s=BOUND_S) == {0: 137, 1: 75}, cluster.all_logs()
    assert "the main node was lost: its launcher exited" in cluster.log(1)


def test_a_frozen_child_launcher_ends_all_nodes_for_a_retry(cluster: Cluster) -> None:
    cluster.start_endless()

    os.kill(cluster.launcher(1), signal.SIGSTOP)

    assert cluster.end(within_s=BOUND_S) == {0: 75, 1: 137}, cluster.all_logs()
    assert "node 1" in cluster.log(0)
    assert "guardian: the launcher sent no heartbeat" in cluster.log(1)


def test_a_frozen_main_launcher_is_killed_by_its_guardian(cluster: Cluster) -> None:
    cluster.start_endless()

    os.kill(cluster.launcher(0), signal.SIGSTOP)

    assert cluster.end(within_s=BOUND_S) == {0: 137, 1: 75}, cluster.all_logs()
    assert "guardian: the launcher sent no heartbeat" in cluster.log(0)


# A silent program: tests/training/program/test_endings.py.
@pytest.mark.full
def test_a_frozen_worker_is_reported_as_a_hang_by_every_node(cluster: Cluster) -> None:
    cluster.start_endless("--hang-limit-s=5")

    os.kill(cluster.worker(1), signal.SIGSTOP)

    assert cluster.end(within_s=BOUND_S + 5) == {0: 75, 1: 75}, cluster.all_logs()
    assert "made no progress at: " in cluster.log(0)


def test_a_killed_worker_ends_all_nodes_for_a_retry(cluster: Cluster) -> None:
    cluster.start_endless()

    os.kill(cluster.worker(1), signal.SIGKILL)

    assert cluster.end(within_s=BOUND_S) == {0: 75, 1: 75}, cluster.all_logs()
    assert "node 1: rank 1 exited without reporting an error" in cluster.log(0)


def test_a_killed_torchrun_ends_its_node_for_a_retry(lone_node: Cluster) -> None:
    lone_node.start_endless()
    stat = Path(f"/proc/{lone_node.worker(0)}/stat").read_text()
    agent = int(stat.rpartition(")")[2].split()[1])

    os.kill(agent, signal.SIGKILL)

    assert lone_node.end(within_s=BOUND_S) == {0: 75}, lone_node.all_logs()
    assert "node 0: " in lone_node.log(0).splitlines()[-1]


# program/test_endings has the error of a program's rank, which takes the same path.
@pytest.mark.full
def test_an_error_in_one_worker_ends_all_nodes_without_a_retry(cluster: Cluster) -> None:
    cluster.start("--peer-timeout-s=3", "--inject-error-rank=1")

    assert cluster.end(within_s=60) == {0: 1, 1: 1}, cluster.all_logs()
    for node in (0, 1):
        assert "node 1: rank 1: InjectedError: raised on rank 1" in cluster.log(node)


def test_a_preflight_finding_on_a_child_ends_all_nodes_with_its_remedy(cluster: Cluster) -> None:
    lower = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)); "
    execute = "os.execv(sys.argv[1], sys.argv[1:])"
    cluster.start(nodes=[0])
    cluster.start(nodes=[1], prefix=[sys.executable, "-c", lower + execute])

    assert cluster.end(within_s=BOUND_S) == {0: 70, 1: 70}, cluster.all_logs()
    for node in (0, 1):
        assert "node 1 failed preflight: nofile is 256, below 513 -> set the nofile ulimit" in (
            cluster.log(node)
        )


def test_a_child_that_never_joins_ends_the_others_after_the_join_timeout(
    large_cluster: Cluster,
) -> None:
    large_cluster.start("--peer-timeout-s=3", "--join-timeout-s=4", nodes=[0, 1, 3])

    assert large_cluster.end(within_s=BOUND_S) == {0: 70, 1: 70, 3: 70}, large_cluster.all_logs()
    assert "node 2 did not join within 4 s" in large_cluster.log(3)


def test_a_straggler_gets_less_time_once_another_child_joined(large_cluster: Cluster) -> None:
    large_cluster.start("--peer-timeout-s=3", "--straggler-timeout-s=2", nodes=[0, 1, 3])

    assert large_cluster.end(within_s=BOUND_S) == {0: 70, 1: 70, 3: 70}, large_cluster.all_logs()
    assert "node 2 did not join within 2 s of the first one (straggler-timeout-s)" in (
        large_cluster.log(3)
    )


def test_a_started_child_that_reaches_no_peer_shortens_the_wait(
    cluster: Cluster, bucket: dict[str, str]
) -> None:
    astray = {"AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": cluster.address(7)}
    cluster.start("--first-child-timeout-s=2", nodes=[0], extra=bucket)
    cluster.start("--join-timeout-s=12", nodes=[1], extra={**bucket, **astray})

    assert cluster.end(within_s=2 * BOUND_S) == {0: 70, 1: 70}, cluster.all_logs()
    assert (
        "node 1 did not join within 2 s (first-child-timeout-s), and node 1 has started"
    ) in cluster.log(0)
    for node in (0, 1):
        assert "likely causes, in this order: the VPC's default security group" in cluster.log(node)


def test_a_main_node_without_network_does_not_wait_longer_for_a_first_child(
    cluster: Cluster, bucket: dict[str, str]
) -> None:
    closed = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}

    cluster.start("--first-child-timeout-s=2", nodes=[0], extra={**bucket, **closed})

    assert cluster.end(within_s=2 * BOUND_S) == {0: 70}, cluster.all_logs()
    assert "and this node cannot reach the bucket either; " in cluster.log(0)


def test_children_not_yet_started_get_the_full_join_timeout(
    cluster: Cluster, bucket: dict[str, str]
) -> None:
    cluster.start("--first-child-timeout-s=1", "--join-timeout-s=12", nodes=[0], extra=bucket)

    assert cluster.end(within_s=2 * BOUND_S) == {0: 70}, cluster.all_logs()
    assert "node 1 did not join within 12 s (join-timeout-s)" in cluster.log(0)


def test_a_lone_child_gives_up_after_the_join_timeout(cluster: Cluster) -> None:
    cluster.start("--join-timeout-s=2", nodes=[1])

    assert cluster.end(within_s=BOUND_S) == {1: 70}, cluster.all_logs()
    assert "could not join the main node at" in cluster.log(1)


def test_sigterm_to_the_main_node_reaches_all_workers(cluster: Cluster) -> None:
    cluster.start_endless()

    os.kill(cluster.launcher(0), signal.SIGTERM)

    assert cluster.end(within_s=BOUND_S) == {0: 143, 1: 143}, cluster.all_logs()
    assert "rank 0: stopped on request" in cluster.log(0)
    assert "rank 1: stopped on request" in cluster.log(1)


# Without processes: test_verdict.py.
@pytest.mark.full
def test_sigterm_to_one_child_alone_is_a_lost_host(cluster: Cluster) -> None:
    cluster.start_endless()

    os.kill(cluster.launcher(1), signal.SIGTERM)

    assert cluster.end(within_s=BOUND_S) == {0: 75, 1: 75}, cluster.all_logs()
    assert "node 1: stop requested" in cluster.log(0)


def test_sigterm_while_nodes_join_ends_at_once(cluster: Cluster) -> None:
    cluster.start(nodes=[0])
    cluster.wait_for("preflight skipped", node=0)

    os.kill(cluster.launcher(0), signal.SIGTERM)

    assert cluster.end(within_s=BOUND_S) == {0: 143}, cluster.all_logs()


def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace(lone_node: Cluster) -> None:
    lone_node.start_endless("--stop-grace-s=2")
    os.kill(lone_node.worker(0), signal.SIGSTOP)
    started = time.monotonic()

    os.kill(lone_node.launcher(0), signal.SIGTERM)

    assert lone_node.end(within_s=BOUND_S) == {0: 143}, lone_node.all_logs()
    assert time.monotonic() - started >= 2


def test_a_port_in_use_is_reported_with_a_remedy(
    cluster: Cluster,
) -> None:
    with socket.create_server((cluster.address(0), PEER_WATCH)):
        cluster.start(nodes=[0])

        assert cluster.end(within_s=BOUND_S) == {0: 70}, cluster.all_logs()
    assert "Address already in use; stop the other launcher" in cluster.log(0)


def test_bad_configuration_ends_before_anything_starts(cluster: Cluster) -> None:
    cluster.start("--max-byte=4")

    assert cluster.end(within_s=BOUND_S) == {0: 64, 1: 64}
    told = "launch: all-reduce has no parameter 'max-byte'; did you mean 'max-bytes'?\n"
    assert cluster.log(0) == told


# The tests above kill and freeze the same processes of two nodes.
@pytest.mark.full
@pytest.mark.parametrize(
    ("target", "number", "victim"),
    [
        ("launcher", signal.SIGSTOP, 1),
        ("launcher", signal.SIGKILL, 2),
        ("worker", signal.SIGSTOP, 0),
        ("worker", signal.SIGKILL, 3),
    ],
)
def test_any_process_of_any_of_four_nodes_can_be_killed_or_frozen(
    large_cluster: Cluster, target: str, number: signal.Signals, victim: int
) -> None:
    large_cluster.start_endless("--hang-limit-s=6")
    pid = getattr(large_cluster, target)(victim)

    os.kill(pid, number)

    codes = large_cluster.end(within_s=2 * BOUND_S)
    expected = dict.fromkeys(range(4), 75)
    if target == "launcher":
        expected[victim] = 137
    assert codes == expected, large_cluster.all_logs()


def test_the_limit_required_by_preflight_is_available_here() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    assert hard == resource.RLIM_INFINITY or hard >= 512
