"""Why a run waits, according to Volcano, the API server and the kubelet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from jobs.aws import Aws
from jobs.eks.cluster import Cluster
from jobs.eks.describe import trouble
from jobs.eks.waiting import HELD, newest_reason
from jobs.output.explain import explain_reason
from tests.jobs.conftest import REGION
from tests.jobs.eks.conftest import EksCli
from trainium_catalogue.kubernetes import NAMESPACE, NEURON_RESOURCE
from trainium_emulators.kubernetes.resources import EVENT, NODE, POD, VOLCANO_JOB
from trainium_emulators.kubernetes.volcano_objects import record_event

GANG = "job-7f1c"
NO_NEWS = "0/0 tasks in gang unschedulable: pod group is not ready, 2 minAvailable"


@pytest.fixture(autouse=True)
def events(eks: EksCli) -> Iterator[None]:
    """Isolate each test from the events of others."""
    for entry in eks.cluster.store.list(EVENT):
        eks.cluster.store.delete(EVENT, NAMESPACE, entry["metadata"]["name"])
    yield


def test_node_without_devices_is_not_ready(eks: EksCli) -> None:
    """A new node is Ready before its device plugins have registered."""

    def forget(entry: dict[str, Any]) -> None:
        entry["status"]["allocatable"][NEURON_RESOURCE] = "0"

    eks.cluster.store.update(NODE, "", "nodes-1", forget)
    result = eks.run("submit", "all-reduce", "--on", "eks", "--nodes", "2", "--yes")
    eks.cluster.store.remove(NODE, "", "nodes-1")

    assert result.exit_code == 2
    assert (
        "has 1 ready node of trn1.32xlarge (node nodes-1 offers 0 of 16 aws.amazon.com/neuron)"
        in (result.stderr)
    )


@pytest.mark.parametrize(
    ("about", "reason", "said", "remedy"),
    [
        pytest.param(
            GANG,
            "Unschedulable",
            "queue resource quota insufficient: insufficient aws.amazon.com/neuron",
            "trainium:max_nodes",
            id="queue",
        ),
        pytest.param(
            "job",
            "FailedCreate",
            'Error creating pods: [failed to create pod gang-node-0-0, err: pods "gang-node-0-0" '
            "is forbidden: exceeded quota: jobs, requested: requests.memory=471859Mi]",
            "kubectl describe resourcequota",
            id="quota",
        ),
        pytest.param(
            "job",
            "FailedCreate",
            'Error creating pods: [failed to create pod gang-node-0-0, err: pods "gang-node-0-0" '
            "is forbidden: error looking up service account trainium/job-bert: serviceaccount "
            '"job-bert" not found]',
            "cdk deploy --all",
            id="account",
        ),
    ],
)
def test_gang_without_pods_is_explained_by_event(
    eks: EksCli, about: str, reason: str, said: str, remedy: str
) -> None:
    """Volcano reports why it does not admit a gang only in an event of its PodGroup."""
    news = ((GANG, "Unschedulable", NO_NEWS), (about, reason, said), ("another", reason, "not it"))
    for name, why, words in news:
        item = {"apiVersion": "x/v1", "kind": "X", "metadata": {"name": name, "uid": name}}
        item["metadata"] |= {"namespace": NAMESPACE}  # type: ignore[operator]
        record_event(eks.cluster.store, item, reason=why, message=words, type_="Normal")
    (other,) = (e for e in eks.cluster.store.list(EVENT) if e["message"] == "not it")
    later = {"lastTimestamp": "2999-01-01T00:00:00Z"}
    eks.cluster.store.update(EVENT, NAMESPACE, other["metadata"]["name"], lambda e: e | later)
    cluster = Cluster(Aws(REGION), "cluster", NAMESPACE)
    found = newest_reason(cluster, ("job", GANG), HELD)
    explanation = explain_reason(found)

    assert found == said
    assert explanation is not None and remedy in explanation.remedy


def test_mount_failure_of_pod_is_shown(eks: EksCli) -> None:
    eks.has("gang", "sleep 30", nodes=1)
    eks.wait("gang", "Running")
    (pod,) = eks.pods()
    words = 'MountVolume.SetUp failed for volume "lustre" : rpc error: code = Internal'
    record_event(eks.cluster.store, pod, reason="FailedMount", message=words, type_="Warning")

    def start(entry: dict[str, Any]) -> None:
        entry["status"] = {"phase": "Pending", "conditions": []}

    def pend(entry: dict[str, Any]) -> None:
        entry["status"]["state"]["phase"] = "Pending"

    store = eks.cluster.store
    store.update(POD, NAMESPACE, "gang-node-0-0", start)
    store.update(VOLCANO_JOB, NAMESPACE, "gang", pend)
    text = " ".join(eks.run("status", "gang").stdout.split())

    assert "run gang: STARTING" in text
    assert "pod gang-node-0-0 does not start: MountVolume.SetUp failed" in text
    assert "check the FSx CSI driver on that node" in text


def test_attempt_waiting_for_lost_node_names_it(eks: EksCli) -> None:
    """The new pod has the name of the old one, which cannot be terminated there."""
    eks.has("again", 'test "$TRAINIUM_NODE_INDEX" = 0 && exit 75; trap "" TERM; sleep 5')
    eks.wait("again", "Restarting")

    def lose(entry: dict[str, Any]) -> None:
        entry["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]

    (pod,) = (pod for pod in eks.pods() if pod["metadata"]["name"] == "again-node-1-0")
    name = pod["spec"]["nodeName"]
    eks.cluster.store.update(NODE, "", name, lose)
    text = " ".join(eks.run("status", "again").stdout.split())
    eks.cluster.store.remove(NODE, "", name)

    assert "run again: RUNNABLE" in text
    assert (
        f"pod again-node-1-0 of the previous attempt is still terminating, because its node {name}"
        in (text)
    )
    assert "the node scaler removes the node after about ten minutes" in text
    assert f"kubectl delete node {name}" in text


def test_schedulable_pod_does_not_explain_waiting_gang() -> None:
    def pod(reason: str, message: str) -> dict[str, Any]:
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
        }
        return {"status": {"conditions": [condition]}}

    could = pod(
        "Schedulable", "Pod a can possibly be assigned to n, once minAvailable is satisfied"
    )
    why = "0/3 nodes are unavailable: 3 Insufficient aws.amazon.com/neuron."

    assert trouble([could, pod("Unschedulable", why)]) == why
