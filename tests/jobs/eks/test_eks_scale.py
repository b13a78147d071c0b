"""Fewer nodes without harm to a run, and nodes that come and go by themselves."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from jobs.deployment import read_deployment
from jobs.eks import scale_in
from jobs.eks.nodes import NodeGroup, read_node_group
from jobs.eks.scale_in import Cut, Use, choose
from jobs.errors import Refusal
from tests.jobs.eks.conftest import EksDesk, conforms
from trainium_catalogue import contract, kubernetes
from trainium_catalogue.node_use import stamp
from trainium_emulators.kubernetes.resources import NODE, POD

SWEEP = ("submit", "all-reduce", "--on", "eks")


def busy(eks: EksDesk) -> list[str]:
    """Nodes with pods."""
    return sorted({pod["spec"]["nodeName"] for pod in eks.pods() if "nodeName" in pod["spec"]})


class TestFewerNodes:
    """`scale --nodes` with a smaller number."""

    def test_only_idle_nodes_go_and_the_run_goes_on(self, eks: EksDesk) -> None:
        """A plain smaller number would have cost a busy one: see test_eks_models."""
        eks.has("gang", "sleep 30", nodes=2)
        eks.wait("gang", "Running")
        used = busy(eks)
        eks.nodes(4)
        document = eks.document("scale", "--wait", "9", "--nodes", "2")

        assert document["nodes_before"] == 4
        assert sorted(eks.node_names()) == used
        assert eks.node_group().scaling_config["desiredSize"] == 2
        job = eks.job("gang")
        assert job is not None
        assert job["status"]["state"]["phase"] == "Running"
        assert job["status"].get("retryCount", 0) == 0

    def test_a_node_of_a_run_is_not_taken_without_force(self, eks: EksDesk) -> None:
        eks.has("gang", "sleep 30", nodes=1)
        eks.wait("gang", "Running")
        (used,) = busy(eks)
        to_one = eks.run("scale", "--wait", "9", "--nodes", "1")
        refused = eks.run("scale", "--wait", "9", "--nodes", "0")

        assert to_one.exit_code == 0, to_one.stderr
        assert refused.exit_code == 2
        assert "--nodes 0: gang uses 1 node and would lose some; stop it first" in refused.stderr
        assert eks.node_names() == [used]

        forced = eks.run("scale", "--wait", "9", "--nodes", "0", "--force")
        assert "1 -> 0 nodes" in forced.stderr
        assert eks.node_names() == []

    def test_a_pod_of_another_namespace_keeps_its_node(self, eks: EksDesk) -> None:
        (first, second) = eks.node_names()
        spec = {"nodeName": first, "containers": [{"name": "x", "command": ["true"]}]}
        eks.cluster.apply(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "debug"}, "spec": spec}
        )
        refused = eks.run("scale", "--wait", "9", "--nodes", "0")
        fewer = eks.run("scale", "--wait", "9", "--nodes", "1")
        left = eks.node_names()
        eks.cluster.store.delete(POD, "default", "debug", grace_s=0)

        assert "default/debug uses 1 node" in refused.stderr
        assert fewer.exit_code == 0
        assert left == [first] != [second]

    def test_a_node_that_a_pod_has_come_to_meanwhile_is_opened_again(
        self, eks: EksDesk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        empty = scale_in.read_use
        answers = iter([False, True])

        def read(*arguments: object) -> Use:
            found = empty(*arguments)  # type: ignore[arg-type]
            runs = {next(iter(found.nodes)): ("late",)} if next(answers) else {}
            return Use(nodes=found.nodes, runs=runs, open=found.open)

        monkeypatch.setattr(scale_in, "read_use", read)
        result = eks.run("scale", "--wait", "9", "--nodes", "0")

        assert result.exit_code == 2
        assert "late has come to a node that was about to go" in result.stderr
        assert len(eks.node_names()) == 2
        closed = [node["spec"].get("unschedulable") for node in eks.cluster.store.list(NODE)]
        assert closed == [None, None]


INSTANCES = tuple(f"i-{letter}" for letter in "abcd")


def group(wanted: int, *instances: str) -> NodeGroup:
    return NodeGroup(
        status="ACTIVE", wanted=wanted, most=4, troubles=(), scaling_group="g", instances=instances
    )


def use(*joined: str, busy: tuple[str, ...] = ()) -> Use:
    return Use(
        nodes={each: f"node-{each}" for each in joined},
        runs={each: ("gang",) for each in busy},
        open=frozenset(),
    )


@pytest.mark.parametrize(
    ("found", "used", "to", "expected"),
    [
        (group(4, *INSTANCES), use(*INSTANCES), 2, Cut(never_came=0, instances=("i-a", "i-b"))),
        (
            group(4, *INSTANCES),
            use(*INSTANCES, busy=("i-a", "i-b")),
            2,
            Cut(never_came=0, instances=("i-c", "i-d")),
        ),
        (group(4, *INSTANCES), use("i-a", "i-b"), 3, Cut(never_came=0, instances=("i-c",))),
        (
            group(4, "i-a", "i-b"),
            use("i-a", "i-b", busy=("i-a",)),
            1,
            Cut(never_came=2, instances=("i-b",)),
        ),
        (group(4), use(), 0, Cut(never_came=4, instances=())),
    ],
    ids=["idle", "beside busy ones", "not joined first", "never came first", "none came"],
)
def test_what_nobody_uses_goes_first(found: NodeGroup, used: Use, to: int, expected: Cut) -> None:
    assert choose(found, used, to, force=False) == expected


def test_with_force_busy_nodes_go_last() -> None:
    found = choose(group(2, "i-a", "i-b"), use("i-a", "i-b", busy=("i-a",)), 1, force=True)

    assert found.instances == ("i-b",)
    with pytest.raises(Refusal, match="would lose some"):
        choose(group(2, "i-a", "i-b"), use("i-a", "i-b", busy=("i-a",)), 0, force=False)


class Delivered:
    """An Auto Scaling group whose third instance of four comes after the nodes were chosen."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, object]] = []

    def eks(self) -> Delivered:
        return self

    autoscaling = eks

    def describe_nodegroup(self, **_: str) -> dict[str, object]:
        resources = {"autoScalingGroups": [{"name": "g"}]}
        return {"nodegroup": {"status": "ACTIVE", "resources": resources}}

    def describe_auto_scaling_groups(self, **_: object) -> dict[str, object]:
        up = [{"InstanceId": each, "LifecycleState": "InService"} for each in INSTANCES[:3]]
        return {"AutoScalingGroups": [{"DesiredCapacity": 4, "MaxSize": 4, "Instances": up}]}

    def set_desired_capacity(self, *, DesiredCapacity: int, **_: str) -> None:
        self.asked.append(("size", DesiredCapacity))

    def terminate_instance_in_auto_scaling_group(
        self,
        *,
        InstanceId: str,
        **_: object,
    ) -> None:
        self.asked.append(("end", InstanceId))


