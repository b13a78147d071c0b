"""Nodes that go, stay or are asked for, decided from one look at the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from node_scaler.plan import (
    IN_SERVICE,
    Answer,
    Discard,
    Group,
    Lower,
    Mark,
    Note,
    Observation,
    Raise,
    Remove,
    Rules,
    ScalingPlan,
    ScalingStep,
    plan,
)
from trainium_catalogue import kubernetes
from trainium_catalogue.node_use import NodeRequest, stamp

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
DEVICES = {kubernetes.NEURON_RESOURCE: 16}
RULES = Rules(
    idle=timedelta(minutes=30),
    hold=timedelta(minutes=60),
    unusable=timedelta(minutes=10),
    join=timedelta(minutes=20),
    cordon_time=timedelta(seconds=20),
    devices=DEVICES,
)
Json = dict[str, Any]


def ago(**times: float) -> str:
    return stamp(NOW - timedelta(**times))


def node(
    name: str,
    *,
    idle: str | None = None,
    unusable: str | None = None,
    cordoned: str | None = None,
    closed: bool = False,
    ready: str = "True",
    chips: int = 16,
) -> Json:
    marks = {
        kubernetes.IDLE_SINCE: idle,
        kubernetes.UNUSABLE_SINCE: unusable,
        kubernetes.CORDONED_SINCE: cordoned,
    }
    return {
        "status": {
            "conditions": [{"type": "Ready", "status": ready}],
            "allocatable": {kubernetes.NEURON_RESOURCE: str(chips)},
        },
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
            "annotations": {
                f"trainium/{key.replace('_', '-')}": value for key, value in annotations.items()
            },
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
    request: NodeRequest | None = None,
    strangers: dict[str, datetime] | None = None,
    surplus_since: datetime | None = None,
    rules: Rules = RULES,
) -> ScalingPlan:
    nodes = list(nodes)
    states = {f"i-{each['metadata']['name']}": IN_SERVICE for each in nodes}
    states |= {f"i-{name}": "Terminating:Wait" for name in leaving}
    wanted = len(nodes) if desired is None else desired
    group = Group(name="eks-1", desired=wanted, most=4, instances=states, changing=changing)
    seen = Observation(
        nodes=nodes,
        pods=list(pods),
        jobs=list(jobs),
        group=group,
        request=request,
        strangers=strangers or {},
        surplus_since=surplus_since,
    )
    return plan(seen, rules, now=NOW)


def steps(*args: Any, **kwargs: Any) -> tuple[ScalingStep, ...]:
    """Steps about nodes and the group."""
    return tuple(
        step for step in decided(*args, **kwargs).steps if not isinstance(step, Note | Answer)
    )


def notes(*args: Any, **kwargs: Any) -> dict[str, dict[str, str | None]]:
    """Changed annotations of jobs."""
    found: dict[str, dict[str, str | None]] = {}
    for step in decided(*args, **kwargs).steps:
        if isinstance(step, Note):
            found.setdefault(step.job, {}).update(step.annotations)
    return found


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
        ended["metadata"]["annotations"][kubernetes.TERMINATING_SINCE] = ago(seconds=10)
        long_ago["metadata"]["annotations"][kubernetes.TERMINATING_SINCE] = ago(minutes=11)

        assert removed([ended, long_ago]) == ["m"]

    def test_is_kept_for_another_while_when_its_mark_is_taken_off(self) -> None:
        (step,) = steps([node("n", cordoned=ago(seconds=30))])

        assert isinstance(step, Mark)
        assert step.annotations[kubernetes.IDLE_SINCE] == stamp(NOW)
        assert step.annotations[kubernetes.CORDONED_SINCE] is None
        assert step.unschedulable is False

    def test_is_kept_for_another_while_when_somebody_opens_it(self) -> None:
        opened = due("n")
        del opened["spec"]["unschedulable"]
        (step,) = steps([opened])

        assert isinstance(step, Mark)
        assert step.annotations[kubernetes.IDLE_SINCE] == stamp(NOW)

    def test_that_a_person_has_cordoned_goes_too(self) -> None:
        assert removed([node("n", idle=ago(minutes=31), closed=True)]) == ["n"]

    def test_with_a_mark_that_is_no_time_is_marked_again(self) -> None:
        (step,) = steps([node("n", idle="yesterday")])

        assert isinstance(step, Mark)


@pytest.mark.parametrize(
    "user",
    [
        pod("n"),
        pod("n", phase="Pending"),
        {**pod("n"), "metadata": {"name": "debug", "namespace": "default"}},
        {**pod("n"), "metadata": {**pod("n")["metadata"], "deletionTimestamp": ago(seconds=-9)}},
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
        gang = job("gang", 1, scale="true")

        assert raised([node("n", closed=True, idle=ago(minutes=11))], jobs=[gang]) == 2
        # EKS's node repair cordons a node too, and replaces it by itself.
        assert raised([node("n", closed=True, idle=ago(minutes=9))], jobs=[gang]) is None

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


class TestANodeOnWhichNoJobCouldRun:
    """A node that is no capacity, and goes even while a gang waits."""

    BROKEN = (
        node("n", ready="False"),
        node("n", ready="Unknown"),
        node("n", chips=15),
        {**node("n"), "metadata": {**node("n")["metadata"], "deletionTimestamp": ago(seconds=1)}},
    )

    @pytest.mark.parametrize("broken", BROKEN)
    def test_is_marked_and_gone_after_ten_minutes(self, broken: Json) -> None:
        gang = job("gang", 1, scale="true")
        (step,) = steps([broken], jobs=[gang])
        assert isinstance(step, Mark)
        assert step.annotations[kubernetes.UNUSABLE_SINCE] == stamp(NOW)

        marks = {kubernetes.UNUSABLE_SINCE: ago(minutes=9)}
        broken = {**broken, "metadata": {**broken["metadata"], "annotations": marks}}
        assert steps([broken], jobs=[gang]) == ()

        marks = {
            kubernetes.UNUSABLE_SINCE: ago(minutes=11), kubernetes.CORDONED_SINCE: ago(minutes=1)
        }  # fmt: skip
        broken = {**broken, "spec": {**broken["spec"], "unschedulable": True}}
        broken["metadata"] = {**broken["metadata"], "annotations": marks}
        assert removed([broken], jobs=[gang]) == ["n"]

    def test_with_a_reported_fault_is_cordoned_at_once(self) -> None:
        """It is Ready, so a gang that restarts would use up its attempts there."""
        broken = node("n")
        broken["status"]["conditions"].append(
            {"type": "AcceleratedHardwareReady", "status": "False", "reason": "NeuronHBMError"}
        )
        (step,) = steps([broken], jobs=[job("gang", 1)])

        assert isinstance(step, Mark)
        assert step.unschedulable is True
        assert step.annotations[kubernetes.UNUSABLE_SINCE] == stamp(NOW)

    def test_is_replaced_when_it_has_gone(self) -> None:
        gang = job("gang", 2, scale="true")

        assert raised([node("a"), node("n", chips=15)], jobs=[gang]) is None
        assert raised([node("a")], jobs=[gang]) == 2

    def test_that_is_in_use_stays(self) -> None:
        assert steps([node("n", chips=15, unusable=None)], pods=[pod("n")]) == ()

    def test_that_has_recovered_stays(self) -> None:
        (step,) = steps([node("n", unusable=ago(minutes=9))], jobs=[job("gang", 1)])

        assert isinstance(step, Mark)
        assert step.annotations == {kubernetes.UNUSABLE_SINCE: None}

    def test_whose_pod_is_past_its_grace_period_is_no_capacity_either(self) -> None:
        """The kubelet does not answer: the pod, and with it the gang, waits for the node's end."""
        stuck = pod("n", job="gang")
        stuck["metadata"]["deletionTimestamp"] = ago(seconds=1)
        gang = job("gang", 1, phase="Restarting", scale="true")
        (step,) = steps([node("n", ready="Unknown")], pods=[stuck], jobs=[gang])

        assert isinstance(step, Mark)
        assert kubernetes.UNUSABLE_SINCE in step.annotations
        due = node("n", unusable=ago(minutes=11), cordoned=ago(minutes=1))
        assert removed([due], pods=[stuck], jobs=[gang]) == ["n"]


