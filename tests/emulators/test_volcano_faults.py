"""Every fault of the Batch rehearsal on a cluster, with the real launcher in the pods.

Launchers and workers take seconds to start, so one job bears a fault in each of its attempts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.emulators.volcano_jobs import end, events, job, output, pods, run, serving, wait
from trainium_catalogue.exit_codes import ExitCode
from trainium_catalogue.kubernetes import NAMESPACE
from trainium_emulators.kubernetes import ClusterEmulator
from trainium_emulators.kubernetes.resources import (
    COMMAND,
    CONFIG_MAP,
    POD,
    POD_GROUP,
    SERVICE,
    VOLCANO_JOB,
)
from trainium_emulators.nodes.faults import NodeFault

Json = dict[str, Any]
UNLUCKY = "unlucky"
FAULTS = [
    NodeFault(kind=kind, run=UNLUCKY) for kind in ("preflight-failure", "hang-child", "kill-main")
]
ALL_REDUCE = (
    *(sys.executable, "-m", "training.launch", "all-reduce", "--max-bytes", "65536"),
    *("--seconds-per-size", "2", "--total-seconds", "60", "--iterations", "100000"),
    *("--peer-timeout-s", "5", "--join-timeout-s", "120", "--stop-grace-s", "3"),
)


def take_fault(run: str) -> NodeFault | None:
    return FAULTS.pop(0) if FAULTS and FAULTS[0].run == run else None


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterEmulator]:
    with serving("127.0.96", take_fault=take_fault) as running:
        yield running


# `make rehearse` kills a pod; without processes: test_volcano_fidelity.py.
@pytest.mark.full
def test_each_node_fault_costs_one_attempt(cluster: ClusterEmulator) -> None:
    cluster.apply(job(UNLUCKY, list(ALL_REDUCE)))
    status = end(cluster, UNLUCKY, 180)

    assert (status["state"]["phase"], status["retryCount"]) == ("Failed", 3)
    assert FAULTS == []
    codes = [int(text.rpartition(" ")[2]) for text in events(cluster, UNLUCKY) if "exit" in text]
    # Either the frozen launcher's guardian or its peer may give up first.
    assert {ExitCode.PREFLIGHT, ExitCode.KILLED} <= set(codes)
    assert set(codes) <= {ExitCode.PREFLIGHT, ExitCode.KILLED, ExitCode.HOST}


def test_ended_job_frees_queue_share(cluster: ClusterEmulator) -> None:
    whole = {"limits": {"aws.amazon.com/neuron": "16"}}
    run(cluster, "before", ["true"], resources=whole)

    assert run(cluster, "after", ["true"], resources=whole)["state"]["phase"] == "Completed"
    wait(lambda: not cluster.store.list(POD_GROUP, NAMESPACE))
    made = [e for kind in (CONFIG_MAP, SERVICE) for e in cluster.store.list(kind, NAMESPACE)]
    assert made == []
    assert len(pods(cluster, "before")) == 2


def test_pod_without_policy_is_recreated(cluster: ClusterEmulator) -> None:
    manifest = job("plain", ["sh", "-c", "echo $HOSTNAME; sleep 60"])
    manifest["spec"]["policies"] = []
    cluster.apply(manifest)
    wait(lambda: (found := pods(cluster, "plain")) and all(output(cluster, p) for p in found))
    first, other = (pod["metadata"]["uid"] for pod in pods(cluster, "plain"))

    cluster.store.delete(POD, NAMESPACE, "plain-node-0-0", grace_s=0)
    wait(lambda: first not in (found := uids(cluster, "plain")) and len(found) == 2)
    wait(lambda: output(cluster, pods(cluster, "plain")[0]) == ["plain-node-0-0"])

    assert other in uids(cluster, "plain")
    cluster.store.delete(VOLCANO_JOB, NAMESPACE, "plain")


def uids(cluster: ClusterEmulator, name: str) -> list[str]:
    return [pod["metadata"]["uid"] for pod in pods(cluster, name)]


def test_missing_claim_keeps_gang_pending_with_reason(
    cluster: ClusterEmulator,
) -> None:
    volume = {"name": "shared", "persistentVolumeClaim": {"claimName": "lost"}}
    cluster.apply(job("unmounted", ["true"], volumes=[volume]))
    wait(lambda: any("lost" in text for text in events(cluster, "unmounted")))

    conditions = [pod["status"]["conditions"][0] for pod in pods(cluster, "unmounted")]
    assert {(c["status"], c["message"]) for c in conditions} == {
        ("False", 'persistentvolumeclaim "lost" not found')
    }
    cluster.store.delete(VOLCANO_JOB, NAMESPACE, "unmounted")


def test_pods_that_are_refused_leave_an_event(cluster: ClusterEmulator) -> None:
    cluster.apply(job("no-account", ["true"], serviceAccountName="job-x"))

    wait(lambda: events(cluster, "no-account"))
    assert 'serviceaccount "job-x" not found' in events(cluster, "no-account")[0]
    cluster.store.delete(VOLCANO_JOB, NAMESPACE, "no-account")


def test_failed_container_log_tail_is_kept_on_request(cluster: ClusterEmulator) -> None:
    manifest = job("spoken", ["sh", "-c", "echo first; echo last; exit 1"], nodes=1)
    container = manifest["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
    container["terminationMessagePolicy"] = "FallbackToLogsOnError"
    cluster.apply(manifest)
    end(cluster, "spoken")

    (left,) = pods(cluster, "spoken")
    assert left["status"]["containerStatuses"][0]["state"]["terminated"]["message"] == "first\nlast"


def test_command_for_missing_job_is_consumed(cluster: ClusterEmulator) -> None:
    target = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "nobody"}
    cluster.store.create(
        COMMAND, NAMESPACE, {"metadata": {"name": "c"}, "action": "TerminateJob", "target": target}
    )

    wait(lambda: cluster.store.find(COMMAND, NAMESPACE, "c") is None)
