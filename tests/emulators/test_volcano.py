"""Gangs of real processes under the emulated Volcano and kubelet."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tests.emulators.volcano_jobs import (
    end,
    events,
    job,
    output,
    pods,
    run,
    serving,
    start,
    state,
    wait,
)
from trainium_catalogue.instances import INSTANCE_TYPES
from trainium_catalogue.kubernetes import NAMESPACE
from trainium_emulators.kubernetes import ClusterEmulator, errors
from trainium_emulators.kubernetes.kubelet import MARK
from trainium_emulators.kubernetes.resources import COMMAND, CONFIG_MAP, POD, SERVICE, VOLCANO_JOB
from trainium_emulators.kubernetes.store import StoreChange

Json = dict[str, Any]
SLEEP = ["sh", "-c", "echo working; sleep 60"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterEmulator]:
    with serving("127.0.91") as running:
        yield running


def variables(cluster: ClusterEmulator, pod: Json) -> dict[str, str]:
    return dict(line.partition("=")[::2] for line in output(cluster, pod))


def process_of(pod: Json) -> psutil.Process:
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == pod["metadata"]["uid"]:
                return process
        except psutil.Error:
            continue
    raise AssertionError("no such process")


@pytest.fixture(scope="module")
def completed(cluster: ClusterEmulator) -> tuple[Json, list[Json]]:
    """A successful job and its pods."""
    status = run(cluster, "good", ["env"], environment={"GREETING": "from $(TRAINIUM_JOB_ID)"})
    return status, pods(cluster, "good")


def test_gang_completes_when_every_pod_has_succeeded(
    completed: tuple[Json, list[Json]],
) -> None:
    status, _ = completed

    assert (status["state"]["phase"], status["succeeded"], status["retryCount"]) == (
        "Completed", 2, 0,
    )  # fmt: skip
    assert [entry["status"] for entry in status["conditions"]] == [
        "Pending", "Running", "Completed",
    ]  # fmt: skip
    assert status["taskStatusCount"]["node-1"] == {"phase": {"Succeeded": 1}}


def test_every_pod_knows_main_pod_address(
    cluster: ClusterEmulator, completed: tuple[Json, list[Json]]
) -> None:
    main, child = completed[1]
    found = variables(cluster, child)

    assert found[found["TRAINIUM_MAIN_HOST_FROM"]] == main["status"]["podIP"]
    assert found["TRAINIUM_NODE_ADDRESS"] == child["status"]["podIP"] != main["status"]["podIP"]
    assert (found["GREETING"], found["TRAINIUM_ATTEMPT"]) == ("from good", "0")
    assert (found["TRAINIUM_DEVICE"], found["VC_TASK_INDEX"]) == ("cpu", "0")


def test_lost_pod_restarts_the_whole_gang(cluster: ClusterEmulator) -> None:
    once = 'echo attempt $TRAINIUM_ATTEMPT; test "$TRAINIUM_ATTEMPT" = 1 || sleep 60'
    start(cluster, "lost", ["sh", "-c", once])
    first = pods(cluster, "lost")

    os.kill(process_of(first[1]).pid, signal.SIGKILL)
    status = end(cluster, "lost")

    assert (status["state"]["phase"], status["retryCount"]) == ("Completed", 1)
    assert [output(cluster, pod) for pod in pods(cluster, "lost")] == [["attempt 1"]] * 2
    assert "lost-node-1-0: PodFailed with exit code 137" in events(cluster, "lost")


def test_workload_error_fails_job_and_keeps_log(cluster: ClusterEmulator) -> None:
    fail = 'test "$TRAINIUM_NODE_INDEX" = 0 && sleep 60; echo Traceback; exit 1'

    status = run(cluster, "wrong", ["sh", "-c", fail])

    assert (status["state"]["phase"], status["retryCount"], status["failed"]) == (
        "Terminated", 0, 1,
    )  # fmt: skip
    (left,) = pods(cluster, "wrong")
    assert output(cluster, left) == ["Traceback"]
    terminated = left["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (terminated["exitCode"], terminated["reason"]) == (1, "Error")


def test_deleted_job_leaves_nothing(cluster: ClusterEmulator) -> None:
    start(cluster, "gone", SLEEP, terminationGracePeriodSeconds=1)
    processes = [process_of(pod) for pod in pods(cluster, "gone")]

    cluster.store.delete(VOLCANO_JOB, NAMESPACE, "gone")
    wait(lambda: not pods(cluster, "gone"))

    wait(lambda: not any(process.is_running() for process in processes), 5)
    names = [
        e["metadata"]["name"] for kind in (CONFIG_MAP, SERVICE) for e in cluster.store.list(kind)
    ]
    assert not [name for name in names if name.startswith("gone")]


def test_command_terminates_a_job(cluster: ClusterEmulator) -> None:
    start(cluster, "unwanted", SLEEP)
    target = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "unwanted"}

    cluster.store.create(
        COMMAND, NAMESPACE, {"metadata": {"name": "c"}, "action": "TerminateJob", "target": target}
    )

    assert end(cluster, "unwanted")["state"]["phase"] == "Terminated"
    assert not pods(cluster, "unwanted")


def test_pod_past_deadline_ends_with_reason(cluster: ClusterEmulator) -> None:
    manifest = job("late", SLEEP, nodes=1, activeDeadlineSeconds=1)
    manifest["spec"]["maxRetry"] = 1
    cluster.apply(manifest)

    assert end(cluster, "late")["state"]["phase"] == "Failed"
    (left,) = pods(cluster, "late")
    assert left["status"]["reason"] == "DeadlineExceeded"


def test_gang_too_big_for_queue_gets_no_pods_with_reason(cluster: ClusterEmulator) -> None:
    resources = {"limits": {"aws.amazon.com/neuron": "16"}}
    cluster.apply(job("big", SLEEP, nodes=3, resources=resources))

    wait(lambda: events(cluster, "big"))

    assert events(cluster, "big") == [
        "queue resource quota insufficient: insufficient aws.amazon.com/neuron"
    ]
    assert (state(cluster, "big")["state"]["phase"], pods(cluster, "big")) == ("Pending", [])
    cluster.store.delete(VOLCANO_JOB, NAMESPACE, "big")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queue": "other"}, 'queue.scheduling.volcano.sh "other" not found'),
        ({"minAvailable": 3}, "should not be greater than total replicas"),
        ({"policies": [{"exitCode": 0, "action": "TerminateJob"}]}, "0 is not a valid error code"),
        # Its definition, before a webhook is asked: of the API server's three steps (mutation,
        # schema, validation) the second.
        ({"policies": [{"event": "Lost", "action": "TerminateJob"}]}, r'Unsupported value: "Lost"'),
        ({"plugins": {"smoke": []}}, "unable to find job plugin: smoke"),
        ({"tasks": []}, "spec.tasks in body should have at least 1 items"),
    ],
)
def test_volcano_webhook_refusals_apply(
    cluster: ClusterEmulator, change: Json, message: str
) -> None:
    manifest = job("refused", SLEEP)
    manifest["spec"] |= change

    with pytest.raises(errors.ApiError, match=message):
        cluster.apply(manifest)


@pytest.fixture(scope="module")
def counted() -> Iterator[ClusterEmulator]:
    """A cluster whose pods need nodes."""
    with serving("127.0.92", count_nodes=True) as running:
        yield running


def test_gang_waits_for_nodes_for_all_pods(counted: ClusterEmulator) -> None:
    type_ = INSTANCE_TYPES["trn1.32xlarge"]
    pod: Json = {
        "resources": {"limits": {"aws.amazon.com/neuron": "16"}},
        "nodeSelector": {"node.kubernetes.io/instance-type": type_.name},
    }
    counted.scale("trainium", type_, 1)
    counted.apply(job("patient", ["true"], **pod))
    wait(lambda: events(counted, "patient"))
    before = pods(counted, "patient")

    counted.scale("trainium", type_, 2)

    assert end(counted, "patient")["state"]["phase"] == "Completed"
    assert before == []
    assert events(counted, "patient")[0].startswith("resource in cluster is overused: overused")
    names = {pod["spec"]["nodeName"] for pod in pods(counted, "patient")}
    assert names == {"trainium-0", "trainium-1"}


def test_gang_that_no_node_tolerates_stays_pending(counted: ClusterEmulator) -> None:
    counted.scale("trainium", INSTANCE_TYPES["trn1.32xlarge"], 2)
    counted.apply(job("unfit", ["true"], nodes=1, tolerations=[]))

    wait(lambda: any("unschedulable" in text for text in events(counted, "unfit")))

    assert [pod["status"]["phase"] for pod in pods(counted, "unfit")] == ["Pending"]


def test_job_deleted_during_binding_leaves_no_pods(
    cluster: ClusterEmulator,
) -> None:
    deleted: list[str] = []

    def delete_once_bound(change: StoreChange) -> None:
        ours = change.kind == POD and change.entry["metadata"]["name"].startswith("short-lived-")
        if ours and "nodeName" in change.entry["spec"] and change.type == "MODIFIED":
            stop_listening()
            cluster.store.delete(VOLCANO_JOB, NAMESPACE, "short-lived")
            deleted.append(change.entry["metadata"]["name"])

    stop_listening = cluster.store.listen(delete_once_bound)
    cluster.apply(job("short-lived", SLEEP, nodes=2))

    wait(lambda: deleted and not pods(cluster, "short-lived"))


def test_policy_timeout_delays_action_and_keeps_failed_pod(
    cluster: ClusterEmulator,
) -> None:
    script = 'test "$TRAINIUM_NODE_INDEX$TRAINIUM_ATTEMPT" != 10 || exit 71; sleep 60'
    manifest = job("delayed", ["sh", "-c", script])
    manifest["spec"]["policies"] = [{"exitCode": 71, "action": "RestartJob", "timeout": "3s"}]
    cluster.apply(manifest)
    wait(lambda: [p for p in pods(cluster, "delayed") if p["status"]["phase"] == "Failed"])
    failed_at = time.monotonic()
    wait(lambda: state(cluster, "delayed")["failed"] == 1)
    assert state(cluster, "delayed")["state"]["phase"] == "Running"
    wait(lambda: state(cluster, "delayed")["retryCount"] == 1)

    assert time.monotonic() - failed_at > 2
    cluster.store.delete(VOLCANO_JOB, NAMESPACE, "delayed")
