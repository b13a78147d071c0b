"""A host that fails preflight, or whose device fails, while the others do not, with real processes.

Other combinations: test_verdict.py.

The failure of preflight is real: this machine has none of a trn1.32xlarge's Neuron devices.
"""

from __future__ import annotations

import os
import signal

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


def test_on_a_cluster_the_other_pods_stay_until_volcano_stops_them(pods: Pods) -> None:
    pods.start(nodes=[0])
    pods.start(nodes=[1], extra=TRN1)
    pods.wait_for("waiting until the node with the unfit host is cordoned", node=0)
    assert pods.nodes[1].wait(scaled(10)) == ExitCode.UNFIT_HOST, pods.all_logs()
    assert pods.nodes[0].poll() is None

    os.kill(pods.launcher(0), signal.SIGTERM)

    codes = pods.end(within_s=scaled(10))
    assert codes == {0: ExitCode.PREFLIGHT, 1: ExitCode.UNFIT_HOST}, pods.all_logs()


def test_a_hardware_error_makes_only_its_host_unfit(cluster: Cluster) -> None:
    cluster.start(*program(cluster.folder, script=BROKEN_DEVICE), workload="program")

    assert cluster.end(within_s=scaled(30)) == {0: ExitCode.HOST, 1: ExitCode.UNFIT_HOST}
    last = cluster.log(0).splitlines()[-1]
    assert "node 1: rank 1: RuntimeError: NRT EXECUTION FAILED: HBM repairable" in last
