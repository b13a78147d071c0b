"""Nodes that go, stay or are asked for, decided from one look at the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from node_scaler.plan import (
    IN_SERVICE,
    Group,
    Mark,
    Raise,
    Remove,
    Rules,
    ScalingPlan,
    ScalingStep,
    Seen,
    plan,
)
from trainium_catalogue import kubernetes
from trainium_catalogue.node_use import stamp

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
RULES = Rules(
    idle=timedelta(minutes=30), cordon_time=timedelta(seconds=20), join=timedelta(minutes=20)
)
Json = dict[str, Any]


def ago(**times: float) -> str:
    return stamp(NOW - timedelta(**times))


def node(name: str, *, idle: str | None = None, cordoned: str | None = None,
         closed: bool = False) -> Json:  # fmt: skip
    marks = {kubernetes.IDLE_SINCE: idle, kubernetes.CORDONED_SINCE: cordoned}
    return {
        "metadata": {"name": name, "annotations": {k: v for k, v in marks.items() if v}},
        "spec": {
            "providerID": f"aws:///us-west-2d/i-{name}",
            **({"unschedulable": True} if closed or cordoned else {}),
        },
    }


def due(name: str) -> Json:
    """Make a node that is removed in this round unless something keeps it."""
    return node(name, idle=ago(minutes=40), cordoned=ago(seconds=30))


def pod(on: str, *, job: str = "a", phase: str = "Running", owner: str = "Job") -> Json:
    return {
        "metadata": {
            "name": f"{job}-{on}",
            "namespace": "trainium",
            "annotations": {"volcano.sh/job-name": job},
            "ownerReferences": [{"kind": owner}],
        },
        "spec": {"nodeName": on},
        "status": {"phase": phase},
    }


def job(name: str, size: int, *, phase: str = "Pending", **annotations: str) -> Json:
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "creationTimestamp": f"2026-05-01T10:00:0{len(name)}Z",
            "annotations": {f"trainium/{key}": value for key, value in annotations.items()},
        },
        "spec": {"tasks": [{"replicas": 1}] * size},
        "status": {"state": {"phase": phase}} if phase else {},
    }


def decided(
    nodes: Iterable[Json] = (),
    *,
    pods: Iterable[Json] = (),
    jobs: Iterable[Json] = (),
    desired: int | None = None,
    leaving: Iterable[str] = (),
    changing: bool = False,
) -> ScalingPlan:
    nodes = list(nodes)
    states = {f"i-{each['metadata']['name']}": IN_SERVICE for each in nodes}
    states |= {f"i-{name}": "Terminating:Wait" for name in leaving}
    wanted = len(nodes) if desired is None else desired
    group = Group(name="eks-1", desired=wanted, most=4, instances=states, changing=changing)
    seen = Seen(nodes=nodes, pods=list(pods), jobs=list(jobs), group=group)
    return plan(seen, RULES, now=NOW)


def steps(*args: Any, **kwargs: Any) -> tuple[ScalingStep, ...]:
    return decided(*args, **kwargs).steps


def removed(*args: Any, **kwargs: Any) -> list[str]:
    return [step.node for step in steps(*args, **kwargs) if isinstance(step, Remove)]


def raised(*args: Any, **kwargs: Any) -> int | None:
    found = [step.number for step in steps(*args, **kwargs) if isinstance(step, Raise)]
    return found[0] if found else None


class TestAnIdleNode:
    """A node without users: marked, cordoned, removed."""

    def test_is_marked_when_it_is_first_seen(self) -> None:
        (step,) = steps([node("n")])

        assert isinstance(step, Mark)
        assert step.annotations[kubernetes.IDLE_SINCE] == stamp(NOW)
        assert step.unschedulable is None

    def test_stays_until_its_time(self) -> None:
        assert steps([node("n", idle=ago(minutes=29))]) == ()

    def test_is_cordoned_before_it_goes(self) -> None:
        (step,) = steps([node("n", idle=ago(minutes=31))])

        assert isinstance(step, Mark)
        assert step.unschedulable is True
        assert step.annotations == {kubernetes.CORDONED_SINCE: stamp(NOW)}

    def test_stays_while_a_scheduler_may_not_have_seen_the_cordon(self) -> None:
        assert steps([node("n", idle=ago(minutes=31), cordoned=ago(seconds=10))]) == ()

    def test_goes_with_its_instance(self) -> None:
        (step,) = steps([due("n")])

        assert isinstance(step, Remove)
        assert step.instance == "i-n"

    def test_goes_once(self) -> None:
        """The node object stays for minutes; a second decrement would cost another node."""
        assert steps([due("n")], leaving=["n"]) == ()

    def test_is_not_ended_twice_while_its_instance_is_described_as_it_was(self) -> None:
        ended, long_ago = due("n"), due("m")
        ended["metadata"]["annotations"][kubernetes.ENDS_SINCE] = ago(seconds=10)
        long_ago["metadata"]["annotations"][kubernetes.ENDS_SINCE] = ago(minutes=11)

        assert removed([ended, long_ago]) == ["m"]

    def test_is_kept_for_another_while_when_its_mark_is_taken_off(self) -> None:
        (step,) = steps([node("n", cordoned=ago(seconds=30))])

        assert isinstance(step, Mark)
        assert step.annotations == {
            kubernetes.IDLE_SINCE: stamp(NOW), kubernetes.CORDONED_SINCE: None
        }  # fmt: skip
        assert step.unschedulable is False

    def test_is_kept_for_another_while_when_somebody_opens_it(self) -> None:
        opened = due("n")
        del opened["spec"]["unschedulable"]
        (step,) = steps([opened])

        assert isinstance(step, Mark)
        assert step.annotations[kubernetes.IDLE_SINCE] == stamp(NOW)

    def test_that_a_person_has_cordoned_goes_too(self) -> None:
        assert removed([node("n", idle=ago(minutes=31), closed=True)]) == ["n"]

    def test_with_a_mark_that_is_no_time_is_marked_anew(self) -> None:
        (step,) = steps([node("n", idle="yesterday")])

        assert isinstance(step, Mark)


@pytest.mark.parametrize(
    "user",
    [
        pod("n"),
        pod("n", phase="Pending"),
        {**pod("n"), "metadata": {"name": "debug", "namespace": "default"}},
        {**pod("n"), "metadata": {**pod("n")["metadata"], "deletionTimestamp": ago(seconds=1)}},
    ],
    ids=["running", "starting", "somebody else's", "leaving"],
)
def test_a_node_with_a_pod_never_goes(user: Json) -> None:
    (step,) = steps([due("n")], pods=[user])

    assert step == Mark(
        node="n",
        annotations={kubernetes.IDLE_SINCE: None, kubernetes.CORDONED_SINCE: None},
        unschedulable=False,
    )


@pytest.mark.parametrize(
    "other",
    [
        pod("n", owner="DaemonSet"),
        pod("n", phase="Succeeded"),
        pod("n", phase="Failed"),
        {
            **pod("n"),
            "metadata": {"name": "x", "annotations": {"kubernetes.io/config.mirror": "y"}},
        },
    ],
    ids=["of every node", "succeeded", "failed", "the kubelet's own"],
)
def test_a_pod_that_uses_nothing_keeps_no_node(other: Json) -> None:
    assert removed([due("n")], pods=[other]) == ["n"]


class TestAJobThatWaits:
    """A gang that lacks nodes, and the nodes kept for it."""

    @pytest.mark.parametrize("phase", ["", "Pending", "Restarting", "Running"])
    def test_keeps_as_many_idle_nodes_as_it_lacks(self, phase: str) -> None:
        assert removed([due("a"), due("b"), due("c")], jobs=[job("gang", 2, phase=phase)]) == ["a"]

    @pytest.mark.parametrize(
        "phase", ["Completed", "Terminated", "Aborted", "Failed", "Terminating", "Aborting"]
    )
    def test_keeps_none_once_it_is_over(self, phase: str) -> None:
        assert removed([due("a")], jobs=[job("gang", 1, phase=phase)]) == ["a"]

    def test_opens_the_nodes_again_that_were_about_to_go(self) -> None:
        (step,) = steps([due("a")], jobs=[job("gang", 1)])

        assert isinstance(step, Mark)
        assert step.unschedulable is False

    def test_keeps_none_if_it_is_larger_than_the_group_can_be(self) -> None:
        assert removed([due("a")], jobs=[job("gang", 5)]) == ["a"]

    def test_and_the_job_that_compiles_for_it_keep_the_larger_of_both(self) -> None:
        both = [job("one", 2, phase="Running"), job("other", 2, after="one")]
        running = [pod("a", job="one"), pod("b", job="one")]

        assert removed([node("a"), node("b"), due("c")], pods=running, jobs=both) == ["c"]

    def test_keeps_its_nodes_between_compiling_and_training(self) -> None:
        both = [job("one", 2, phase="Completed"), job("other", 2, after="one")]
        ended = [pod("a", job="one", phase="Succeeded"), pod("b", job="one", phase="Succeeded")]

        assert removed([due("a"), due("b")], pods=ended, jobs=both) == []

    def test_keeps_the_node_that_a_lost_one_leaves_to_it(self) -> None:
        gang = job("gang", 2, phase="Running")

        assert removed([due("a"), due("b")], pods=[pod("b", job="gang")], jobs=[gang]) == []


class TestAJobThatAsksForNodes:
    """A gang submitted with --scale, and the nodes added for it."""

    def test_gets_what_it_lacks(self) -> None:
        assert raised(jobs=[job("gang", 2, scale="true")]) == 2

    def test_gets_them_beside_those_in_use(self) -> None:
        jobs = [job("a", 1, phase="Running"), job("gang", 2, scale="true")]

        assert raised([node("n")], pods=[pod("n")], jobs=jobs) == 3

    def test_gets_none_that_are_coming_already(self) -> None:
        assert raised(jobs=[job("gang", 2, scale="true")], desired=2) is None

    def test_gets_none_that_it_could_not_use_yet(self) -> None:
        """It needs three, and two of four are in use: the other two would only wait and cost."""
        jobs = [job("a", 2, phase="Running"), job("gang", 3, scale="true")]
        running = [pod("n"), pod("m")]

        assert raised([node("n"), node("m")], pods=running, jobs=jobs) is None

    def test_gets_one_in_place_of_a_node_that_a_person_has_cordoned(self) -> None:
        assert raised([node("n", closed=True)], jobs=[job("gang", 1, scale="true")]) == 2

    def test_shares_the_group_with_others_that_ask(self) -> None:
        jobs = [job("a", 2, scale="true"), job("bc", 2, scale="true"), job("def", 1, scale="true")]

        assert raised(jobs=jobs) == 4

    def test_gets_one_need_for_itself_and_its_compile_job(self) -> None:
        jobs = [job("a", 2, scale="true"), job("bc", 2, scale="true", after="a")]

        assert raised(jobs=jobs) == 2

    def test_gets_no_other_for_a_pod_that_has_succeeded_before_its_peers(self) -> None:
        gang = job("gang", 2, phase="Running", scale="true")
        pods = [pod("a", job="gang", phase="Succeeded"), pod("b", job="gang")]

        assert raised([node("a"), node("b")], pods=pods, jobs=[gang]) is None

    def test_does_not_fight_with_a_smaller_number_for_a_job_that_does_not_ask(self) -> None:
        assert raised(jobs=[job("gang", 2)]) is None


class TestAGroupThatEksChanges:
    """A group whose nodes an update is replacing."""

    def test_loses_no_node_to_us(self) -> None:
        assert removed([due("n")]) == ["n"]
        assert removed([due("n")], changing=True) == []

    def test_gets_none_in_place_of_those_that_the_update_has_cordoned(self) -> None:
        gang = job("gang", 2, scale="true")
        old = [node("a", closed=True), node("b", closed=True)]

        assert raised(old, jobs=[gang]) == 4
        assert raised(old, jobs=[gang], changing=True) is None

    def test_has_its_nodes_opened_again_for_a_job(self) -> None:
        (step,) = steps([due("n")], jobs=[job("gang", 1)], changing=True)

        assert isinstance(step, Mark)
        assert step.unschedulable is False

    def test_is_said_to_be_left_alone(self) -> None:
        assert decided(changing=True).summary.endswith("EKS changes the group, which is left alone")


def test_nodes_idle_for_longest_go_first() -> None:
    nodes = [due("a"), node("b", idle=ago(minutes=50), cordoned=ago(seconds=30))]

    assert removed(nodes, jobs=[job("gang", 1)]) == ["b"]


def test_the_plan_depends_on_nothing_but_what_is_seen() -> None:
    """A new process continues where the last one stopped."""
    assert decided([due("a"), node("b")]) == decided([due("a"), node("b")])


def test_the_summary_says_when_the_first_node_goes() -> None:
    idle = node("b", idle=ago(minutes=10))
    summary = decided([node("a"), idle], pods=[pod("a")], jobs=[]).summary

    assert summary == (
        "2 of at most 4 nodes are wanted: 1 in use, 0 kept for jobs that wait, 1 idle, the first "
        "goes at 2026-05-01T12:20:00Z"
    )