def test_an_instance_that_comes_meanwhile_costs_no_busy_one(eks: EksDesk) -> None:
    """A size of two with three instances up would let the group choose, a busy one perhaps."""
    target = read_deployment(eks.desk.client("ssm"), "default", region="us-west-2")
    aws, used = Delivered(), use("i-a", "i-b", busy=("i-a", "i-b"))
    found = group(4, "i-a", "i-b")
    scale_in.cut(
        aws, eks.cluster, target, found, choose(found, used, 2, force=False),  # type: ignore[arg-type]
        use=used, force=False, sleep=lambda _: None,
    )  # fmt: skip

    assert aws.asked == [("size", 3), ("end", "i-c")]


def test_the_size_is_the_auto_scaling_groups_not_an_old_one_of_eks(eks: EksDesk) -> None:
    """After instances were terminated EKS may still say the old number for a while."""

    class Answers:
        def eks(self) -> Answers:
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

    target = read_deployment(eks.desk.client("ssm"), "default", region="us-west-2")
    found = read_node_group(Answers(), target)  # type: ignore[arg-type]

    assert (found.wanted, found.instances) == (0, ())


class TestIdleNodes:
    """What the node scaler has written on nodes."""

    def ago(self, minutes: float) -> str:
        return stamp(datetime.now(UTC) - timedelta(minutes=minutes))

    def test_scale_shows_who_uses_which_node_and_when_idle_ones_go(self, eks: EksDesk) -> None:
        eks.has("gang", "sleep 30", nodes=1)
        eks.wait("gang", "Running")
        (used,) = busy(eks)
        (idle,) = set(eks.node_names()) - {used}
        eks.mark(idle, **{kubernetes.IDLE_SINCE: self.ago(10)})
        shown = eks.run("scale").stdout
        document = eks.document("scale")

        assert "2 of at most 4 nodes of trn1.32xlarge are wanted, 2 are ready" in shown
        assert f"{used} (i-" in shown and "): gang" in shown
        assert f"{idle} (i-" in shown and "): nobody" in shown
        assert "1 idle node goes at " in shown and "(in 20 min) unless a job takes it" in shown
        assert "scale --nodes 1" in shown
        conforms("jobs-scale", document)
        assert [each["node"] for each in document["idle"]] == [idle]

    def test_status_and_top_say_when_they_go(self, eks: EksDesk) -> None:
        eks.has("gang", "sleep 30", nodes=1)
        eks.wait("gang", "Running")
        (idle,) = set(eks.node_names()) - set(busy(eks))
        eks.mark(idle, **{kubernetes.IDLE_SINCE: self.ago(40)})

        for command in (("status", "gang"), ("top", "gang")):
            result = eks.run(*command)
            assert "1 idle node goes in a moment" in result.stdout, result.stderr

    def test_nothing_is_said_where_nobody_takes_nodes_away(self, eks: EksDesk) -> None:
        eks.mark(eks.node_names()[0], **{kubernetes.IDLE_SINCE: self.ago(10)})
        eks.desk.client("ssm").delete_parameter(
            Name=contract.ssm_parameter("default", contract.SSM_EKS_IDLE_MINUTES)
        )

        assert "idle" not in eks.run("scale").stdout
        assert eks.document("scale")["idle"] == []

    def test_scale_keeps_the_nodes_that_it_is_asked_for_for_another_while(
        self, eks: EksDesk
    ) -> None:
        name = eks.node_names()[0]
        marks = {kubernetes.IDLE_SINCE: self.ago(40), kubernetes.CORDONED_SINCE: self.ago(0)}
        eks.mark(name, **marks)
        eks.cluster.store.update(NODE, "", name, lambda n: n["spec"].update(unschedulable=True))
        result = eks.run("scale", "--wait", "9", "--nodes", "2")
        node = eks.cluster.store.get(NODE, "", name)

        assert result.exit_code == 0, result.stderr
        assert node["metadata"]["annotations"] == {}
        assert not node["spec"].get("unschedulable")


