"""Gangs in two zones of the emulated cluster with Auto Scaling groups, on a simulated clock."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

from node_scaler.cluster import ClusterClient
from node_scaler.group import ManagedNodeGroup
from node_scaler.rounds import Scaler
from tests.emulators.volcano_jobs import job, serving, state
from tests.node_scaler.rules import RULES, TYPE, create_node_groups
from tests.support.limits import scaled
from trainium_catalogue import kubernetes
from trainium_catalogue.contract import ZONE_PATIENCE_MINUTES
from trainium_catalogue.exit_codes import ExitCode
from trainium_emulators.aws.cloudformation import eks_nodes
from trainium_emulators.aws.cloudformation.eks_cluster import CLUSTER
from trainium_emulators.kubernetes import ClusterEmulator
from trainium_emulators.kubernetes.nodes import trainium_group
from trainium_emulators.kubernetes.resources import COMMAND, EVENT, NODE, POD, QUEUE, VOLCANO_JOB
from trainium_emulators.kubernetes.scaling_group import CapacityFaults

Json = dict[str, Any]
FIRST, SECOND = "usw2-az4", "usw2-az1"
MOST = 4
PATIENCE = timedelta(minutes=ZONE_PATIENCE_MINUTES)
MOMENT = timedelta(seconds=30)
"""Longer than the cordon of a node before removal."""


class Killed(BaseException):
    """Ends the scaler's process."""


class MortalClient(ClusterClient):
    """A client that dies instead of sending the change with this number, counted from 0."""

    dies_at: int | None = None
    num_changes = 0

    def patch(self, path: str, changes: Json) -> None:
        if self.num_changes == self.dies_at:
            raise Killed
        self.num_changes += 1
        super().patch(path, changes)


@dataclass
class World:
    """A cluster with a node group in each of two zones, and the scaler."""

    emulator: ClusterEmulator
    groups: dict[str, ManagedNodeGroup]
    credentials: Path
    skipped: timedelta = timedelta(0)
    log: list[str] = field(default_factory=list)
    placed: dict[str, set[str]] = field(default_factory=dict)
    """Zones used by the pods of each gang."""

    def __post_init__(self) -> None:
        for zone in self.groups:
            self.behind(zone).clock = lambda: time.monotonic() + self.skipped.total_seconds()
        self.start_scaler()

    def start_scaler(self) -> MortalClient:
        client = MortalClient(self.emulator.endpoint, self.credentials)
        self.scaler = Scaler(
            cluster=client,
            node_groups=self.groups,
            namespace=kubernetes.NAMESPACE,
            rules=RULES,
            say=self.log.append,
        )
        return client

    def behind(self, zone: str) -> Any:
        return self.emulator.scaling_group(trainium_group(self.groups[zone].name, TYPE))

    def has(self, zone: str, number: int | None) -> None:
        """Give EC2 this many instances in a zone; failed launches are retried immediately."""
        self.behind(zone).plant(CapacityFaults(available=number))
        self.behind(zone)._failed_at = None

    def submit(
        self, name: str, *, script: str = "sleep 1", notes: Mapping[str, str] | None = None
    ) -> None:
        """Submit a gang of two nodes that requests them."""
        made = job(
            name,
            ["sh", "-c", script],
            nodes=2,
            resources={"limits": kubernetes.pod_resources(TYPE)},
            nodeSelector={kubernetes.LABEL_RUN: name},
        )
        made["metadata"]["annotations"] = {kubernetes.SCALE: "true", **(notes or {})}
        self.emulator.apply(made)
        self.round()

    def stop(self, name: str) -> None:
        """Make Volcano terminate a gang, as `jobs stop` does."""
        target = {"apiVersion": VOLCANO_JOB.api_version, "kind": VOLCANO_JOB.kind, "name": name}
        command = {"metadata": {"generateName": "stop-"}, "target": target}
        self.emulator.store.create(
            COMMAND, kubernetes.NAMESPACE, {**command, "action": "TerminateJob"}
        )

    def skip(self, period: timedelta = MOMENT) -> None:
        """Let time pass between two rounds."""
        self.round()
        self.skipped += period
        self.round()

    def round(self) -> None:
        assert self.scaler.reconcile(datetime.now(UTC) + self.skipped) == 0, self.log
        for pod in self.emulator.store.list(POD, kubernetes.NAMESPACE):
            if name := pod["spec"].get("nodeName"):
                gang = pod["metadata"]["annotations"]["volcano.sh/job-name"]
                self.placed.setdefault(gang, set()).add(name.rpartition("-")[0])

    def until(self, name: str, *phases: str) -> None:
        """Run rounds until the gang is in one of the phases."""
        deadline = time.monotonic() + scaled(30)
        while state(self.emulator, name).get("state", {}).get("phase") not in phases:
            assert time.monotonic() < deadline, self.log
            self.round()
            time.sleep(0.05)

    def notes(self, name: str) -> dict[str, str]:
        found = self.emulator.store.get(VOLCANO_JOB, kubernetes.NAMESPACE, name)["metadata"]
        return {**found.get("annotations", {})}

    def wanted(self) -> dict[str, int]:
        return {zone: group.read().desired for zone, group in self.groups.items()}

    def given(self) -> dict[str, str]:
        """Return the runs that nodes are assigned to."""
        label = kubernetes.LABEL_RUN
        nodes = [each["metadata"] for each in self.emulator.store.list(NODE)]
        return {
            each["name"]: each["labels"][label] for each in nodes if label in each.get("labels", {})
        }

    def has_idle(self, zone: str, number: int) -> None:
        """Add nodes requested by a user in a zone."""
        self.groups[zone].resize(self.groups[zone].read(), number)
        deadline = time.monotonic() + scaled(30)
        while not any(f"{zone}: {number} of" in s and f" {number} idle" in s for s in self.log):
            assert time.monotonic() < deadline, self.log
            self.round()
            time.sleep(0.05)

    def moves(self) -> list[str]:
        return [line for line in self.log if "no capacity in" in line]


