"""A round's effects: exactly its requests to the cluster and the group."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from node_scaler.model import IN_SERVICE, Group
from node_scaler.rounds import Scaler
from tests.node_scaler.rules import RULES
from tests.stacks.cluster_objects import objects_of, with_cluster
from trainium_catalogue import kubernetes
from trainium_catalogue.node_use import stamp

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
Json = dict[str, Any]


@dataclass
class FakeCluster:
    """Responds from a dictionary, and records requests."""

    lists: dict[str, list[Json]]
    asked: list[tuple[str, str, Json]] = field(default_factory=list)
    refuses: str = "nothing"
    request: Json | None = None

    def items(self, path: str, **query: str) -> list[Json]:
        self.asked.append(("list", path, dict(query)))
        return self.lists[path.rpartition("/")[2]]

    def find(self, path: str) -> Json | None:
        self.asked.append(("get", path, {}))
        return self.request

    def patch(self, path: str, changes: Json) -> None:
        self.asked.append(("patch", path, changes))
        if self.refuses in path:
            raise RuntimeError("refused")

    def create(self, path: str, entry: Json) -> None:
        self.asked.append(("create", path, entry))
        if self.refuses in path:
            raise RuntimeError("refused")

    def asked_to(self, verb: str) -> list[Json]:
        return [body for each, _, body in self.asked if each == verb]


@dataclass
class FakeGroup:
    """A node group with the given instances."""

    group: Group
    name: str = "nodes"
    done: list[object] = field(default_factory=list)

    def read(self) -> Group:
        return self.group

    def resize(self, group: Group, number: int) -> None:
        self.done.append(number)

    def terminate(self, instance: str, *, is_replaced: bool = False) -> None:
        self.done.append((instance, "replaced") if is_replaced else instance)


def node(name: str, **marks: str) -> Json:
    return {
        "metadata": {"name": name, "annotations": marks},
        "spec": {
            "providerID": f"aws:///us-west-2d/i-{name}",
            **({"unschedulable": True} if kubernetes.CORDONED_SINCE in marks else {}),
        },
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


JOB: Json = {
    "apiVersion": "batch.volcano.sh/v1alpha1",
    "kind": "Job",
    "metadata": {
        "name": "gang", "namespace": "trainium", "uid": "u",
        "annotations": {kubernetes.SCALE: "true"},
    },
    "spec": {"tasks": [{"replicas": 1}]},
}  # fmt: skip
DUE = node(
    "due",
    **{
        kubernetes.IDLE_SINCE: stamp(NOW - timedelta(hours=1)),
        kubernetes.CORDONED_SINCE: stamp(NOW - timedelta(minutes=1)),
    },
)
IDLE = node("idle", **{kubernetes.IDLE_SINCE: stamp(NOW - timedelta(hours=1))})


@dataclass
class Run:
    """A scaler on fakes, and its log."""

    cluster: FakeCluster
    group: FakeGroup
    said: list[str] = field(default_factory=list)

    def round(self, now: datetime = NOW) -> int:
        return self.scaler.reconcile(now)

    def __post_init__(self) -> None:
        self.scaler = Scaler(
            cluster=self.cluster,  # type: ignore[arg-type]
            node_groups={"": self.group},  # type: ignore[dict-item]
            namespace=kubernetes.NAMESPACE,
            rules=replace(RULES, devices={}),
            say=self.said.append,
        )


def scaler(*nodes: Json, jobs: tuple[Json, ...] = (), refuses: str = "nothing") -> Run:
    states = {f"i-{each['metadata']['name']}": IN_SERVICE for each in nodes}
    group = Group(name="eks-1", desired=len(nodes), max_size=4, instances=states)
    lists = {"nodes": list(nodes), "pods": [], "jobs": list(jobs)}
    return Run(FakeCluster(lists, refuses=refuses), FakeGroup(group))


def test_idle_node_is_cordoned_first() -> None:
    run = scaler(IDLE)
    run.round()

    assert run.group.done == []
    (changes,) = run.cluster.asked_to("patch")
    assert changes["spec"] == {"unschedulable": True}
    assert changes["metadata"]["annotations"] == {kubernetes.CORDONED_SINCE: stamp(NOW)}


def test_cordoned_node_is_terminated_with_its_instance() -> None:
    run = scaler(DUE)
    run.round()
    (changes,) = run.cluster.asked_to("patch")

    assert run.group.done == ["i-due"]
    assert changes == {"metadata": {"annotations": {kubernetes.TERMINATING_SINCE: stamp(NOW)}}}


def test_unfit_host_is_replaced_with_logged_reason() -> None:
    since = stamp(NOW - timedelta(minutes=1))
    marks = (kubernetes.UNFIT_SINCE, kubernetes.UNUSABLE_SINCE, kubernetes.CORDONED_SINCE)
    run = scaler(node("n", **dict.fromkeys(marks, since)), jobs=(JOB,))
    run.round()

    assert run.group.done == [("i-n", "replaced")]
    assert f"node n: replaced i-n: has a host that a job found unfit since {since}" in run.said


def test_instance_with_unmarkable_node_is_not_terminated() -> None:
    run = scaler(DUE, refuses="nodes/due")

    assert run.round() == 1
    assert run.group.done == []


def test_actions_are_in_log_and_events() -> None:
    run = scaler(DUE)
    run.round()
    (event,) = run.cluster.asked_to("create")

    assert event["reason"] == "NodeRemoved"
    assert event["involvedObject"] == {
        "apiVersion": "v1", "kind": "Node", "name": "due", "uid": "due"
    }  # fmt: skip
    assert event["message"] == "terminated i-due: idle since 2026-05-01T11:00:00Z"
    assert f"node due: {event['message']}" in run.said


def test_scaling_job_gets_nodes_and_event() -> None:
    run = scaler(jobs=(JOB,))
    run.round()
    (event,) = run.cluster.asked_to("create")

    assert run.group.done == [1]
    assert event["involvedObject"]["kind"] == "Job"
    assert event["message"] == "0 -> 1 node for gang"


def test_round_without_changes_is_silent() -> None:
    run = scaler(node("n", **{kubernetes.IDLE_SINCE: stamp(NOW)}))
    run.round()
    once = list(run.said)
    run.round()

    assert len(once) == 1
    assert run.said == once


def test_failed_step_does_not_stop_others() -> None:
    run = scaler(IDLE, DUE, refuses="nodes/idle")

    assert run.round() == 1
    assert run.group.done == ["i-due"]
    assert "Mark failed: RuntimeError: refused" in run.said


def test_instance_that_never_joins_is_terminated() -> None:
    run = scaler()
    run.group.group = Group(
        name="eks-1", desired=2, max_size=4, instances={"i-lost": IN_SERVICE, "i-new": "Pending"}
    )
    for minutes in (0, 19):
        run.round(NOW + timedelta(minutes=minutes))
    assert run.group.done == []

    run.round(NOW + timedelta(minutes=20))
    assert run.group.done == ["i-lost"]
    assert "terminated i-lost: has not joined since 2026-05-01T12:00:00Z" in run.said


def test_instance_still_listed_in_service_is_terminated_once() -> None:
    """A second termination would remove another node of the group's choice."""
    run = scaler()
    run.group.group = Group(name="eks-1", desired=1, max_size=4, instances={"i-lost": IN_SERVICE})
    for seconds in (0, 1200, 1205, 1210, 1500):
        run.round(NOW + timedelta(seconds=seconds))

    assert run.group.done == ["i-lost"]


