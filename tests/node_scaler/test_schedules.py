"""Random faults of nodes and capacity against the node scaler's rounds, in virtual time.

``python -m tests.node_scaler.test_schedules 0 500`` (with PYTHONPATH=.:constructs) runs that many
schedules, and prints the log of the first that ends wrong.
"""

from __future__ import annotations

import sys

import pytest

from node_scaler import plan
from tests.node_scaler.world import World
from trainium_catalogue.kubernetes import DROPPED


def lived(seed: int) -> World:
    """A world after six hours of faults and fourteen without."""
    world = World(seed)
    world.run(6, calm_hours=14)
    world.check_end()
    return world


def check(seeds: range) -> None:
    for seed in seeds:
        world = lived(seed)
        assert not world.wrong, f"seed {seed}: {world.wrong[:3]}"


def test_gangs_run_or_are_told_why_not_and_no_node_is_idle_for_ever() -> None:
    check(range(8))


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_many_schedules() -> None:
    check(range(100, 200))


class TestTheJudge:
    """What a worse scaler would do is noticed."""

    def test_nodes_held_without_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(plan, "_hold_note", lambda *_: None)

        assert any("is idle for" in wrong for wrong in worst_of(4))

    def test_a_node_that_is_ended_without_a_look_at_its_pods(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(plan, "pods_of_nodes", lambda pods, now: {})

        assert any("was ended under gang" in wrong for wrong in worst_of(3))

    def test_failed_nodes_that_are_bought_again_and_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The number bought in all is what the limit keeps down."""
        limited = sum(unlucky(seed).num_bought for seed in range(3))
        monkeypatch.setattr(plan, "MAX_FAILED_NODES", 1000)

        assert sum(unlucky(seed).num_bought for seed in range(3)) > 2 * limited


def worst_of(seeds: int) -> list[str]:
    return [wrong for seed in range(seeds) for wrong in lived(seed).wrong]


@pytest.mark.parametrize("kind", ["silent", "device", "cordon", "reclaimed"])
def test_a_gang_gets_another_node_for_one_that_breaks_while_it_waits(kind: str) -> None:
    world = World(0, disturbed=False)
    world.join_chance = 1.0
    world.ask(2)
    world.run(0, calm_hours=0.3)
    world.break_node(next(iter(world.instances.values())), kind)
    world.submit(size=2, scales=True)
    world.run(0, calm_hours=4)
    (gang,) = world.gangs.values()

    assert gang.phase == "Completed"
    assert world.num_bought == 3
    assert (world.desired, len(world.instances)) == (0, 0)


def unlucky(seed: int) -> World:
    """A world in which no instance ever becomes a usable node, and one gang waits."""
    world = World(seed)
    world.join_chance = 0.0
    world.submit(size=2, scales=True)
    world.run(0, calm_hours=12)
    return world


def test_a_gang_whose_nodes_never_join_is_dropped_with_the_reason() -> None:
    world = unlucky(1)
    (gang,) = world.gangs.values()

    assert "nodes have failed 2 times, the last: instance i-" in gang.annotations[DROPPED]
    assert "has not joined the cluster within 20 minutes" in gang.annotations[DROPPED]
    assert world.num_bought == 4
    assert (world.desired, len(world.instances)) == (0, 0)


def test_a_gang_of_which_half_the_nodes_come_holds_them_for_an_hour() -> None:
    world = World(3, disturbed=False)
    world.capacity = 2
    world.submit(size=4, scales=True)
    world.run(12, calm_hours=0)
    (gang,) = world.gangs.values()

    assert gang.annotations[DROPPED].startswith("nodes were held for it for 60 minutes")
    assert world.num_bought == 2
    assert (world.desired, len(world.instances)) == (0, 0)


if __name__ == "__main__":
    for each in range(int(sys.argv[1]), int(sys.argv[2])):
        found = lived(each)
        if found.wrong:
            sys.exit("\n".join((*found.log, f"seed {each}", *found.wrong)))
    print(f"{int(sys.argv[2]) - int(sys.argv[1])} schedules, none ends wrong")
