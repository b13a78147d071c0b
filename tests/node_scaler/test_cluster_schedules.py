"""Random faults of nodes and capacity in the emulated cluster, while the node scaler runs.

``python -m tests.node_scaler.test_cluster_schedules 0 500 4`` (PYTHONPATH=.:constructs:emulators)
runs that many schedules, four at a time, each in a cluster of its own. The API, Volcano, the
kubelets and the Auto Scaling group are those that the rehearsal deploys to, the scaler reads and
writes over HTTP, and ten minutes of its rules are a second.
"""

from __future__ import annotations

import io
import random
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from node_scaler.cluster import ClusterClient
from node_scaler.plan import Group, Rules
from node_scaler.rounds import Scaler
from tests.emulators.volcano_jobs import BASE, job
from trainium_catalogue.instances import find_instance_type
from trainium_catalogue.kubernetes import (
    DROPPED,
    NAMESPACE,
    NEURON_RESOURCE,
    NODE_REQUEST,
    SCALE,
    device_resources,
    pod_resources,
)
from trainium_catalogue.node_use import is_cordoned, is_ready
from trainium_emulators.kubernetes import ClusterEmulator, EmulatorSettings, errors, nodes, serve
from trainium_emulators.kubernetes.resources import CONFIG_MAP, NODE, POD, VOLCANO_JOB
from trainium_emulators.kubernetes.scaling_group import CapacityFaults, ScalingGroup
from trainium_emulators.kubernetes.volcano_objects import JOB_NAME, is_alive

Json = dict[str, Any]

CLOCK = 600
"""The default of 30 idle minutes is 3 seconds."""
TYPE = find_instance_type("trn1.32xlarge")
MOST = 4
RULES = Rules(
    idle=timedelta(minutes=30) / CLOCK,
    hold=timedelta(minutes=60) / CLOCK,
    unusable=timedelta(minutes=10) / CLOCK,
    join=timedelta(minutes=20) / CLOCK,
    cordon_time=timedelta(seconds=0.4),
    devices=device_resources(TYPE),
)
SLACK = timedelta(seconds=6)
"""Sessions of Volcano, whole seconds of timestamps, and a machine that does other things."""
DISTURBED_S, CALM_S = 12.0, 60.0
_TICK_S = 0.1
_EVICTED_AFTER_S = 0.5
_REQUEST = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": NODE_REQUEST, "namespace": NAMESPACE},
}
_OVER = ("Completed", "Failed", "Terminated", "Aborted")
_BROKEN = ("silent", "not ready", "chip", "cordon", "stuck", "reclaimed")


@dataclass(slots=True, kw_only=True)
class IdleTime:
    """A node's time without users, since the last one."""

    since: datetime
    spent: timedelta = timedelta(0)
    new_jobs: set[str] = field(default_factory=set)
    """Jobs submitted meanwhile."""
    requests: set[str | None] = field(default_factory=set)
    """Users' requests in force meanwhile."""

    @property
    def limit(self) -> timedelta:
        """Idle time, held time and idle time again, once for all jobs that wait, and once more for
        each that is submitted meanwhile; each request of a user restarts the idle time.
        """
        assert RULES.idle is not None
        kept = (1 + len(self.new_jobs)) * (RULES.hold + RULES.idle)
        return kept + len(self.requests) * RULES.idle + SLACK


@dataclass(slots=True)
class ManagedNodeGroup:
    """What the scaler sees of the Auto Scaling group, and does to it."""

    world: Disturbed

    def read(self) -> Group:
        behind = self.world.group
        return Group(name="eks", desired=behind.desired, most=MOST, instances=behind.instances())

    def resize(self, group: Group, number: int) -> None:
        assert self.world.group.desired < number <= MOST
        self.world.group.set_desired(number)

    def lower(self, group: Group, number: int) -> int:
        size = max(number, len(self.world.group.instances()))
        self.world.group.set_desired(min(size, self.world.group.desired))
        return size

    def terminate(self, instance: str) -> None:
        self.world.check_unused(instance)
        self.world.group.terminate(instance, decrement=True)


