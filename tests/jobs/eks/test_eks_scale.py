"""Removing nodes without disrupting a run, and automatic scaling."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from jobs.deployment import read_deployment
from jobs.eks import nodes
from jobs.eks.nodes import read_node_group
from tests.jobs.eks.conftest import EksCli
from tests.jobs.test_refusals import assert_refused
from tests.support.limits import scaled
from tests.support.schemas import conforms
from trainium_catalogue import contract, kubernetes
from trainium_catalogue.kubernetes import NAMESPACE, NODE_REQUEST
from trainium_catalogue.node_use import marked_since, stamp
from trainium_emulators.kubernetes.resources import CONFIG_MAP, NODE, POD

SWEEP = ("submit", "all-reduce", "--on", "eks")


def busy(eks: EksCli) -> list[str]:
    """Return the nodes with pods."""
    return sorted({pod["spec"]["nodeName"] for pod in eks.pods() if "nodeName" in pod["spec"]})


# --- `scale --nodes` with a smaller number: the node scaler acts ---
def test_scale_down_removes_only_idle_nodes(eks: EksCli, scaler: list[str]) -> None:
    """Merely lowering the desired size could remove a busy node: see test_scaling_group."""
    eks.has("gang", "sleep 30", nodes=2)
    eks.wait("gang", "Running")
    used = busy(eks)
    eks.nodes(4)
    document = eks.document("scale", "--wait", "30", "--nodes", "2")

    assert document["nodes_before"] == 4
    assert sorted(eks.node_names()) == used
    assert eks.node_group().scaling_config["desiredSize"] == 2
    job = eks.job("gang")
    assert job is not None
    assert job["status"]["state"]["phase"] == "Running"
    assert job["status"].get("retryCount", 0) == 0


def test_scale_down_keeps_busy_node(eks: EksCli, scaler: list[str]) -> None:
    eks.has("gang", "sleep 30", nodes=1)
    eks.wait("gang", "Running")
    (used,) = busy(eks)
    to_one = eks.run("scale", "--wait", "30", "--nodes", "1")
    refused = eks.run("scale", "--wait", "9", "--nodes", "0")

    assert to_one.exit_code == 0, to_one.stderr
    assert refused.exit_code == 2
    assert "--nodes 0 would remove nodes in use by gang; free these nodes first" in refused.stderr
    assert eks.node_names() == [used]


def test_pod_of_another_namespace_keeps_its_node(eks: EksCli, scaler: list[str]) -> None:
    (first, second) = eks.node_names()
    spec = {"nodeName": first, "containers": [{"name": "x", "command": ["true"]}]}
    eks.cluster.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "debug"}, "spec": spec}
    )
    refused = eks.run("scale", "--wait", "9", "--nodes", "0")
    fewer = eks.run("scale", "--wait", "30", "--nodes", "1")
    left = eks.node_names()
    eks.cluster.store.delete(POD, "default", "debug", grace_s=0)

    assert "`kubectl -n default delete pod debug`" in refused.stderr
    assert fewer.exit_code == 0, fewer.stderr
    assert left == [first] != [second]


def test_silent_node_scaler_is_reported(eks: EksCli) -> None:
    late = eks.run("scale", "--wait", "1", "--nodes", "0")

    assert late.exit_code == 2
    assert "the node scaler has not read the request yet" in late.stderr
    assert "kubectl -n node-scaler get pods" in late.stderr
    assert len(eks.node_names()) == 2


def test_cluster_of_older_version_is_refused(eks: EksCli, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/api/v1/namespaces/{namespace}/configmaps/of-no-older-version"
    monkeypatch.setattr(nodes, "NODE_REQUEST", path)
    refused = eks.run("scale", "--nodes", "0")

    assert refused.exit_code == 2
    assert "it was deployed by an older version; deploy again" in refused.stderr


# --- `scale --nodes` with a larger number ---
def test_scale_up_shows_price_and_adds_nodes(eks: EksCli, scaler: list[str]) -> None:
    result = eks.run("scale", "--wait", "30", "--nodes", "3", "--yes")

    assert result.exit_code == 0, result.stderr
    assert "2 -> 3 nodes of trn1.32xlarge, about $64.50 an hour" in result.stderr
    assert len(eks.node_names()) == 3
    assert "2 -> 3 nodes as requested by a user" in scaler


def test_scale_up_shows_reason_if_node_scaler_gives_up(eks: EksCli) -> None:
    def drop() -> None:
        data: dict[str, str] = {}
        while "id" not in data:
            time.sleep(0.05)
            found = eks.cluster.store.get(CONFIG_MAP, NAMESPACE, NODE_REQUEST)
            data = found.get("data") or {}
        answer = {"since": stamp(datetime.now(UTC)), "dropped": "nodes have failed 2 times"}
        eks.cluster.store.update(
            CONFIG_MAP,
            NAMESPACE,
            NODE_REQUEST,
            lambda each: each["data"].update(answer, answered=each["data"]["id"]),
        )

    answering = threading.Thread(target=drop)
    answering.start()
    result = eks.run("scale", "--wait", "30", "--nodes", "3", "--yes")
    answering.join()

    assert result.exit_code == 2
    assert "the node scaler gave up: nodes have failed 2 times" in result.stderr


def test_size_comes_from_auto_scaling_group_not_eks(eks: EksCli) -> None:
    """After instances were terminated, EKS may report the old number for a while."""

    class FakeClients:
        def eks(self) -> FakeClients:
            return self

        autoscaling = eks

        def describe_nodegroup(self, **_: str) -> dict[str, object]:
            scaling = {"minSize": 0, "desiredSize": 2, "maxSize": 4}
            resources = {"autoScalingGroups": [{"name": "eks-1"}]}
            group = {"status": "ACTIVE", "scalingConfig": scaling, "resources": resources}
            return {"nodegroup": group}

        def describe_auto_scaling_groups(self, **_: object) -> dict[str, object]:
            leaving = {"InstanceId": "i-a", "LifecycleState": "Terminating:Wait"}
            group = {"DesiredCapacity": 0, "MaxSize": 4, "Instances": [leaving]}
            return {"AutoScalingGroups": [group]}

    target = read_deployment(eks.cli.client("ssm"), "default", region="us-west-2")
    found = read_node_group(FakeClients(), target)  # type: ignore[arg-type]

    assert (found.desired, found.instances) == (0, ())


# --- the node scaler's annotations on nodes ---
def ago(minutes: float) -> str:
    return stamp(datetime.now(UTC) - timedelta(minutes=minutes))


def test_scale_shows_users_of_nodes_and_removal_of_idle_ones(eks: EksCli) -> None:
    eks.has("gang", "sleep 30", nodes=1)
    eks.wait("gang", "Running")
    (used,) = busy(eks)
    (idle,) = set(eks.node_names()) - {used}
    eks.mark(idle, **{kubernetes.IDLE_SINCE: ago(10)})
    shown = eks.run("scale").stdout
    document = eks.document("scale")

    assert "nodes of trn1.32xlarge: 2 requested of at most 4, 2 ready" in shown
    assert f"{used} (i-" in shown and "): gang" in shown
    assert f"{idle} (i-" in shown and "): unused" in shown
    assert (
        "1 idle node will be removed at " in shown and "(in 20 min) unless a job uses it" in shown
    )
    assert "scale --nodes 1" in shown
    conforms("jobs-scale", document)
    assert [each["node"] for each in document["idle"]] == [idle]


def test_status_and_top_show_removal_time(eks: EksCli) -> None:
    eks.has("gang", "sleep 30", nodes=1)
    eks.wait("gang", "Running")
    (idle,) = set(eks.node_names()) - set(busy(eks))
    eks.mark(idle, **{kubernetes.IDLE_SINCE: ago(40)})

    for command in (("status", "gang"), ("top", "gang")):
        result = eks.run(*command)
        assert "1 idle node will be removed shortly" in result.stdout, result.stderr


def test_no_removal_is_shown_without_idle_timeout(eks: EksCli) -> None:
    eks.mark(eks.node_names()[0], **{kubernetes.IDLE_SINCE: ago(10)})
    eks.cli.client("ssm").delete_parameter(
        Name=contract.ssm_parameter("default", contract.SSM_EKS_IDLE_MINUTES)
    )

    assert "idle" not in eks.run("scale").stdout
    assert eks.document("scale")["idle"] == []


def test_scale_restarts_idle_time(eks: EksCli, scaler: list[str]) -> None:
    name = eks.node_names()[0]
    begin = datetime.now(UTC).replace(microsecond=0)
    marks = {kubernetes.IDLE_SINCE: ago(29)}
    eks.mark(name, **marks)
    result = eks.run("scale", "--wait", "30", "--nodes", "2")
    deadline = time.monotonic() + scaled(20)
    since = None
    while (since is None or since < begin) and time.monotonic() < deadline:
        time.sleep(0.1)
        since = marked_since(eks.cluster.store.get(NODE, "", name), kubernetes.IDLE_SINCE)

    assert result.exit_code == 0, result.stderr
    assert since is not None
    assert since >= begin


WIDE = (*SWEEP, "--nodes", "3", "--name", "wide", "--scale", "--yes")


# --- `submit --scale` ---
def test_job_requests_missing_nodes(eks: EksCli) -> None:
    eks.nodes(0)
    result = eks.run(*WIDE, "--json")
    job = eks.job(json.loads(result.stdout)["job_id"])

    assert "the cluster adds the missing nodes, up to 4" in result.stderr
    assert "removes them after 30 minutes without a job" in result.stderr
    assert job is not None
    assert job["metadata"]["annotations"] == {kubernetes.SCALE: "true"}


def test_status_shows_requested_nodes(eks: EksCli) -> None:
    eks.nodes(0)
    eks.wait(eks.document(*WIDE)["job_id"], "Pending")
    output = eks.run("status", "wide").stdout

    assert "the job needs 3 nodes, 0 are ready" in output
    assert "wait a few minutes: the node scaler adds nodes" in output
    assert "scale --nodes" not in output


def test_status_of_held_job_shows_start_of_capacity(eks: EksCli) -> None:
    eks.nodes(0)
    job_id = eks.document(*WIDE)["job_id"]
    eks.wait(job_id, "Pending")
    eks.mark_job(job_id, **{kubernetes.NOT_BEFORE: "2999-01-01T11:30:00Z"})
    output = eks.run("status", "wide").stdout

    assert "reserved capacity starts at 2999-01-01T11:30:00Z" in " ".join(output.split())


def test_plan_explains_removal_if_idle_nodes_stay(eks: EksCli) -> None:
    eks.cli.client("ssm").delete_parameter(
        Name=contract.ssm_parameter("default", contract.SSM_EKS_IDLE_MINUTES)
    )
    result = eks.run(*SWEEP, "--nodes", "2", "--scale", "--yes")

    assert result.exit_code == 0, result.stderr
    assert "none of them automatically; remove them with: python -m jobs" in result.stderr


def test_scale_is_refused_on_batch(eks: EksCli) -> None:
    assert_refused(
        eks.run("submit", "all-reduce", "--on", "batch", "--scale", "--yes"),
        "--scale: Batch launches a job's instances",
    )


def test_submit_suggests_scale_if_nodes_are_in_use(eks: EksCli) -> None:
    eks.has("gang", "sleep 30", nodes=1)
    eks.wait("gang", "Running")
    output = eks.run(*SWEEP, "--nodes", "2", "--yes").stderr

    assert "1 node of 2 is in use (gang): the job waits" in output
    assert "submit with --scale" in output


def test_smaller_size_that_would_not_last_is_refused(eks: EksCli) -> None:
    job_id = eks.document(*WIDE)["job_id"]
    eks.wait(job_id, "Pending")
    assert_refused(
        eks.run("scale", "--wait", "9", "--nodes", "0"),
        "run submitted with --scale: wide; stop it first",
        "python -m jobs stop wide",
    )
    assert len(eks.node_names()) == 2


def test_status_shows_why_no_nodes_are_added(eks: EksCli) -> None:
    job_id = eks.document(*WIDE)["job_id"]
    eks.wait(job_id, "Pending")
    reason = "nodes were held for it for 60 minutes, but it did not start"
    eks.mark_job(job_id, **{kubernetes.DROPPED: reason})
    output = " ".join(eks.run("status", "wide").stdout.split())

    assert f"no more nodes will be added for it: {reason}" in output
    assert "scale --nodes 3" in output
    # It no longer requests nodes, so a smaller number lasts.
    assert eks.run("scale", "--wait", "1", "--nodes", "0").stderr.count("stop it first") == 0