def test_late_joining_instance_is_kept() -> None:
    run = scaler(IDLE)
    joined, run.cluster.lists["nodes"] = run.cluster.lists["nodes"], []
    run.round(NOW - timedelta(minutes=19))
    run.cluster.lists["nodes"] = joined
    run.round(NOW + timedelta(minutes=1))

    assert run.group.done == []


def test_user_request_is_answered_in_config_map() -> None:
    run = scaler()
    run.cluster.request = {"data": {"nodes": "2", "id": "r"}}
    run.round()
    (changes,) = run.cluster.asked_to("patch")

    assert run.group.done == [2]
    assert changes == {
        "data": {"answered": "r", "since": stamp(NOW), "failedNodes": None, "dropped": None}
    }


@pytest.mark.parametrize("number", ["", "two", "-1", "1e3", "99999999999999999999", "²"])
def test_invalid_request_is_ignored(number: str) -> None:
    run = scaler()
    run.cluster.request = {"data": {"nodes": number, "id": "r"}}

    assert run.round() == 0
    assert run.group.done == []


def test_dropped_job_gets_reason_as_annotation_and_event() -> None:
    annotations = {kubernetes.SCALE: "true", kubernetes.HELD_SINCE: stamp(NOW - timedelta(hours=2))}
    job = {**JOB, "metadata": {**JOB["metadata"], "annotations": annotations}}
    run = scaler(IDLE, jobs=(job,))
    run.round()
    said = [each["metadata"]["annotations"].get(kubernetes.DROPPED)
            for each in run.cluster.asked_to("patch")]  # fmt: skip
    events = [each["reason"] for each in run.cluster.asked_to("create")]

    assert any(text and "held for it for 60 minutes" in text for text in said)
    assert "NodesDropped" in events


def test_refused_event_does_not_fail_round() -> None:
    run = scaler(DUE, refuses="events")

    assert run.round() == 0
    assert run.group.done == ["i-due"]


@pytest.fixture(scope="module")
def granted() -> set[tuple[str, str, str, str]]:
    """Return namespace (``*``: all), group, resource and verb of the template's permissions."""
    found = set()
    for each in objects_of(with_cluster()):
        if each["kind"] in ("Role", "ClusterRole") and each["metadata"]["name"] == "node-scaler":
            namespace = each["metadata"].get("namespace", "*")
            for rule in each["rules"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        found.add((namespace, rule["apiGroups"][0], resource, verb))
    return found


def test_template_grants_exactly_requested_permissions(
    granted: set[tuple[str, str, str, str]],
) -> None:
    asked = set()
    asking = scaler(IDLE, jobs=(JOB,))
    asking.cluster.request = {"data": {"nodes": "1", "id": "r"}}
    for run in (scaler(DUE), scaler(IDLE), scaler(jobs=(JOB,)), asking):
        run.round()
        for verb, path, _ in run.cluster.asked:
            found = re.fullmatch(
                r"/apis?/(?:(?P<group>[^/]+\.[^/]+)/)?v1\w*"
                r"(?:/namespaces/(?P<namespace>[^/]+))?/(?P<resource>[^/]+)(?:/[^/]+)?",
                path,
            )
            assert found is not None, path
            place = found["namespace"] or "*"
            asked.add((place, found["group"] or "", found["resource"], verb))

    assert asked == granted
