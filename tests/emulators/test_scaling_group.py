"""An Auto Scaling group on a simulated clock, with capacity faults."""

from __future__ import annotations

import pytest

from trainium_catalogue.instances import find_instance_type
from trainium_emulators.kubernetes.admission import ADMISSIONS
from trainium_emulators.kubernetes.nodes import instance_of, members, trainium_group
from trainium_emulators.kubernetes.resources import NAMESPACE, POD
from trainium_emulators.kubernetes.scaling_group import (
    IN_SERVICE,
    PENDING,
    RETRY_S,
    TERMINATING,
    CapacityFaults,
    ScalingGroup,
)
from trainium_emulators.kubernetes.store import Store


class Trial:
    """A group with its own store."""

    def __init__(self) -> None:
        self.now = 0.0
        self.store = Store(ADMISSIONS)
        made = trainium_group("nodes", find_instance_type("trn1.32xlarge"))
        self.group = ScalingGroup(self.store, made, clock=lambda: self.now)

    def states(self) -> list[str]:
        return sorted(self.group.instances().values())

    def joined(self) -> set[str]:
        self.group.advance()
        return {instance_of(node) for node in members(self.store, "nodes")}


@pytest.fixture
def trial() -> Trial:
    return Trial()


def test_without_faults_instances_join_immediately(trial: Trial) -> None:
    trial.group.set_desired(2)

    assert trial.joined() == set(trial.group.instances())
    assert trial.states() == [IN_SERVICE, IN_SERVICE]
    assert trial.group.failure() == ""


def test_group_fills_partially_and_retries_after_interval(trial: Trial) -> None:
    trial.group.plant(CapacityFaults(available=2))
    trial.group.set_desired(4)

    assert len(trial.joined()) == 2
    assert "InsufficientInstanceCapacity" in trial.group.failure()
    assert trial.group.desired == 4

    trial.group.plant(CapacityFaults(available=3))
    assert len(trial.joined()) == 2  # it does not retry immediately
    trial.now += RETRY_S
    assert len(trial.joined()) == 3
    trial.group.plant(CapacityFaults())
    trial.now += RETRY_S
    assert len(trial.joined()) == 4
    assert trial.group.failure() == ""


def test_every_failed_attempt_is_activity(trial: Trial) -> None:
    trial.group.plant(CapacityFaults(available=0))
    trial.group.set_desired(1)
    trial.now += RETRY_S
    trial.group.advance()

    assert [each.started_at for each in trial.group.activities] == [RETRY_S, 0.0]
    assert trial.states() == []


def test_reduced_size_stops_failures(trial: Trial) -> None:
    trial.group.plant(CapacityFaults(available=1))
    trial.group.set_desired(2)
    trial.group.set_desired(1)

    assert trial.group.failure() == ""
    assert len(trial.joined()) == 1


def test_instance_start_and_join_are_delayed(trial: Trial) -> None:
    trial.group.plant(CapacityFaults(launch_s=60, join_s=120))
    trial.group.set_desired(1)
    assert (trial.states(), trial.joined()) == ([PENDING], set())
    trial.now = 60
    assert (trial.states(), trial.joined()) == ([IN_SERVICE], set())
    trial.now = 180
    assert trial.joined() == set(trial.group.instances())


def test_planted_instances_never_join_but_replacements_do(trial: Trial) -> None:
    trial.group.plant(CapacityFaults(never_join=1))
    trial.group.set_desired(2)
    trial.now = 1e6
    (lost,) = set(trial.group.instances()) - trial.joined()
    assert trial.group.instances()[lost] == IN_SERVICE

    trial.group.terminate(lost, decrement=False)
    assert len(trial.joined()) == 2


def test_terminating_instance_occupies_capacity(
    trial: Trial,
) -> None:
    trial.group.plant(CapacityFaults(available=1, terminate_s=90))
    trial.group.set_desired(1)
    (first,) = trial.group.instances()
    trial.group.terminate(first, decrement=False)

    assert trial.group.instances() == {first: TERMINATING}
    assert trial.joined() == {first}
    trial.now = 90
    assert first not in trial.group.instances()
    assert len(trial.joined()) == 1


def test_termination_that_decrements_is_not_replaced(trial: Trial) -> None:
    trial.group.set_desired(2)
    first, second = trial.group.instances()
    trial.group.terminate(first, decrement=True)

    assert (trial.group.desired, list(trial.group.instances())) == (1, [second])


def test_smaller_group_loses_busy_nodes_first(trial: Trial) -> None:
    trial.group.set_desired(2)
    trial.store.create(NAMESPACE, "", {"metadata": {"name": "default"}})
    containers = [{"name": "x", "command": ["true"]}]
    pod = {"metadata": {"name": "busy"}, "spec": {"nodeName": "nodes-1", "containers": containers}}
    trial.store.create(POD, "default", pod)

    trial.group.set_desired(1)

    assert [node["metadata"]["name"] for node in members(trial.store, "nodes")] == ["nodes-0"]
