"""Random faults of nodes and capacity in the emulated cluster, while the node scaler runs.

``python -m tests.node_scaler.test_cluster_schedules 0 500 4`` (PYTHONPATH=.:constructs:emulators)
runs 500 schedules, four at a time, each in its own cluster. The API, Volcano, the kubelets and the
Auto Scaling group are those of the rehearsal, the scaler uses HTTP, and ten minutes of its rules
take a second.
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
from unittest.mock import patch

import pytest

from node_scaler.cluster import ClusterClient
from node_scaler.model import Group, Rules
from node_scaler.rounds import Scaler
from tests.emulators import broken_nodes
from tests.emulators.volcano_jobs import BASE, job
from tests.support.limits import scaled
from trainium_catalogue import node_use
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
KILL_S = 2.0
"""Instead of 60 seconds after the grace period, which are a hundred minutes here."""
SLACK = timedelta(seconds=6)
"""Allowance for Volcano's sessions, timestamps in whole seconds and a busy machine."""
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
    """A node's time since its last user."""

    since: datetime
    spent: timedelta = timedelta(0)
    new_jobs: set[str] = field(default_factory=set)
    """Jobs submitted during that time."""
    requests: set[str | None] = field(default_factory=set)
    """Users' requests in force during that time."""

    @property
    def limit(self) -> timedelta:
        """Hold and idle timeouts once for all waiting jobs, and again for each newly submitted one;
        each user request adds an idle timeout.
        """
        assert RULES.idle is not None
        kept = (1 + len(self.new_jobs)) * (RULES.hold + RULES.idle)
        return kept + len(self.requests) * RULES.idle + SLACK


@dataclass(slots=True)
class ManagedNodeGroup:
    """The Auto Scaling group as seen and changed by the scaler."""

    world: Disturbed

    def read(self) -> Group:
        behind = self.world.group
        return Group(
            name="eks", desired=behind.desired, max_size=MOST, instances=behind.instances()
        )

    def resize(self, group: Group, number: int) -> None:
        assert self.world.group.desired < number <= MOST
        self.world.group.set_desired(number)

    def lower(self, group: Group, number: int) -> int:
        size = max(number, len(self.world.group.instances()))
        self.world.group.set_desired(min(size, self.world.group.desired))
        return size

    def terminate(self, instance: str, *, is_replaced: bool = False) -> None:
        self.world.check_unused(instance)
        self.world.group.terminate(instance, decrement=not is_replaced)


@dataclass(slots=True)
class Disturbed:
    """A cluster with random faults."""

    seed: int
    credentials: Path
    violations: list[str] = field(default_factory=list)
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
        """Replace the scaler with a new process without state."""
        self._scaler = Scaler(
            cluster=ClusterClient(self.cluster.endpoint, self.credentials),
            node_groups={"": ManagedNodeGroup(self)},  # type: ignore[dict-item]
            namespace=NAMESPACE,
            rules=RULES,
            say=lambda text: self._say(f"scaler: {text}"),
        )

    def run(self) -> None:
        """Inject faults, then wait until all jobs have ended."""
        begin = time.monotonic()
        while (since := time.monotonic() - begin) < DISTURBED_S + CALM_S:
            if since < DISTURBED_S:
                with suppress(errors.ApiError):  # its target is gone
                    self._something_happens()
            else:
                self._plant(CapacityFaults(launch_s=120, join_s=120))
                self._release()
                if self._is_over():
                    break
            self._evict()
            self._measure()
            if self._random.random() < 0.9:
                self._scaler.reconcile(datetime.now(UTC))
            time.sleep(_TICK_S)
        self._check_end()
        self.cluster.stop()

    def _say(self, text: str) -> None:
        self.log.append(f"{datetime.now(UTC):%H:%M:%S.%f} {text}")

    def _plant(self, faults: CapacityFaults) -> None:
        self.group.plant(faults)

    # --- faults ----------------------------------------------------------------------------------
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
            broken_nodes.set_ready(self.cluster.store, name, "True")
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
        made = job(
            name,
            ["sleep", str(seconds)],
            nodes=size,
            resources=resources,
            terminationGracePeriodSeconds=1,
        )
        made["metadata"]["annotations"] = {SCALE: "true"} if scales else {}
        self.cluster.apply(made)
        self._created[name] = datetime.now(UTC)
        self._happened(f"{name} needs {size} nodes{', and adds them' if scales else ''}", "submit")

    def _ask(self, number: int) -> None:
        self._count += 1
        self._request = f"request-{self._count}"
        data = {"nodes": str(number), "id": self._request}
        self.cluster.store.update(
            CONFIG_MAP, NAMESPACE, NODE_REQUEST, lambda entry: {**entry, "data": data}
        )
        self._happened(f"a user requests {number} nodes", "ask")

    def _break(self, node: Json, kind: str) -> None:
        name, store = node["metadata"]["name"], self.cluster.store
        self._happened(f"{name}: {kind}", kind)
        if kind in ("silent", "not ready"):
            broken_nodes.set_ready(store, name, "Unknown" if kind == "silent" else "False")
            self._silent[name] = time.monotonic()
        elif kind == "chip":
            broken_nodes.lose_chips(store, name)
            nodes.evict(store, name)  # its runtime fails
        elif kind == "cordon":
            store.update(NODE, "", name, lambda entry: entry["spec"].update(unschedulable=True))
        elif kind == "stuck":
            broken_nodes.hold_pods(store, name)
            nodes.evict(store, name)
        else:
            self.group.terminate(nodes.instance_of(node), decrement=False)

    def _evict(self) -> None:
        """Evict the pods of silent nodes; forget deleted nodes."""
        there = {node["metadata"]["name"] for node in self.cluster.store.list(NODE)}
        for name, since in list(self._silent.items()):
            if name not in there:
                del self._silent[name]
            elif time.monotonic() - since > _EVICTED_AFTER_S:
                nodes.evict(self.cluster.store, name)

    def _release(self) -> None:
        """Let kubelets terminate pods again: otherwise pods on such a node would never end."""
        for node in self.cluster.store.list(NODE):
            if nodes.STUCK in (node["metadata"].get("annotations") or {}):
                broken_nodes.hold_pods(self.cluster.store, node["metadata"]["name"], held=False)

    def _happened(self, text: str, kind: str) -> None:
        self._say(text)
        self.happened[kind] += 1

    # --- invariants ------------------------------------------------------------------------------
    def _jobs(self) -> list[Json]:
        return self.cluster.store.list(VOLCANO_JOB)

    def _users(self, name: str) -> list[Json]:
        """Return the active pods on a node."""
        found = self.cluster.store.list(POD, fields=f"spec.nodeName={name}")
        return [pod for pod in found if is_alive(pod)]

    def check_unused(self, instance: str) -> None:
        """Record an error if a node about to be terminated has a running pod."""
        for node in self.cluster.store.list(NODE):
            name = node["metadata"]["name"]
            if nodes.instance_of(node) != instance or name in self._silent:
                continue
            running = [p for p in self._users(name) if "deletionTimestamp" not in p["metadata"]]
            if running and is_ready(node):
                of = running[0]["metadata"]["annotations"][JOB_NAME]
                self.violations.append(f"{name} was ended under {of}")
            if not is_cordoned(node):
                self.violations.append(f"{name} was ended without a cordon")

    def _measure(self) -> None:
        """Measure how long each node has been idle, and compare with its limit."""
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
                self.violations.append(f"{node['metadata']['name']} is idle for {idle.spent}")

    def _unserved(self) -> list[str]:
        """Return gangs that requested nodes and neither ran nor got a reason."""
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
        self.violations += [f"{each} waits forever and requests nodes" for each in self._unserved()]
        left = len(self.group.instances())
        if left or self.group.desired:
            self.violations.append(f"{left} nodes are left, {self.group.desired} are desired")


