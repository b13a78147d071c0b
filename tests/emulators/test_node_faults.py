"""Nodes that fail while a gang runs on them, or that a gang cannot use."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.emulators.volcano_jobs import end, events, job, output, pods, serving, start, state, wait
from trainium_catalogue.instances import find_instance_type
from trainium_catalogue.kubernetes import NAMESPACE, NEURON_RESOURCE, pod_resources
from trainium_emulators.kubernetes import ClusterEmulator, nodes
from trainium_emulators.kubernetes.resources import NODE, POD, POD_GROUP, VOLCANO_JOB

Json = dict[str, Any]
INSTANCE_TYPE = find_instance_type("trn1.32xlarge")
WHOLE = {"limits": dict(pod_resources(INSTANCE_TYPE))}
GROUP = "nodes"
SLEEP = ["sh", "-c", "echo there; sleep 60"]


@pytest.fixture
def cluster() -> Iterator[ClusterEmulator]:
    """A cluster of two nodes."""
    with serving("127.0.97", count_nodes=True) as running:
        running.scale(GROUP, INSTANCE_TYPE, 2)
        yield running


def node_of(cluster: ClusterEmulator, name: str, index: int) -> str:
    """The node of one pod of a job."""
    return str(pods(cluster, name)[index]["spec"]["nodeName"])


def phase(cluster: ClusterEmulator, name: str) -> str:
    return str(state(cluster, name).get("state", {}).get("phase"))


@pytest.mark.parametrize(
    ("status", "key"),
    [("False", "node.kubernetes.io/not-ready"), ("Unknown", "node.kubernetes.io/unreachable")],
)
def test_unready_node_gets_no_pods_until_ready(
    cluster: ClusterEmulator, status: str, key: str
) -> None:
    (first, _) = cluster.store.list(NODE)
    name = first["metadata"]["name"]
    nodes.set_ready(cluster.store, name, status)
    cluster.apply(job("gang", ["true"], resources=WHOLE))

    taints = cluster.store.get(NODE, "", name)["spec"]["taints"]
    assert {(t["key"], t["effect"]) for t in taints} >= {(key, "NoSchedule"), (key, "NoExecute")}
    wait(lambda: any("Unschedulable" in str(pod["status"]) for pod in pods(cluster, "gang")))
    nodes.set_ready(cluster.store, name, "True")
    assert cluster.store.get(NODE, "", name)["spec"]["taints"] == first["spec"]["taints"]
    assert end(cluster, "gang")["state"]["phase"] == "Completed"


def test_node_missing_chip_gets_no_whole_node_pod(cluster: ClusterEmulator) -> None:
    lame = cluster.store.list(NODE)[0]["metadata"]["name"]
    nodes.lose_chips(cluster.store, lame)
    cluster.apply(job("gang", ["true"], resources=WHOLE))
    wait(lambda: any("insufficient" in text for text in events(cluster, "gang")))
    cluster.scale(GROUP, INSTANCE_TYPE, 3)

    assert end(cluster, "gang")["state"]["phase"] == "Completed"
    assert lame not in {pod["spec"]["nodeName"] for pod in pods(cluster, "gang")}
    status = cluster.store.get(NODE, "", lame)["status"]
    counts = [status[key][NEURON_RESOURCE] for key in ("capacity", "allocatable")]
    assert counts == ["16", "15"]


def test_pods_on_unreachable_node_stay_until_node_deletion(
    cluster: ClusterEmulator,
) -> None:
    start(cluster, "gang", SLEEP, resources=WHOLE)
    lost = node_of(cluster, "gang", 0)
    nodes.set_ready(cluster.store, lost, "Unknown")
    nodes.evict(cluster.store, lost)

    wait(lambda: "deletionTimestamp" in pods(cluster, "gang")[0]["metadata"])
    before = pods(cluster, "gang")[0]["metadata"]["uid"]
    wait(lambda: phase(cluster, "gang") == "Running")
    assert pods(cluster, "gang")[0]["metadata"]["uid"] == before
    nodes.remove(cluster.store, lost)
    wait(lambda: state(cluster, "gang").get("retryCount") == 1)
    cluster.scale(GROUP, INSTANCE_TYPE, 2)


def test_deletion_time_is_end_of_grace_period_and_can_only_be_shortened(
    cluster: ClusterEmulator,
) -> None:
    start(cluster, "gang", SLEEP, resources=WHOLE)
    silent = node_of(cluster, "gang", 0)
    nodes.set_ready(cluster.store, silent, "Unknown")
    name = pods(cluster, "gang")[0]["metadata"]["name"]
    begin = datetime.now(UTC)

    left = []
    for grace_s in (600, 900, 60):
        metadata = cluster.store.delete(POD, NAMESPACE, name, grace_s=grace_s)["metadata"]
        ends = datetime.fromisoformat(metadata["deletionTimestamp"])
        left.append((ends - begin).total_seconds())
        assert metadata["deletionGracePeriodSeconds"] == min(grace_s, 600)

    # Timestamps are in whole seconds.
    assert left == pytest.approx([600, 600, 60], abs=20)
    nodes.remove(cluster.store, silent)


def test_node_with_stuck_pods_keeps_job_restarting(cluster: ClusterEmulator) -> None:
    start(cluster, "gang", SLEEP, resources=WHOLE)
    held = node_of(cluster, "gang", 0)
    nodes.hold_pods(cluster.store, held)
    nodes.evict(cluster.store, node_of(cluster, "gang", 1))
    wait(lambda: phase(cluster, "gang") == "Restarting")
    wait(lambda: [pod["spec"]["nodeName"] for pod in pods(cluster, "gang")] == [held])

    nodes.hold_pods(cluster.store, held, held=False)
    wait(lambda: phase(cluster, "gang") == "Running" and output(cluster, pods(cluster, "gang")[0]))
    cluster.store.delete(VOLCANO_JOB, NAMESPACE, "gang")


def test_placed_gang_waits_for_cordoned_node(cluster: ClusterEmulator) -> None:
    start(cluster, "gang", SLEEP, resources=WHOLE)
    name = node_of(cluster, "gang", 0)
    cluster.store.update(NODE, "", name, lambda node: node["spec"].update(unschedulable=True))
    nodes.evict(cluster.store, name)
    wait(lambda: any("tasks in gang unschedulable" in text for text in events(cluster, "gang")))

    cluster.store.update(NODE, "", name, lambda node: node["spec"].update(unschedulable=False))
    wait(lambda: phase(cluster, "gang") == "Running")
    cluster.store.delete(VOLCANO_JOB, NAMESPACE, "gang")


def group_phase(cluster: ClusterEmulator) -> str:
    (group,) = cluster.store.list(POD_GROUP, NAMESPACE)
    return str(group["status"]["phase"])


def test_job_without_nodes_stays_restarting_with_stale_counts(
    cluster: ClusterEmulator,
) -> None:
    """Volcano 1.15.1: syncJob counts pods only once the scheduler has admitted the gang again."""
    start(cluster, "gang", SLEEP, resources=WHOLE)
    cluster.scale(GROUP, INSTANCE_TYPE, 1)
    wait(lambda: phase(cluster, "gang") == "Restarting" and not pods(cluster, "gang"))
    wait(lambda: any("overused" in text for text in events(cluster, "gang")))

    assert phase(cluster, "gang") == "Restarting"
    assert state(cluster, "gang")["terminating"] > 0
    cluster.scale(GROUP, INSTANCE_TYPE, 2)
    wait(lambda: phase(cluster, "gang") == "Running")
    assert state(cluster, "gang")["terminating"] == 0


def test_evicted_gang_is_readmitted_while_terminating(
    cluster: ClusterEmulator,
) -> None:
    """The session of Volcano 1.15.1 (getPodGroupPhase) does not count pods that are terminating."""
    cluster.scale(GROUP, INSTANCE_TYPE, 4)
    start(cluster, "gang", SLEEP, resources=WHOLE)
    wait(lambda: group_phase(cluster) == "Running")
    used = [node_of(cluster, "gang", index) for index in (0, 1)]
    for name in used:
        nodes.hold_pods(cluster.store, name)

    nodes.evict(cluster.store, used[0])
    wait(lambda: group_phase(cluster) == "Unknown")
    nodes.evict(cluster.store, used[1])
    wait(lambda: group_phase(cluster) == "Inqueue")
    assert phase(cluster, "gang") == "Running"
    assert all("deletionTimestamp" in pod["metadata"] for pod in pods(cluster, "gang"))
    for name in used:
        nodes.hold_pods(cluster.store, name, held=False)
    wait(lambda: state(cluster, "gang").get("retryCount") == 1)
    wait(lambda: phase(cluster, "gang") == "Running")
