"""A host that fails preflight, or whose device fails, while the others do not, with real processes.

The failure of preflight is real: this machine has none of a trn1.32xlarge's Neuron devices.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.limits import scaled
from tests.training.conftest import Cluster, Pods
from tests.training.program.bundles import program
from trainium_catalogue.exit_codes import ExitCode

TRN1 = {
    "TRAINIUM_DEVICE": "",
    "TRAINIUM_INSTANCE_TYPE": "trn1.32xlarge",
    "TRAINIUM_NEURON_RELEASE": "2.28.0",
}

BROKEN_DEVICE = """
import os, time
if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
    raise RuntimeError("NRT EXECUTION FAILED: HBM repairable uncorrectable error")
time.sleep(600)
"""


def test_only_the_node_with_the_unfit_host_ends_with_its_code(cluster: Cluster) -> None:
    cluster.start(nodes=[0])
    cluster.start(nodes=[1], extra=TRN1)

    codes = cluster.end(within_s=scaled(30))

    assert codes == {0: ExitCode.PREFLIGHT, 1: ExitCode.UNFIT_HOST}, cluster.all_logs()
    assert "node 1 failed preflight: " in cluster.log(0).splitlines()[-1]
    assert "0 of 16 Neuron devices" in cluster.log(0).splitlines()[-1]


def test_a_lack_common_to_all_hosts_makes_none_unfit(cluster: Cluster) -> None:
    cluster.start(extra=TRN1)

    codes = cluster.end(within_s=scaled(30))

    assert codes == {0: ExitCode.PREFLIGHT, 1: ExitCode.PREFLIGHT}, cluster.all_logs()


def test_the_only_host_of_a_batch_job_is_replaced(lone_node: Cluster) -> None:
    lone_node.start(extra=TRN1)

    assert lone_node.end(within_s=scaled(30)) == {0: ExitCode.UNFIT_HOST}, lone_node.all_logs()


def test_a_single_pod_exits_so_volcano_starts_another_attempt(
    tmp_path: Path,
) -> None:
    """Volcano ends a job whose pods have all failed while a delayed action is pending."""
    pod = Pods(tmp_path, num_nodes=1)
    pod.start(extra=TRN1)

    assert pod.end(within_s=scaled(30)) == {0: ExitCode.PREFLIGHT}, pod.all_logs()


def test_on_a_cluster_the_other_pods_stay_until_volcano_stops_them(pods: Pods) -> None:
    pods.start(nodes=[0])
    pods.start(nodes=[1], extra=TRN1)
    pods.wait_for("waiting until the node with the unfit host is cordoned", node=0)
    assert pods.nodes[1].wait(scaled(10)) == ExitCode.UNFIT_HOST, pods.all_logs()
    assert pods.nodes[0].poll() is None

    os.kill(pods.launcher(0), signal.SIGTERM)

    codes = pods.end(within_s=scaled(10))
    assert codes == {0: ExitCode.PREFLIGHT, 1: ExitCode.UNFIT_HOST}, pods.all_logs()


def start_with_a_broken_device(job: Cluster) -> None:
    job.start(*program(job.folder, script=BROKEN_DEVICE), workload="program")


def test_a_hardware_error_makes_only_its_host_unfit(cluster: Cluster) -> None:
    start_with_a_broken_device(cluster)

    assert cluster.end(within_s=scaled(30)) == {0: ExitCode.HOST, 1: ExitCode.UNFIT_HOST}
    last = cluster.log(0).splitlines()[-1]
    assert "node 1: rank 1: RuntimeError: NRT EXECUTION FAILED: HBM repairable" in last


# The same for preflight, above.
@pytest.mark.full
def test_a_hardware_error_of_the_only_host_replaces_it_on_batch(lone_node: Cluster) -> None:
    start_with_a_broken_device(lone_node)

    assert lone_node.end(within_s=scaled(30)) == {0: ExitCode.UNFIT_HOST}, lone_node.all_logs()


# The same for preflight, above.
@pytest.mark.full
def test_a_hardware_error_on_a_cluster_lets_volcano_start_another_attempt(pods: Pods) -> None:
    start_with_a_broken_device(pods)
    pods.wait_for("waiting until the node with the unfit host is cordoned", node=0)
    assert pods.nodes[1].wait(scaled(10)) == ExitCode.UNFIT_HOST, pods.all_logs()

    os.kill(pods.launcher(0), signal.SIGTERM)

    codes = pods.end(within_s=scaled(10))
    assert codes == {0: ExitCode.HOST, 1: ExitCode.UNFIT_HOST}, pods.all_logs()