_numbers = itertools.count()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    """A world with empty groups; the first zone has no capacity."""
    (tmp_path / "token").write_text("scaler")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    eks_nodes.install()
    address = f"127.0.{110 + next(_numbers)}"
    with serving(address, count_nodes=True) as emulator, mock_aws():
        monkeypatch.setattr(CLUSTER, "_cluster", emulator)
        queue = emulator.store.get(QUEUE, "", kubernetes.QUEUE)
        emulator.apply({**queue, "spec": {"capability": {kubernetes.NEURON_RESOURCE: "64"}}})
        made = World(emulator, create_node_groups(FIRST, SECOND, desired=0), tmp_path)
        made.has(FIRST, 0)
        yield made


def test_gang_without_capacity_moves_to_next_zone_and_leaves_no_nodes(
    world: World,
) -> None:
    world.has(FIRST, 1)
    world.submit("gang")
    world.skip(PATIENCE - MOMENT)
    assert world.wanted() == {FIRST: 2, SECOND: 0}

    world.skip()
    world.skip()
    world.skip()
    assert world.wanted() == {FIRST: 0, SECOND: 2}, "the node that is not needed has gone"
    world.until("gang", "Completed")

    assert world.placed == {"gang": {SECOND}}
    assert world.notes("gang")[kubernetes.ZONE] == SECOND
    assert world.notes("gang")[kubernetes.ZONES_TRIED] == FIRST
    assert len(world.moves()) == 1
    told = [each["message"] for each in world.emulator.store.list(EVENT, kubernetes.NAMESPACE)]
    assert f"no capacity in {FIRST} for 20 minutes; moving to {SECOND}" in told
    world.round()
    assert world.given() == {}


def test_capacity_in_time_keeps_gang_in_its_zone(world: World) -> None:
    world.submit("gang")
    world.skip(PATIENCE - MOMENT)
    assert kubernetes.SHORT_SINCE in world.notes("gang")
    world.has(FIRST, 2)
    world.until("gang", "Completed")
    world.skip()

    assert world.placed == {"gang": {FIRST}}
    assert world.moves() == []
    assert not {kubernetes.ZONE, kubernetes.SHORT_SINCE} & set(world.notes("gang"))


def test_gang_tries_each_zone_once_and_stays_in_last(world: World) -> None:
    world.has(SECOND, 0)
    patience = timedelta(minutes=5)  # its own
    world.submit("gang", notes={kubernetes.ZONE_PATIENCE: "5"})
    world.skip(patience - MOMENT)
    assert world.moves() == []
    for _ in range(4):
        world.skip(patience)
    assert len(world.moves()) == 1
    assert world.wanted() == {FIRST: 0, SECOND: 2}

    world.has(SECOND, None)
    world.until("gang", "Completed")
    assert world.placed == {"gang": {SECOND}}


def test_only_gang_without_capacity_moves(world: World) -> None:
    world.has(FIRST, 2)
    world.submit("runs", script="sleep 600")
    world.until("runs", "Running")
    world.submit("waits")
    world.skip(PATIENCE)
    world.skip()
    world.until("waits", "Completed")

    assert world.placed == {"runs": {FIRST}, "waits": {SECOND}}
    assert world.wanted()[FIRST] == 2


def test_two_moving_gangs_stay_within_one_zone_and_total_limit(world: World) -> None:
    for name in ("one", "two"):
        world.submit(name)
    world.skip(PATIENCE)
    world.skip()
    assert sum(world.wanted().values()) <= MOST
    for name in ("one", "two"):
        world.until(name, "Completed")

    assert world.placed == {"one": {SECOND}, "two": {SECOND}}