WIDE = (*SWEEP, "--nodes", "3", "--name", "wide", "--scale", "--yes")


class TestSubmitScale:
    """`submit --scale`."""

    def test_the_job_asks_the_cluster_for_nodes_that_are_not_there(self, eks: EksDesk) -> None:
        eks.nodes(0)
        result = eks.run(*WIDE, "--json")
        job = eks.job(json.loads(result.stdout)["job_id"])

        assert "the cluster gets the nodes that are missing, within 4" in result.stderr
        assert "takes them away again after 30 idle minutes" in result.stderr
        assert job is not None
        assert job["metadata"]["annotations"] == {kubernetes.SCALE: "true"}

    def test_status_of_a_job_that_asks_says_that_nodes_come(self, eks: EksDesk) -> None:
        eks.nodes(0)
        eks.wait(eks.document(*WIDE)["job_id"], "Pending")
        said = eks.run("status", "wide").stdout

        assert "the job needs 3 nodes, 0 are ready" in said
        assert "wait: the cluster gets them" in said
        assert "scale --nodes" not in said

    def test_a_job_that_does_not_ask_has_no_annotation(self, eks: EksDesk) -> None:
        job = eks.job(eks.document(*SWEEP, "--nodes", "2", "--name", "plain", "--yes")["job_id"])

        assert job is not None
        assert "annotations" not in job["metadata"]

    def test_it_is_refused_where_nobody_gets_nodes(self, eks: EksDesk) -> None:
        eks.desk.client("ssm").delete_parameter(
            Name=contract.ssm_parameter("default", contract.SSM_EKS_IDLE_MINUTES)
        )
        result = eks.run(*SWEEP, "--nodes", "2", "--scale", "--yes")

        assert result.exit_code == 2
        assert "which has eks_idle_minutes=0" in result.stderr
        assert "-c trainium:eks_idle_minutes=30" in result.stderr

    def test_it_is_refused_on_batch(self, eks: EksDesk) -> None:
        result = eks.run("submit", "all-reduce", "--on", "batch", "--scale", "--yes")

        assert result.exit_code == 2
        assert "--scale: Batch starts the instances" in result.stderr

    def test_a_refusal_for_missing_nodes_names_it(self, eks: EksDesk) -> None:
        eks.nodes(0)

        assert "or submit with --scale" in eks.run(*SWEEP, "--nodes", "2", "--yes").stderr

    def test_a_smaller_number_that_would_not_last_is_refused(self, eks: EksDesk) -> None:
        job_id = eks.document(*WIDE)["job_id"]
        eks.wait(job_id, "Pending")
        refused = eks.run("scale", "--wait", "9", "--nodes", "0")

        assert refused.exit_code == 2
        assert "wide waits for more and was submitted with --scale" in refused.stderr
        assert "python -m jobs stop wide" in refused.stderr
        assert len(eks.node_names()) == 2

        forced = eks.run("scale", "--wait", "9", "--nodes", "0", "--force")
        job = eks.job(job_id)
        assert "wide waits on, and asks for nodes no more" in forced.stderr
        assert eks.node_names() == []
        assert job is not None
        assert not job["metadata"].get("annotations")