@dataclass(slots=True)
class Disturbed:
    """A cluster, and all that happens to it."""

    seed: int
    credentials: Path
    wrong: list[str] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    log: list[str] = field(default_factory=list)
    group: ScalingGroup = field(init=False)
    _idle: dict[str, IdleTime] = field(default_factory=dict)
    _created: dict[str, datetime] = field(default_factory=dict)
    _silent: dict[str, float] = field(default_factory=dict)
    _count: int = 0
    _request: str | None = None
    _random: random.Random = field(init=False)
    _scaler: Scaler = field(init=False)
    cluster: ClusterEmulator = field(init=False)

    def __post_init__(self) -> None:
        """Start the cluster."""
        self._random = random.Random(self.seed)
        address = f"127.{64 + self.seed % 64}.{self.seed // 64 % 250}"
        self.cluster = serve(EmulatorSettings(addresses=address, count_nodes=True))
        for manifest in (*BASE, _REQUEST):
            self.cluster.apply(manifest)
        self.cluster.apply({**BASE[1], "spec": {"capability": {NEURON_RESOURCE: str(16 * MOST)}}})
        self.group = ScalingGroup(
            self.cluster.store,
            nodes.trainium_group("nodes", TYPE),
            clock=lambda: time.monotonic() * CLOCK,
        )
        self._plant(CapacityFaults(launch_s=120, join_s=120))
        self.start_scaler()

    def start_scaler(self) -> None:
        """Replace the scaler's process by a new one, which knows nothing."""
        self._scaler = Scaler(
            cluster=ClusterClient(self.cluster.endpoint, self.credentials),
            node_group=ManagedNodeGroup(self),  # type: ignore[arg-type]
            namespace=NAMESPACE,
            rules=RULES,
            say=lambda text: self._say(f"scaler: {text}"),
        )

    def run(self) -> None:
        """Let things happen, and then let everything come to its end."""
        begin = time.monotonic()
        while (since := time.monotonic() - begin) < DISTURBED_S + CALM_S:
            if since < DISTURBED_S:
                with suppress(errors.ApiError):  # what it was to hit has gone
                    self._something_happens()
            else:
                self._plant(CapacityFaults(launch_s=120, join_s=120))
                self._release()
                if self._is_over():
                    break
            self._evict()
            self._measure()
            if self._random.random() < 0.9:
                self._scaler.round(datetime.now(UTC))
            time.sleep(_TICK_S)
        self._check_end()
        self.cluster.stop()

    def _say(self, text: str) -> None:
        self.log.append(f"{datetime.now(UTC):%H:%M:%S.%f} {text}")

    def _plant(self, faults: CapacityFaults) -> None:
        self.group.plant(faults)

    # --- what happens ----------------------------------------------------------------------------
    def _something_happens(self) -> None:
        chance, pick = self._random.random, self._random.choice
        if chance() < 0.05:
            self._submit(self._random.randint(1, MOST), scales=chance() < 0.7)
        if chance() < 0.03:
            self._plant(
                CapacityFaults(
                    available=self._random.randint(0, MOST),
                    launch_s=pick((30, 120, 540)),
                    join_s=pick((0, 120, 300)),
                    terminate_s=pick((0, 60)),
                    never_join=pick((0, 0, 1)),
                )
            )
            self._happened(f"EC2 has {self.group.faults.available} instances", "capacity")
        if chance() < 0.015:
            self._ask(self._random.randint(0, MOST))
        if chance() < 0.01:
            self._happened("the scaler starts again", "scaler")
            self.start_scaler()
        there = [node for node in self.cluster.store.list(NODE) if is_ready(node)]
        if there and chance() < 0.03:
            self._break(pick(there), pick(_BROKEN))
        if self._silent and chance() < 0.05:
            name = pick(sorted(self._silent))
            del self._silent[name]
            self._say(f"{name} answers again")
            nodes.set_ready(self.cluster.store, name, "True")
        waiting = [entry for entry in self._jobs() if _phase(entry) not in _OVER]
        if waiting and chance() < 0.005:
            name = pick(waiting)["metadata"]["name"]
            self._happened(f"{name} is deleted", "delete")
            self.cluster.store.delete(VOLCANO_JOB, NAMESPACE, name)

    def _submit(self, size: int, *, scales: bool) -> None:
        self._count += 1
        name = f"gang-{self._count}"
        seconds = self._random.choice((0.2, 1, 3))
        resources = {"limits": pod_resources(TYPE)}
        made = job(name, ["sleep", str(seconds)], nodes=size, resources=resources)
        made["metadata"]["annotations"] = {SCALE: "true"} if scales else {}
        self.cluster.apply(made)
        self._created[name] = datetime.now(UTC)
        self._happened(f"{name} wants {size} nodes{', and buys them' if scales else ''}", "submit")

    def _ask(self, number: int) -> None:
        self._count += 1
        self._request = f"request-{self._count}"
        data = {"nodes": str(number), "id": self._request}
        self.cluster.store.update(
            CONFIG_MAP, NAMESPACE, NODE_REQUEST, lambda entry: {**entry, "data": data}
        )
        self._happened(f"a user asks for {number} nodes", "ask")

    def _break(self, node: Json, kind: str) -> None:
        name, store = node["metadata"]["name"], self.cluster.store
        self._happened(f"{name}: {kind}", kind)
        if kind in ("silent", "not ready"):
            nodes.set_ready(store, name, "Unknown" if kind == "silent" else "False")
            self._silent[name] = time.monotonic()
        elif kind == "chip":
            nodes.lose_chips(store, name)
            nodes.evict(store, name)  # the runtime on it fails
        elif kind == "cordon":
            store.update(NODE, "", name, lambda entry: entry["spec"].update(unschedulable=True))
        elif kind == "stuck":
            nodes.hold_pods(store, name)
            nodes.evict(store, name)
        else:
            self.group.terminate(nodes.instance_of(node), decrement=False)

    def _evict(self) -> None:
        """Evict the pods of nodes that do not answer; forget nodes that have gone."""
        there = {node["metadata"]["name"] for node in self.cluster.store.list(NODE)}
        for name, since in list(self._silent.items()):
            if name not in there:
                del self._silent[name]
            elif time.monotonic() - since > _EVICTED_AFTER_S:
                nodes.evict(self.cluster.store, name)

    def _release(self) -> None:
        """Let kubelets end pods again: one that runs on such a node would never be seen to end."""
        for node in self.cluster.store.list(NODE):
            if nodes.STUCK in (node["metadata"].get("annotations") or {}):
                nodes.hold_pods(self.cluster.store, node["metadata"]["name"], held=False)

    def _happened(self, text: str, kind: str) -> None:
        self._say(text)
        self.happened[kind] += 1

    # --- what must hold --------------------------------------------------------------------------
    def _jobs(self) -> list[Json]:
        return self.cluster.store.list(VOLCANO_JOB)

    def _users(self, name: str) -> list[Json]:
        """Pods of jobs that have not ended on a node."""
        found = self.cluster.store.list(POD, fields=f"spec.nodeName={name}")
        return [pod for pod in found if is_alive(pod)]

    def check_unused(self, instance: str) -> None:
        """Note it if a node that is about to be terminated has a pod that runs."""
        for node in self.cluster.store.list(NODE):
            name = node["metadata"]["name"]
            if nodes.instance_of(node) != instance or name in self._silent:
                continue
            running = [p for p in self._users(name) if "deletionTimestamp" not in p["metadata"]]
            if running and is_ready(node):
                of = running[0]["metadata"]["annotations"][JOB_NAME]
                self.wrong.append(f"{name} was ended under {of}")
            if not is_cordoned(node):
                self.wrong.append(f"{name} was ended without a cordon")

    def _measure(self) -> None:
        """Add up how long each node has been without users, and for how long it may."""
        now = datetime.now(UTC)
        for node in self.cluster.store.list(NODE):
            name = node["metadata"]["uid"]
            if self._users(node["metadata"]["name"]):
                self._idle.pop(name, None)
                continue
            idle = self._idle.setdefault(name, IdleTime(since=now))
            idle.spent = now - idle.since
            idle.new_jobs |= {gang for gang, made in self._created.items() if made > idle.since}
            idle.requests.add(self._request)
            if idle.spent > idle.limit:
                self.wrong.append(f"{node['metadata']['name']} is idle for {idle.spent}")

    def _unserved(self) -> list[str]:
        """Gangs that asked for nodes, have not run and are not told why."""
        return [
            f"{entry['metadata']['name']} ({_phase(entry)})"
            for entry in self._jobs()
            if _phase(entry) not in _OVER
            and SCALE in (noted := entry["metadata"].get("annotations") or {})
            and DROPPED not in noted
        ]

    def _is_over(self) -> bool:
        return not (self._unserved() or self.group.desired or self.group.instances())

    def _check_end(self) -> None:
        self.wrong += [f"{each} waits for ever and asks for nodes" for each in self._unserved()]
        left = len(self.group.instances())
        if left or self.group.desired:
            self.wrong.append(f"{left} nodes are left, {self.group.desired} are wanted")


