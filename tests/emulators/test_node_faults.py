"""Nodes that fail while a gang runs on them, or that a gang cannot use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.emulators import broken_nodes
from tests.emulators.volcano_jobs import events, output, pods, serving, start, state, wait
from trainium_catalogue.instances import find_instance_type
from trainium_catalogue.kubernetes import NAMESPACE, pod_resources
from trainium_emulators.kubernetes import ClusterEmulator, nodes
from trainium_emulators.kubernetes.resources import POD_GROUP, VOLCANO_JOB

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


def test_pods_on_unreachable_node_stay_until_node_deletion(
    cluster: ClusterEmulator,
) -> None:
    start(cluster, "gang", SLEEP, resources=WHOLE)
    lost = node_of(cluster, "gang", 0)
    broken_nodes.set_ready(cluster.store, lost, "Unknown")
    nodes.evict(cluster.store, lost)

    wait(lambda: "deletionTimestamp" in pods(cluster, "gang")[0]["metadata"])
    before = pods(cluster, "gang")[0]["metadata"]["uid"]
    wait(lambda: phase(cluster, "gang") == "Running")
    assert pods(cluster, "gang")[0]["metadata"]["uid"] == before
    nodes.remove(cluster.store, lost)
    wait(lambda: state(cluster, "gang").get("retryCount") == 1)
    cluster.scale(GROUP, INSTANCE_TYPE, 2)


def test_node_with_stuck_pods_keeps_job_restarting(cluster: ClusterEmulator) -> None:
    start(cluster, "gang", SLEEP, resources=WHOLE)
    held = node_of(cluster, "gang", 0)
    broken_nodes.hold_pods(cluster.store, held)
    nodes.evict(cluster.store, node_of(cluster, "gang", 1))
    wait(lambda: phase(cluster, "gang") == "Restarting")
    wait(lambda: [pod["spec"]["nodeName"] for pod in pods(cluster, "gang")] == [held])

    broken_nodes.hold_pods(cluster.store, held, held=False)
    wait(lambda: phase(cluster, "gang") == "Running" and output(cluster, pods(cluster, "gang")[0]))
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
        broken_nodes.hold_pods(cluster.store, name)

    nodes.evict(cluster.store, used[0])
    wait(lambda: group_phase(cluster) == "Unknown")
    nodes.evict(cluster.store, used[1])
    wait(lambda: group_phase(cluster) == "Inqueue")
    assert phase(cluster, "gang") == "Running"
    assert all("deletionTimestamp" in pod["metadata"] for pod in pods(cluster, "gang"))
    for name in used:
        broken_nodes.hold_pods(cluster.store, name, held=False)
    wait(lambda: state(cluster, "gang").get("retryCount") == 1)
    wait(lambda: phase(cluster, "gang") == "Running")