class TestTheLimitOfAWait:
    """Nodes held or bought for a gang that does not start."""

    def test_begins_with_the_first_idle_node(self) -> None:
        gang = job("gang", 2, scale="true")

        assert notes([node("a")], jobs=[gang]) == {"gang": {kubernetes.HELD_SINCE: stamp(NOW)}}
        assert notes(jobs=[gang]) == {}

    def test_ends_the_wait_after_an_hour(self) -> None:
        gang = job("gang", 2, scale="true", nodes_held_since=ago(minutes=61))
        said = notes([node("a")], jobs=[gang])["gang"][kubernetes.DROPPED]

        assert said == "nodes were held for it for 60 minutes, and it has not started"
        # In one patch: if it fails, the clock has not restarted either.
        found = [step for step in decided([node("a")], jobs=[gang]).steps if isinstance(step, Note)]
        assert len(found) == 1
        assert found[0].annotations[kubernetes.HELD_SINCE] is None

        dropped = job("gang", 2, scale="true", nodes_dropped="said before")
        assert removed([due("a")], jobs=[dropped]) == ["a"]
        assert raised(jobs=[dropped]) is None

    def test_does_not_count_while_other_runs_have_the_nodes(self) -> None:
        jobs = [job("a", 2, phase="Running"), job("gang", 3)]
        running = [pod("n"), pod("m")]

        assert notes([node("n"), node("m"), node("o")], pods=running, jobs=jobs) == {}

    def test_a_wait_that_cannot_be_satisfied_beside_what_is_busy_holds_nothing(self) -> None:
        jobs = [job("a", 2, phase="Running"), job("gang", 3)]
        running = [pod("n"), pod("m")]

        assert removed([node("n"), node("m"), due("o")], pods=running, jobs=jobs) == ["o"]

    def test_is_forgotten_once_the_gang_runs(self) -> None:
        gang = job("gang", 1, phase="Running", nodes_dropped="said before",
                   nodes_held_since=ago(minutes=5))  # fmt: skip
        found = notes([node("n")], pods=[pod("n", job="gang")], jobs=[gang])

        assert found == {"gang": {kubernetes.DROPPED: None, kubernetes.HELD_SINCE: None}}

    def test_one_failed_node_is_replaced_and_a_second_ends_the_request(self) -> None:
        lost = {"i-lost": NOW - timedelta(minutes=21)}
        first = notes(jobs=[job("gang", 1, scale="true")], desired=1, strangers=lost)
        assert first == {"gang": {kubernetes.FAILED_NODES: stamp(NOW), kubernetes.DROPPED: None}}

        again = job("gang", 1, scale="true", failed_nodes=ago(minutes=30))
        second = notes(jobs=[again], desired=1, strangers=lost)
        assert second["gang"][kubernetes.DROPPED] == (
            "nodes have failed 2 times, the last: instance i-lost has not joined the cluster "
            "within 20 minutes"
        )

    @pytest.mark.parametrize(("age", "failures"), [(15, 1), (60, 0)])
    def test_a_node_that_breaks_after_it_was_usable_was_not_bought_in_vain(
        self, age: float, failures: int
    ) -> None:
        broken = node("n", chips=15, unusable=ago(minutes=11), cordoned=ago(seconds=5))
        broken["metadata"]["creationTimestamp"] = ago(minutes=11 + age)
        gang = job("gang", 1, scale="true")

        assert len(notes([broken], jobs=[gang])) == failures

    def test_an_instance_bought_before_the_last_failure_is_no_second_one(self) -> None:
        lost = {"i-lost": NOW - timedelta(minutes=21)}
        gang = job("gang", 1, scale="true", failed_nodes=ago(minutes=1))

        assert notes(jobs=[gang], desired=1, strangers=lost) == {}


