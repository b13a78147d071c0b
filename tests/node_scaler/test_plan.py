"""Nodes to remove, keep or add, decided from one observation of the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from node_scaler.model import (
    IN_SERVICE,
    Answer,
    Group,
    Mark,
    Note,
    Observation,
    Remove,
    Rules,
    ScaleDown,
    ScaleUp,
    ScalingStep,
)
from node_scaler.plan import ScalingPlan, plan
from tests.node_scaler.rules import RULES as DEFAULT_RULES
from trainium_catalogue import kubernetes
from trainium_catalogue.exit_codes import ExitCode
from trainium_catalogue.node_use import NodeRequest, stamp

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
RULES = replace(DEFAULT_RULES, devices={kubernetes.NEURON_RESOURCE: 16})
Json = dict[str, Any]


def ago(**times: float) -> str:
    return stamp(NOW - timedelta(**times))


def node(
    name: str,
    *,
    idle: str | None = None,
    unusable: str | None = None,
    cordoned: str | None = None,
    unschedulable: bool = False,
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
            **({"unschedulable": True} if cordoned or unschedulable else {}),
        },
    }


def due(name: str) -> Json:
    """Return a node that is removed in this round unless something keeps it."""
    return node(name, idle=ago(minutes=40), cordoned=ago(seconds=30))


def unfit(name: str) -> Json:
    """Return a node whose host failed a preflight, to be removed in this round."""
    made = node(name, unusable=ago(seconds=21), cordoned=ago(seconds=21))
    made["metadata"]["annotations"][kubernetes.UNFIT_SINCE] = ago(seconds=21)
    return made


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


def ended(pod: Json, code: int) -> Json:
    """Return a pod whose container has just ended."""
    terminated = {"exitCode": int(code), "finishedAt": stamp(NOW)}
    status = {**pod["status"], "containerStatuses": [{"state": {"terminated": terminated}}]}
    return {**pod, "status": status}


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
    unregistered: dict[str, datetime] | None = None,
    surplus_since: datetime | None = None,
    rules: Rules = RULES,
) -> ScalingPlan:
    nodes = list(nodes)
    states = {f"i-{each['metadata']['name']}": IN_SERVICE for each in nodes}
    states |= {f"i-{name}": "Terminating:Wait" for name in leaving}
    wanted = len(nodes) if desired is None else desired
    group = Group(name="eks-1", desired=wanted, max_size=4, instances=states, changing=changing)
    seen = Observation(
        nodes=nodes,
        pods=list(pods),
        jobs=list(jobs),
        group=group,
        request=request,
        unregistered=unregistered or {},
        surplus_since=surplus_since,
    )
    return plan(seen, rules, now=NOW)


def steps(*args: Any, **kwargs: Any) -> tuple[ScalingStep, ...]:
    """Return the steps about nodes and the group."""
    return tuple(
        step for step in decided(*args, **kwargs).steps if not isinstance(step, Note | Answer)
    )


def notes(*args: Any, **kwargs: Any) -> dict[str, dict[str, str | None]]:
    """Return the changed annotations of jobs."""
    found: dict[str, dict[str, str | None]] = {}
    for step in decided(*args, **kwargs).steps:
        if isinstance(step, Note):
            found.setdefault(step.job, {}).update(step.annotations)
    return found


def removed(*args: Any, **kwargs: Any) -> list[str]:
    return [step.node for step in steps(*args, **kwargs) if isinstance(step, Remove)]


def replaced(*args: Any, **kwargs: Any) -> dict[str, bool]:
    """Return removed nodes, and whether the group launches replacements."""
    found = (step for step in steps(*args, **kwargs) if isinstance(step, Remove))
    return {step.node: step.is_replaced for step in found}


def raised(*args: Any, **kwargs: Any) -> int | None:
    found = [step.number for step in steps(*args, **kwargs) if isinstance(step, ScaleUp)]
    return found[0] if found else None


class TestIdleNode:
    """A node without users: marked, cordoned, removed."""

    def test_is_marked_when_first_seen(self) -> None:
        (step,) = steps([node("n")])

        assert isinstance(step, Mark)
        assert step.annotations[kubernetes.IDLE_SINCE] == stamp(NOW)
        assert step.unschedulable is None

    def test_stays_until_idle_timeout(self) -> None:
        assert steps([node("n", idle=ago(minutes=29))]) == ()

    def test_stays_until_scheduler_has_seen_cordon(self) -> None:
        assert steps([node("n", idle=ago(minutes=31), cordoned=ago(seconds=10))]) == ()

    def test_is_removed_once(self) -> None:
        """The node object stays for minutes; a second decrement would cost another node."""
        assert steps([due("n")], leaving=["n"]) == ()

    def test_is_not_terminated_again_while_its_instance_is_still_listed(self) -> None:
        ended, long_ago = due("n"), due("m")
        ended["metadata"]["annotations"][kubernetes.TERMINATING_SINCE] = ago(seconds=10)
        long_ago["metadata"]["annotations"][kubernetes.TERMINATING_SINCE] = ago(minutes=11)

        assert removed([ended, long_ago]) == ["m"]

    def test_removed_mark_restarts_idle_time(self) -> None:
        (step,) = steps([node("n", cordoned=ago(seconds=30))])

        assert isinstance(step, Mark)
        assert step.annotations[kubernetes.IDLE_SINCE] == stamp(NOW)
        assert step.annotations[kubernetes.CORDONED_SINCE] is None
        assert step.unschedulable is False

    def test_uncordoning_restarts_idle_time(self) -> None:
        uncordoned = due("n")
        del uncordoned["spec"]["unschedulable"]
        (step,) = steps([uncordoned])

        assert isinstance(step, Mark)
        assert step.annotations[kubernetes.IDLE_SINCE] == stamp(NOW)

    def test_node_cordoned_by_user_is_removed(self) -> None:
        assert removed([node("n", idle=ago(minutes=31), unschedulable=True)]) == ["n"]

    def test_invalid_mark_is_replaced(self) -> None:
        (step,) = steps([node("n", idle="yesterday")])

        assert isinstance(step, Mark)


@pytest.mark.parametrize(
    "user",
    [
        pod("n"),
        pod("n", phase="Pending"),
        {**pod("n"), "metadata": {"name": "debug", "namespace": "default"}},
        {**pod("n"), "metadata": {**pod("n")["metadata"], "deletionTimestamp": ago(seconds=-9)}},
        {**pod("n"), "metadata": {**pod("n")["metadata"], "deletionTimestamp": ago(seconds=59)}},
    ],
    ids=["running", "starting", "other namespace", "terminating", "being killed"],
)
def test_node_with_pod_is_never_removed(user: Json) -> None:
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
    ids=["daemon set", "succeeded", "failed", "static"],
)
def test_pod_without_use_does_not_keep_node(other: Json) -> None:
    assert removed([due("n")], pods=[other]) == ["n"]


class TestWaitingJob:
    """A gang that lacks nodes, and nodes kept for it."""

    @pytest.mark.parametrize("phase", ["", "Pending", "Restarting", "Running"])
    def test_keeps_idle_nodes_it_lacks(self, phase: str) -> None:
        assert removed([due("a"), due("b"), due("c")], jobs=[job("gang", 2, phase=phase)]) == ["a"]

    @pytest.mark.parametrize(
        "phase", ["Completed", "Terminated", "Aborted", "Failed", "Terminating", "Aborting"]
    )
    def test_ended_job_keeps_no_nodes(self, phase: str) -> None:
        assert removed([due("a")], jobs=[job("gang", 1, phase=phase)]) == ["a"]

    def test_uncordons_nodes_about_to_be_removed(self) -> None:
        (step,) = steps([due("a")], jobs=[job("gang", 1)])

        assert isinstance(step, Mark)
        assert step.unschedulable is False

    def test_job_larger_than_group_keeps_no_nodes(self) -> None:
        assert removed([due("a")], jobs=[job("gang", 5)]) == ["a"]

    def test_job_and_its_compile_job_keep_the_larger_need(self) -> None:
        both = [job("one", 2, phase="Running"), job("other", 2, after="one")]
        running = [pod("a", job="one"), pod("b", job="one")]

        assert removed([node("a"), node("b"), due("c")], pods=running, jobs=both) == ["c"]

    def test_keeps_nodes_between_compiling_and_training(self) -> None:
        both = [job("one", 2, phase="Completed"), job("other", 2, after="one")]
        ended = [pod("a", job="one", phase="Succeeded"), pod("b", job="one", phase="Succeeded")]

        assert removed([due("a"), due("b")], pods=ended, jobs=both) == []

    def test_keeps_node_freed_by_lost_pod(self) -> None:
        gang = job("gang", 2, phase="Running")

        assert removed([due("a"), due("b")], pods=[pod("b", job="gang")], jobs=[gang]) == []


class TestScalingJob:
    """A gang submitted with --scale, and nodes added for it."""

    def test_adds_no_nodes_before_capacity_block_starts(self) -> None:
        soon = stamp(NOW + timedelta(minutes=5))

        assert raised(jobs=[job("gang", 2, scale="true", not_before=soon)]) is None
        assert raised(jobs=[job("gang", 2, scale="true", not_before=ago(minutes=0))]) == 2

    def test_adds_nodes_to_those_in_use(self) -> None:
        jobs = [job("a", 1, phase="Running"), job("gang", 2, scale="true")]

        assert raised([node("n")], pods=[pod("n")], jobs=jobs) == 3

    def test_adds_no_nodes_already_requested(self) -> None:
        assert raised(jobs=[job("gang", 2, scale="true")], desired=2) is None

    def test_adds_no_nodes_it_cannot_use_yet(self) -> None:
        """It needs three, but two of four are in use: the other two would only wait and cost."""
        jobs = [job("a", 2, phase="Running"), job("gang", 3, scale="true")]
        running = [pod("n"), pod("m")]

        assert raised([node("n"), node("m")], pods=running, jobs=jobs) is None

    def test_replaces_node_cordoned_by_user(self) -> None:
        gang = job("gang", 1, scale="true")

        assert raised([node("n", unschedulable=True, idle=ago(minutes=11))], jobs=[gang]) == 2
        # EKS's node repair also cordons a node, and replaces it automatically.
        assert raised([node("n", unschedulable=True, idle=ago(minutes=9))], jobs=[gang]) is None

    def test_shares_group_with_other_scaling_jobs(self) -> None:
        jobs = [job("a", 2, scale="true"), job("bc", 2, scale="true"), job("def", 1, scale="true")]

        assert raised(jobs=jobs) == 4

    def test_counts_job_and_its_compile_job_once(self) -> None:
        jobs = [job("a", 2, scale="true"), job("bc", 2, scale="true", after="a")]

        assert raised(jobs=jobs) == 2

    def test_adds_no_node_for_pod_that_succeeded_early(self) -> None:
        gang = job("gang", 2, phase="Running", scale="true")
        pods = [pod("a", job="gang", phase="Succeeded"), pod("b", job="gang")]

        assert raised([node("a"), node("b")], pods=pods, jobs=[gang]) is None

    def test_job_without_scale_adds_no_nodes(self) -> None:
        assert raised(jobs=[job("gang", 2)]) is None


class TestUnusableNode:
    """A node without usable capacity, removed even while a gang waits."""

    BROKEN = (
        node("n", ready="False"),
        node("n", ready="Unknown"),
        node("n", chips=15),
        {**node("n"), "metadata": {**node("n")["metadata"], "deletionTimestamp": ago(seconds=1)}},
    )

    @pytest.mark.parametrize("broken", BROKEN)
    def test_is_marked_and_removed_after_ten_minutes(self, broken: Json) -> None:
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

    def test_node_with_reported_fault_is_cordoned_immediately(self) -> None:
        """The node is Ready, so a restarting gang would use up its attempts there."""
        broken = node("n")
        broken["status"]["conditions"].append(
            {"type": "AcceleratedHardwareReady", "status": "False", "reason": "NeuronHBMError"}
        )
        (step,) = steps([broken], jobs=[job("gang", 1)])

        assert isinstance(step, Mark)
        assert step.unschedulable is True
        assert step.annotations[kubernetes.UNUSABLE_SINCE] == stamp(NOW)

    def test_node_that_failed_preflight_is_cordoned_before_retry(self) -> None:
        failed = ended(pod("n", job="gang", phase="Failed"), ExitCode.UNFIT_HOST)
        others = [pod("a", job="gang"), ended(pod("b", job="gang"), ExitCode.PREFLIGHT)]
        (step,) = steps(
            [node("n"), node("a"), node("b")],
            pods=[failed, *others],
            jobs=[job("gang", 3, phase="Running")],
        )

        assert isinstance(step, Mark)
        assert (step.node, step.unschedulable) == ("n", True)
        assert step.annotations[kubernetes.UNFIT_SINCE] == stamp(NOW)

    def test_node_that_failed_preflight_is_replaced_for_any_waiting_job(
        self,
    ) -> None:
        """Its pod is already gone: Volcano has restarted the job."""
        for gang in (job("gang", 2), job("gang", 2, scale="true")):
            assert replaced([unfit("n"), node("a")], jobs=[gang]) == {"n": True}
        # A pod placed there before the cordon does not uncordon it.
        assert steps([unfit("n")], pods=[pod("n")]) == ()

    def test_node_that_failed_preflight_is_not_replaced_without_waiting_job(self) -> None:
        failed = job("gang", 2, phase="Failed")
        dropped = job("gang", 2, nodes_dropped="nodes failed")
        elsewhere = job("gang", 2)

        assert replaced([unfit("n")]) == {"n": False}
        assert replaced([unfit("n"), node("a")], jobs=[failed]) == {"n": False}
        assert replaced([unfit("n"), node("a")], jobs=[dropped]) == {"n": False}
        assert replaced([unfit("n"), node("a"), node("b")], jobs=[elsewhere]) == {"n": False}
        assert replaced([unfit("n"), unfit("o"), node("a")], jobs=[elsewhere]) == {
            "n": True,
            "o": False,
        }

    @pytest.mark.parametrize(("nodes", "is_replaced"), [(0, False), (1, False), (2, True)])
    def test_node_that_failed_preflight_is_replaced_within_user_request(
        self, nodes: int, is_replaced: bool
    ) -> None:
        kept = replace(RULES, idle=None)
        request = NodeRequest(id="1", nodes=nodes, since=NOW - timedelta(hours=9))
        asked = {"request": request, "rules": kept}

        assert replaced([unfit("n")], **asked) == {"n": False}
        gang = job("gang", 2)
        assert replaced([unfit("n"), node("a")], jobs=[gang], **asked) == {"n": is_replaced}

    def test_new_node_is_not_confused_with_failed_one_of_same_name(self) -> None:
        """Volcano keeps the failed pods of a job's last attempt."""
        young = node("n", idle=ago(minutes=1))
        young["metadata"]["creationTimestamp"] = ago(minutes=1)
        failed = ended(pod("n", job="gang", phase="Failed"), ExitCode.UNFIT_HOST)
        failed["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = ago(hours=1)

        assert steps([young], pods=[failed]) == ()

    def test_is_replaced_after_removal(self) -> None:
        gang = job("gang", 2, scale="true")

        assert raised([node("a"), node("n", chips=15)], jobs=[gang]) is None
        assert raised([node("a")], jobs=[gang]) == 2

    def test_busy_node_is_kept(self) -> None:
        assert steps([node("n", chips=15, unusable=None)], pods=[pod("n")]) == ()

    def test_recovered_node_is_kept(self) -> None:
        (step,) = steps([node("n", unusable=ago(minutes=9))], jobs=[job("gang", 1)])

        assert isinstance(step, Mark)
        assert step.annotations == {kubernetes.UNUSABLE_SINCE: None}

    def test_node_with_pod_past_grace_period_is_unusable(self) -> None:
        """The kubelet does not respond: the pod, and so the gang, waits for the node's removal."""
        stuck = pod("n", job="gang")
        stuck["metadata"]["deletionTimestamp"] = ago(seconds=61)
        gang = job("gang", 1, phase="Restarting", scale="true")
        (step,) = steps([node("n", ready="Unknown")], pods=[stuck], jobs=[gang])

        assert isinstance(step, Mark)
        assert kubernetes.UNUSABLE_SINCE in step.annotations
        due = node("n", unusable=ago(minutes=11), cordoned=ago(minutes=1))
        assert removed([due], pods=[stuck], jobs=[gang]) == ["n"]


class TestWaitLimit:
    """Nodes held or added for a gang that does not start."""

    def test_starts_with_first_idle_node(self) -> None:
        gang = job("gang", 2, scale="true")

        assert notes([node("a")], jobs=[gang]) == {"gang": {kubernetes.HELD_SINCE: stamp(NOW)}}
        assert notes(jobs=[gang]) == {}

    def test_ends_wait_after_an_hour(self) -> None:
        gang = job("gang", 2, scale="true", nodes_held_since=ago(minutes=61))
        said = notes([node("a")], jobs=[gang])["gang"][kubernetes.DROPPED]

        assert said == "nodes were held for it for 60 minutes, but it did not start"
        # In one patch: if it fails, the timer is not reset either.
        found = [step for step in decided([node("a")], jobs=[gang]).steps if isinstance(step, Note)]
        assert len(found) == 1
        assert found[0].annotations[kubernetes.HELD_SINCE] is None

        dropped = job("gang", 2, scale="true", nodes_dropped="said before")
        assert removed([due("a")], jobs=[dropped]) == ["a"]
        assert raised(jobs=[dropped]) is None

    def test_is_paused_while_other_runs_use_nodes(self) -> None:
        jobs = [job("a", 2, phase="Running"), job("gang", 3)]
        running = [pod("n"), pod("m")]

        assert notes([node("n"), node("m"), node("o")], pods=running, jobs=jobs) == {}

    def test_unsatisfiable_wait_holds_no_nodes(self) -> None:
        jobs = [job("a", 2, phase="Running"), job("gang", 3)]
        running = [pod("n"), pod("m")]

        assert removed([node("n"), node("m"), due("o")], pods=running, jobs=jobs) == ["o"]

    def test_is_cleared_once_gang_runs(self) -> None:
        gang = job("gang", 1, phase="Running", nodes_dropped="said before",
                   nodes_held_since=ago(minutes=5))  # fmt: skip
        found = notes([node("n")], pods=[pod("n", job="gang")], jobs=[gang])

        assert found == {"gang": {kubernetes.DROPPED: None, kubernetes.HELD_SINCE: None}}

    def test_first_failed_node_is_replaced_and_second_ends_request(self) -> None:
        lost = {"i-lost": NOW - timedelta(minutes=21)}
        first = notes(jobs=[job("gang", 1, scale="true")], desired=1, unregistered=lost)
        assert first == {"gang": {kubernetes.FAILED_NODES: stamp(NOW), kubernetes.DROPPED: None}}

        again = job("gang", 1, scale="true", failed_nodes=ago(minutes=30))
        second = notes(jobs=[again], desired=1, unregistered=lost)
        assert second["gang"][kubernetes.DROPPED] == (
            "nodes failed 2 times, last: instance i-lost did not join the cluster within 20 minutes"
        )

    @pytest.mark.parametrize(("age", "failures"), [(15, 1), (60, 0)])
    def test_node_that_broke_after_use_is_not_a_failed_launch(
        self, age: float, failures: int
    ) -> None:
        broken = node("n", chips=15, unusable=ago(minutes=11), cordoned=ago(seconds=5))
        broken["metadata"]["creationTimestamp"] = ago(minutes=11 + age)
        gang = job("gang", 1, scale="true")

        assert len(notes([broken], jobs=[gang])) == failures

    def test_instance_launched_before_last_failure_is_not_a_second_one(self) -> None:
        lost = {"i-lost": NOW - timedelta(minutes=21)}
        gang = job("gang", 1, scale="true", failed_nodes=ago(minutes=1))

        assert notes(jobs=[gang], desired=1, unregistered=lost) == {}


class TestUserRequest:
    """`jobs scale --nodes N`."""

    def ask(self, nodes: int, minutes_ago: float | None = 0, **more: Any) -> NodeRequest:
        since = None if minutes_ago is None else NOW - timedelta(minutes=minutes_ago)
        return NodeRequest(id="r", nodes=nodes, since=since, **more)

    def test_adds_nodes(self) -> None:
        assert raised(request=self.ask(2)) == 2
        assert raised([node("a")], pods=[pod("a")], request=self.ask(2)) == 2
        assert raised(request=self.ask(9)) == 4

    def test_expires_after_idle_timeout(self) -> None:
        assert raised(request=self.ask(2, 31)) is None

    def test_restarts_idle_time(self) -> None:
        (step,) = steps([due("a")], request=self.ask(1, 1))

        assert isinstance(step, Mark)
        assert step.annotations[kubernetes.IDLE_SINCE] == ago(minutes=1)
        assert step.unschedulable is False

    def test_scale_down_removes_only_idle_nodes_immediately(self) -> None:
        nodes = [node("a"), node("b", idle=ago(minutes=1)), node("c", idle=ago(minutes=2))]
        found = steps(nodes, pods=[pod("a")], request=self.ask(1, 0.5))

        assert {step.node for step in found if isinstance(step, Mark)} == {"b", "c"}
        assert all(isinstance(step, Mark) and step.unschedulable for step in found)

    def test_scale_down_cordons_unmarked_node_immediately(self) -> None:
        (step,) = steps([node("a")], request=self.ask(0))

        assert isinstance(step, Mark)
        assert step.unschedulable is True

    def test_scale_down_keeps_node_of_later_job(self) -> None:
        assert steps([node("a", idle=ago(minutes=2))], request=self.ask(0, 20)) == ()

    def test_scale_down_removes_unusable_and_cordoned_nodes(self) -> None:
        nodes = [
            node("a", ready="False", unusable=ago(minutes=2), cordoned=ago(minutes=1)),
            node("b", unschedulable=True, idle=ago(minutes=2)),
        ]

        assert removed(nodes, request=self.ask(0, 1)) == ["a", "b"]

    def test_scale_down_cancels_undelivered_instances(self) -> None:
        found = steps([node("a")], pods=[pod("a")], desired=4, request=self.ask(1))

        assert found == (ScaleDown(number=1),)

    def test_scale_down_overrides_job_without_scale(self) -> None:
        gang = job("gang", 2)

        assert removed([due("a")], jobs=[gang], request=self.ask(0, 0)) == ["a"]
        assert removed([due("a")], jobs=[gang]) == []

    def test_does_not_override_scaling_job(self) -> None:
        assert raised(jobs=[job("gang", 2, scale="true")], request=self.ask(0)) == 2

    def test_is_dropped_after_two_failures(self) -> None:
        lost = {"i-lost": NOW - timedelta(minutes=21)}
        request = self.ask(1, 29, failed_nodes=(NOW - timedelta(minutes=25),))
        (answer,) = (step for step in decided(request=request, desired=1, unregistered=lost).steps
                     if isinstance(step, Answer))  # fmt: skip

        assert answer.request.dropped is not None
        assert raised(request=answer.request) is None

    def test_request_for_zero_nodes_cannot_fail(self) -> None:
        """This includes a user's request in zones other than the first, which is for zero nodes."""
        lost = {"i-lost": NOW - timedelta(minutes=21)}
        request = self.ask(0, 29, failed_nodes=(NOW - timedelta(minutes=25),))
        found = decided(request=request, desired=1, unregistered=lost).steps

        assert not [step for step in found if isinstance(step, Answer)]

    def test_is_permanent_without_idle_timeout(self) -> None:
        stay = replace(RULES, idle=None)
        old = self.ask(1, 10_000)

        assert raised(request=old, rules=stay) == 1
        assert removed([due("a"), due("b")], request=old, rules=stay) == []
        assert steps([node("a", idle=ago(minutes=999))], rules=stay) == ()


def test_unneeded_undelivered_instances_are_cancelled_after_idle_timeout() -> None:
    assert decided(desired=2).surplus == 2
    since = NOW - timedelta(minutes=29)
    assert steps(desired=2, surplus_since=since) == ()
    assert steps(desired=2, surplus_since=since - timedelta(minutes=1)) == (ScaleDown(number=0),)


class TestGroupUpdatedByEks:
    """A group whose nodes an update is replacing."""

    def test_no_node_is_removed(self) -> None:
        assert removed([due("n")]) == ["n"]
        assert removed([due("n")], changing=True) == []

    def test_nodes_cordoned_by_update_are_not_replaced(self) -> None:
        gang = job("gang", 2, scale="true")
        old = [node(name, unschedulable=True, idle=ago(minutes=11)) for name in ("a", "b")]

        assert raised(old, jobs=[gang]) == 4
        assert raised(old, jobs=[gang], changing=True) is None

    def test_nodes_are_uncordoned_for_job(self) -> None:
        (step,) = steps([due("n")], jobs=[job("gang", 1)], changing=True)

        assert isinstance(step, Mark)
        assert step.unschedulable is False

    def test_summary_reports_pause(self) -> None:
        assert decided(changing=True).summary.endswith("paused while EKS updates the group")


def test_longest_idle_nodes_are_removed_first() -> None:
    nodes = [due("a"), node("b", idle=ago(minutes=50), cordoned=ago(seconds=30))]

    assert removed(nodes, jobs=[job("gang", 1)]) == ["b"]


def test_summary_shows_next_removal() -> None:
    idle = node("b", idle=ago(minutes=10))
    summary = decided([node("a"), idle], pods=[pod("a")], jobs=[]).summary

    assert summary == (
        "2 of at most 4 nodes are desired: 1 in use, 0 held for waiting jobs, 1 idle, the first "
        "will be removed at 2026-05-01T12:20:00Z"
    )