def _phase(entry: Json) -> str:
    return str(entry.get("status", {}).get("state", {}).get("phase", "Pending"))


def lived(seed: int) -> tuple[list[str], Counter[str], list[str]]:
    """Run one schedule; return errors, fault counts and the log."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "token").write_text("scaler")
        # The nodes log to standard output.
        with redirect_stdout(io.StringIO()), patch.object(node_use, "KILL_S", KILL_S):
            world = Disturbed(seed, Path(folder))
            world.run()
        return world.violations, world.happened, world.log


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in (1, 2))]
)
def test_gangs_run_or_get_reason_and_no_node_is_left(seed: int) -> None:
    violations, happened, log = lived(seed)

    assert not violations, "\n".join((*log, *violations))
    assert happened


_FIRST_ATTEMPT = """
test "$TRAINIUM_ATTEMPT" != 0 && exit 0
test "$TRAINIUM_NODE_INDEX" = 1 && exit 71
exec sleep 600
"""
"""The launchers' behavior on two nodes, where the second has an unfit host."""


def test_retry_avoids_node_with_unfit_host(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("scaler")
    world = Disturbed(250, tmp_path)
    store = world.cluster.store
    world.group.set_desired(2)  # the gang does not request nodes itself
    gang = job("gang", ["sh", "-c", _FIRST_ATTEMPT], resources={"limits": pod_resources(TYPE)})
    world.cluster.apply(gang)
    placed: dict[str, set[str]] = {}
    deadline = time.monotonic() + scaled(60)
    completed = False
    while not completed:
        assert time.monotonic() < deadline, "\n".join(world.log)
        # Checked first: the pods of a completed job remain, and are seen once more.
        completed = _phase(store.get(VOLCANO_JOB, NAMESPACE, "gang")) == "Completed"
        # By instance: a replacement node may get the name of its predecessor.
        there = {node["metadata"]["name"]: nodes.instance_of(node) for node in store.list(NODE)}
        for pod in store.list(POD, NAMESPACE):
            if instance := there.get(pod["spec"].get("nodeName", "")):
                placed.setdefault(pod["metadata"]["name"], set()).add(instance)
        world._scaler.reconcile(datetime.now(UTC))
        time.sleep(_TICK_S)

    assert store.get(VOLCANO_JOB, NAMESPACE, "gang")["status"]["retryCount"] == 1
    assert any("has a host that a job found unfit" in line for line in world.log)
    assert world.group.desired == 2
    assert len(set.union(*placed.values())) == 3, "the unfit host, the other one, and a new one"
    world.cluster.stop()


if __name__ == "__main__":
    everything: Counter[str] = Counter()
    num_failed = 0
    seeds = range(int(sys.argv[1]), int(sys.argv[2]))
    with ProcessPoolExecutor(int(sys.argv[3])) as pool:
        for seed, (violations, happened, log) in zip(seeds, pool.map(lived, seeds), strict=True):
            everything += happened
            if violations:
                num_failed += 1
                print("\n".join((*log, f"seed {seed}", *violations)), flush=True)
    print(f"{len(seeds)} schedules, {num_failed} end wrong; {dict(everything)}")
    sys.exit(bool(num_failed))