class TestAUsersRequest:
    """`jobs scale --nodes N`."""

    def ask(self, nodes: int, minutes_ago: float | None = 0, **more: Any) -> NodeRequest:
        since = None if minutes_ago is None else NOW - timedelta(minutes=minutes_ago)
        return NodeRequest(id="r", nodes=nodes, since=since, **more)

    def test_is_answered_with_the_time(self) -> None:
        (answer,) = (step for step in decided(request=self.ask(1, None)).steps
                     if isinstance(step, Answer))  # fmt: skip

        assert answer.request.since == NOW

    def test_adds_nodes(self) -> None:
        assert raised(request=self.ask(2)) == 2
        assert raised([node("a")], pods=[pod("a")], request=self.ask(2)) == 2
        assert raised(request=self.ask(9)) == 4

    def test_is_over_after_the_idle_time(self) -> None:
        assert raised(request=self.ask(2, 31)) is None

    def test_restarts_the_time_of_idle_nodes(self) -> None:
        (step,) = steps([due("a")], request=self.ask(1, 1))

        assert isinstance(step, Mark)
        assert step.annotations[kubernetes.IDLE_SINCE] == ago(minutes=1)
        assert step.unschedulable is False

    def test_for_fewer_removes_idle_nodes_at_once_and_no_others(self) -> None:
        nodes = [node("a"), node("b", idle=ago(minutes=1)), node("c", idle=ago(minutes=2))]
        found = steps(nodes, pods=[pod("a")], request=self.ask(1, 0.5))

        assert {step.node for step in found if isinstance(step, Mark)} == {"b", "c"}
        assert all(isinstance(step, Mark) and step.unschedulable for step in found)

    def test_for_fewer_cordons_at_once_a_node_that_no_round_has_marked_yet(self) -> None:
        (step,) = steps([node("a")], request=self.ask(0))

        assert isinstance(step, Mark)
        assert step.unschedulable is True

    def test_for_fewer_leaves_a_node_that_a_later_job_has_left(self) -> None:
        assert steps([node("a", idle=ago(minutes=2))], request=self.ask(0, 20)) == ()

    def test_for_fewer_takes_unusable_and_cordoned_nodes_too(self) -> None:
        nodes = [
            node("a", ready="False", unusable=ago(minutes=2), cordoned=ago(minutes=1)),
            node("b", closed=True, idle=ago(minutes=2)),
        ]

        assert removed(nodes, request=self.ask(0, 1)) == ["a", "b"]

    def test_for_fewer_gives_up_what_ec2_has_not_delivered(self) -> None:
        found = steps([node("a")], pods=[pod("a")], desired=4, request=self.ask(1))

        assert found == (Lower(number=1),)

    def test_for_fewer_counts_more_than_a_job_that_takes_what_there_is(self) -> None:
        gang = job("gang", 2)

        assert removed([due("a")], jobs=[gang], request=self.ask(0, 0)) == ["a"]
        assert removed([due("a")], jobs=[gang]) == []

    def test_does_not_count_more_than_a_job_that_asks(self) -> None:
        assert raised(jobs=[job("gang", 2, scale="true")], request=self.ask(0)) == 2

    def test_is_dropped_after_two_failures(self) -> None:
        lost = {"i-lost": NOW - timedelta(minutes=21)}
        request = self.ask(1, 29, failed_nodes=(NOW - timedelta(minutes=25),))
        (answer,) = (step for step in decided(request=request, desired=1, strangers=lost).steps
                     if isinstance(step, Answer))  # fmt: skip

        assert answer.request.dropped is not None
        assert raised(request=answer.request) is None

    def test_stands_for_good_where_idle_nodes_stay(self) -> None:
        stay = replace(RULES, idle=None)
        old = self.ask(1, 10_000)

        assert raised(request=old, rules=stay) == 1
        assert removed([due("a"), due("b")], request=old, rules=stay) == []
        assert steps([node("a", idle=ago(minutes=999))], rules=stay) == ()


def test_what_ec2_does_not_deliver_and_nothing_needs_is_given_up_after_the_idle_time() -> None:
    assert decided(desired=2).surplus == 2
    since = NOW - timedelta(minutes=29)
    assert steps(desired=2, surplus_since=since) == ()
    assert steps(desired=2, surplus_since=since - timedelta(minutes=1)) == (Lower(number=0),)


def test_an_instance_that_never_joins_goes() -> None:
    lost = {"i-lost": NOW - timedelta(minutes=20), "i-new": NOW - timedelta(minutes=19)}
    (step,) = steps(desired=2, strangers=lost)

    assert step == Discard(instance="i-lost", since=lost["i-lost"])


class TestAGroupThatEksChanges:
    """A group whose nodes an update is replacing."""

    def test_loses_no_node_to_us(self) -> None:
        assert removed([due("n")]) == ["n"]
        assert removed([due("n")], changing=True) == []

    def test_gets_none_in_place_of_those_that_the_update_has_cordoned(self) -> None:
        gang = job("gang", 2, scale="true")
        old = [node(name, closed=True, idle=ago(minutes=11)) for name in ("a", "b")]

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