def _phase(entry: Json) -> str:
    return str(entry.get("status", {}).get("state", {}).get("phase", "Pending"))


def lived(seed: int) -> tuple[list[str], Counter[str], list[str]]:
    """Run one schedule; returns what is wrong, what happened, and the log."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "token").write_text("scaler")
        with redirect_stdout(io.StringIO()):  # the nodes tell what happens on them
            world = Disturbed(seed, Path(folder))
            world.run()
        return world.wrong, world.happened, world.log


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in (1, 2, 3))]
)
def test_gangs_run_or_are_told_why_not_and_no_node_is_left(seed: int) -> None:
    wrong, happened, log = lived(seed)

    assert not wrong, "\n".join((*log, *wrong))
    assert happened


if __name__ == "__main__":
    everything: Counter[str] = Counter()
    num_wrong = 0
    seeds = range(int(sys.argv[1]), int(sys.argv[2]))
    with ProcessPoolExecutor(int(sys.argv[3])) as pool:
        for seed, (wrong, happened, log) in zip(seeds, pool.map(lived, seeds), strict=True):
            everything += happened
            if wrong:
                num_wrong += 1
                print("\n".join((*log, f"seed {seed}", *wrong)), flush=True)
    print(f"{len(seeds)} schedules, {num_wrong} end wrong; {dict(everything)}")
    sys.exit(bool(num_wrong))