def test_free_nodes_of_two_zones_are_not_combined(
    world: World,
) -> None:
    world.has(FIRST, 1)
    for zone in (FIRST, SECOND):
        world.groups[zone].resize(world.groups[zone].read(), 1)
    world.submit("gang", notes={kubernetes.SCALE: "false"})
    for _ in range(30):
        world.round()
        time.sleep(0.05)
    assert world.placed == {}
    assert world.given() == {}

    world.groups[SECOND].resize(world.groups[SECOND].read(), 2)
    world.until("gang", "Completed")
    assert world.placed == {"gang": {SECOND}}


def test_idle_nodes_of_another_zone_are_used_before_new_ones(
    world: World,
) -> None:
    world.has_idle(SECOND, 2)
    world.submit("gang")
    assert world.wanted() == {FIRST: 0, SECOND: 2}
    world.until("gang", "Completed")

    assert world.placed == {"gang": {SECOND}}
    assert not [line for line in world.log if "->" in line or "cordoned" in line]


def test_idle_nodes_of_another_zone_are_removed_early_only_if_room_is_needed(
    world: World,
) -> None:
    world.has_idle(SECOND, 1)
    world.submit("one", script="sleep 600")
    world.skip()
    assert world.wanted() == {FIRST: 2, SECOND: 1}
    world.has(FIRST, None)
    world.until("one", "Running")

    world.submit("two")
    world.skip()
    world.skip()
    assert world.wanted() == {FIRST: 4, SECOND: 0}
    world.until("two", "Completed")


def test_retry_stays_in_its_zone(world: World, tmp_path: Path) -> None:
    may_fail = tmp_path / "may-fail"
    fails = f"until [ -e {may_fail} ]; do sleep 0.1; done; exit {int(ExitCode.HOST)}"
    # No skip: afterwards, a terminating pod would be past its grace period.
    world.submit(
        "gang",
        script=f'[ "$TRAINIUM_ATTEMPT" != 0 ] || {{ {fails}; }}',
        notes={kubernetes.ZONE_PATIENCE: "0"},
    )
    world.until("gang", "Running")
    world.has(FIRST, None)
    world.has_idle(FIRST, 2)
    may_fail.touch()
    world.until("gang", "Completed")

    assert state(world.emulator, "gang")["retryCount"] == 1
    assert world.placed == {"gang": {SECOND}}


def test_compile_job_and_training_job_share_zone(world: World) -> None:
    world.submit("compiles")
    time.sleep(1.1)  # Volcano compares ages in seconds
    world.submit("gang", script="sleep 600", notes={kubernetes.AFTER: "compiles"})
    world.skip(PATIENCE)
    world.until("compiles", "Completed")
    world.until("gang", "Running")
    world.round()  # observes where its pods are

    assert world.placed == {"compiles": {SECOND}, "gang": {SECOND}}
    assert len(world.moves()) == 1


def test_gang_of_removed_zone_starts_in_remaining_one(world: World) -> None:
    world.has(SECOND, 0)
    world.submit("gang")
    world.skip(PATIENCE)
    assert len(world.moves()) == 1

    del world.groups[SECOND]
    world.start_scaler()
    world.has(FIRST, None)
    world.until("gang", "Completed")
    world.round()
    assert world.given() == {}


@pytest.mark.parametrize(
    "dies_at", [0, *(pytest.param(n, marks=pytest.mark.full) for n in range(1, 6))]
)
def test_killed_scaler_moves_gang_once(world: World, dies_at: int) -> None:
    world.has(FIRST, 1)
    world.submit("gang")
    world.skip(PATIENCE - MOMENT)
    world.skipped += MOMENT
    client = world.start_scaler()
    client.dies_at = dies_at
    with pytest.raises(Killed):
        for _ in range(4):
            world.skip()
    world.start_scaler()
    for _ in range(3):
        world.skip()
    world.until("gang", "Completed")

    assert world.placed == {"gang": {SECOND}}
    assert len(world.moves()) == 1
    assert world.wanted() == {FIRST: 0, SECOND: 2}


@pytest.mark.parametrize("ends", ["deleted", "stopped"])
def test_job_that_ends_during_move_leaves_no_node(world: World, ends: str) -> None:
    world.has(FIRST, 1)
    world.has(SECOND, 1)
    world.submit("gang")
    world.skip(PATIENCE)
    world.skip()
    assert (len(world.moves()), world.wanted()[SECOND]) == (1, 2)
    if ends == "deleted":
        world.emulator.store.delete(VOLCANO_JOB, kubernetes.NAMESPACE, "gang")
    else:
        world.stop("gang")
        world.until("gang", "Terminated")
    for _ in range(4):
        world.skip(timedelta(minutes=30))

    assert world.wanted() == {FIRST: 0, SECOND: 0}
    assert world.given() == {}
    assert world.placed == {}
