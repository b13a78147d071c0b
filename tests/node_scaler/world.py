"""A cluster in virtual time, in which nodes break and capacity comes late, by half or never.

The node scaler's own rounds run against it; AWS, the kubelets, the controllers of Kubernetes and
Volcano are simple models of what their documentation says. Everything is decided by the seed.

- EC2 delivers instances after some minutes, as many as it has; some never join, some join without
  all their devices.
- A node stops answering, loses a device, or is cordoned by a person. Kubernetes evicts the pods of
  a node that does not answer after five minutes; they stay until the node is deleted.
- Volcano starts a gang once all its pods have a place, and restarts it as a whole after a failure.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from node_scaler.plan import IN_SERVICE, Group, Rules
from node_scaler.rounds import JOBS, NODES, PODS, REQUEST, Scaler
from tests.node_scaler.idle import IdleTime
from trainium_catalogue import kubernetes
from trainium_catalogue.node_use import is_cordoned, stamp, why_unusable

Json = dict[str, Any]

START = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
STEP = timedelta(seconds=30)
MOST = 6
DEVICES: Mapping[str, int] = {kubernetes.NEURON_RESOURCE: 16, kubernetes.EFA_RESOURCE: 8}
RULES = Rules(
    idle=timedelta(minutes=30),
    hold=timedelta(minutes=60),
    unusable=timedelta(minutes=10),
    join=timedelta(minutes=20),
    cordon_time=timedelta(seconds=20),
    devices=DEVICES,
)
_EVICTED_AFTER = timedelta(minutes=5)
_GRACE = timedelta(minutes=2)
_SLACK = timedelta(minutes=15)
_OVER = frozenset({"Completed", "Aborted"})


@dataclass(slots=True, kw_only=True)
class Gang:
    """A job that needs all its nodes at once."""

    name: str
    size: int
    created: datetime
    works_for: timedelta
    """Work left until it completes."""
    annotations: dict[str, str]
    phase: str = "Pending"


@dataclass(slots=True, kw_only=True)
class Instance:
    """An instance of the Auto Scaling group."""

    id: str
    launched: datetime
    starts_for: timedelta
    joins: bool
    devices: int
    node: Json | None = None
    answers: bool = True
    silent_since: datetime | None = None


@dataclass(slots=True)
class World:
    """The cluster, its group and its users; it is also the clients of the scaler."""

    seed: int
    now: datetime = START
    desired: int = 0
    instances: dict[str, Instance] = field(default_factory=dict)
    gangs: dict[str, Gang] = field(default_factory=dict)
    pods: list[Json] = field(default_factory=list)
    request: Json = field(default_factory=lambda: {"data": {}})
    capacity: int = MOST
    """Instances that EC2 has."""
    join_chance: float = 0.92
    disturbed: bool = True
    """False: nothing happens but what the test does."""
    changing_until: datetime = START
    log: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    idle_times: dict[str, IdleTime] = field(default_factory=dict)
    num_bought: int = 0
    num_faults: int = 0
    _random: random.Random = field(init=False)
    _scaler: Scaler = field(init=False)
    _count: int = 0

    def __post_init__(self) -> None:
        """Start the scaler."""
        self._random = random.Random(self.seed)
        self.start_scaler()

    def start_scaler(self) -> None:
        """Replace the scaler's process by a new one, which knows nothing."""
        self._scaler = Scaler(
            cluster=self,  # type: ignore[arg-type]
            node_group=self,  # type: ignore[arg-type]
            namespace=kubernetes.NAMESPACE,
            rules=RULES,
            say=lambda text: self.say(f"scaler: {text}"),
        )

    def say(self, text: str) -> None:
        """Write a line of the log."""
        self.log.append(f"{self.now:%H:%M:%S} {text}")

    # --- time ------------------------------------------------------------------------------------
    def run(self, hours: float, *, calm_hours: float) -> None:
        """Let things happen for some hours, and then let everything come to its end."""
        calm = self.now + timedelta(hours=hours)
        end = calm + timedelta(hours=calm_hours)
        while self.now < end:
            self.now += STEP
            if self.now >= calm:
                self.capacity = MOST
            elif self.disturbed:
                self._something_happens()
            self._deliver()
            self._kubelets()
            self._volcano()
            self._measure()
            if self._random.random() < 0.9:  # a round may fail as a whole
                self._scaler.round(self.now)

    def _something_happens(self) -> None:
        chance, pick = self._random.random, self._random.choice
        if chance() < 0.012:
            self.submit(size=self._random.randint(1, MOST), scales=chance() < 0.7)
        if chance() < 0.004:
            self.capacity = self._random.randint(0, MOST)
            self.say(f"EC2 has {self.capacity} instances")
        if chance() < 0.003:
            self.ask(self._random.randint(0, MOST))
        if chance() < 0.002:
            self.changing_until = self.now + timedelta(minutes=self._random.randint(1, 30))
        if chance() < 0.002:
            self.start_scaler()
        joined = [each for each in self.instances.values() if each.node is not None]
        if joined and chance() < 0.006:
            self.break_node(pick(joined), pick(["silent", "device", "cordon", "reclaimed"]))
        if joined and chance() < 0.004:
            each = pick(joined)
            if not each.answers:
                each.answers, each.silent_since = True, None
                self.say(f"{each.id} answers again")
        waiting = [gang for gang in self.gangs.values() if gang.phase not in _OVER]
        if waiting and chance() < 0.002:
            self._stop(pick(waiting))

    def ask(self, nodes: int) -> None:
        """Ask for a number of nodes, as ``jobs scale`` does."""
        self._count += 1
        self.request["data"].update(nodes=str(nodes), id=f"request-{self._count}")
        self.say(f"a user asks for {nodes} nodes")

    def submit(self, *, size: int, scales: bool) -> None:
        """Submit a gang."""
        self._count += 1
        gang = Gang(
            name=f"gang-{self._count}",
            size=size,
            created=self.now,
            works_for=timedelta(minutes=self._random.randint(1, 90)),
            annotations={kubernetes.SCALE: "true"} if scales else {},
        )
        self.gangs[gang.name] = gang
        self.say(f"{gang.name} wants {size} nodes{', and buys them' if scales else ''}")

    def _stop(self, gang: Gang) -> None:
        self.say(f"{gang.name} is stopped")
        gang.phase = "Aborted"
        self._delete_pods(gang)

    def break_node(self, instance: Instance, kind: str) -> None:
        """Break a node in one of four ways."""
        assert instance.node is not None
        self.num_faults += 1
        self.say(f"{instance.id}: {kind}")
        if kind == "silent":
            instance.answers, instance.silent_since = False, self.now
        elif kind == "device":
            instance.node["status"]["allocatable"][kubernetes.NEURON_RESOURCE] = "15"
            for gang in self._gangs_on(instance):  # the runtime on it fails
                self._fail(gang)
        elif kind == "cordon":
            instance.node["spec"]["unschedulable"] = True
        else:
            self._end(instance)  # and EC2 Auto Scaling replaces it

    # --- EC2 and EKS -----------------------------------------------------------------------------
    def _deliver(self) -> None:
        while len(self.instances) < min(self.desired, self.capacity):
            self._count += 1
            made = Instance(
                id=f"i-{self._count}",
                launched=self.now,
                starts_for=timedelta(minutes=self._random.randint(1, 9)),
                joins=self._random.random() < self.join_chance,
                devices=15 if self._random.random() < 0.06 else 16,
            )
            self.num_bought += 1
            self.instances[made.id] = made
        for each in self.instances.values():
            if each.node is None and each.joins and self.now - each.launched >= each.starts_for:
                each.node = self._joined(each)

    def _joined(self, instance: Instance) -> Json:
        allocatable = {name: str(number) for name, number in DEVICES.items()}
        if instance.devices < DEVICES[kubernetes.NEURON_RESOURCE]:
            allocatable[kubernetes.NEURON_RESOURCE] = str(instance.devices)
        return {
            "metadata": {
                "name": f"node-{instance.id}",
                "creationTimestamp": stamp(self.now),
                "annotations": {},
            },
            "spec": {"providerID": f"aws:///us-west-2d/{instance.id}"},
            "status": {
                "allocatable": allocatable,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }

    def _end(self, instance: Instance) -> None:
        """Terminate an instance: its node and the pods there go with it."""
        del self.instances[instance.id]
        self.idle_times.pop(instance.id, None)
        if instance.node is None:
            return
        name = instance.node["metadata"]["name"]
        lost = self._gangs_on(instance)
        self.pods = [pod for pod in self.pods if pod["spec"]["nodeName"] != name]
        for gang in lost:
            self._fail(gang)

    # --- Kubernetes ------------------------------------------------------------------------------
    def _kubelets(self) -> None:
        for each in self.instances.values():
            if each.node is None:
                continue
            ready = "True" if each.answers else "Unknown"
            each.node["status"]["conditions"] = [{"type": "Ready", "status": ready}]
            silent = each.silent_since
            if silent is not None and self.now - silent >= _EVICTED_AFTER:
                for gang in self._gangs_on(each):
                    self._fail(gang)
        answering = {
            each.node["metadata"]["name"]
            for each in self.instances.values()
            if each.node is not None and each.answers
        }
        # A kubelet that answers ends its pods within their grace period.
        self.pods = [
            pod
            for pod in self.pods
            if "deletionTimestamp" not in pod["metadata"]
            or pod["spec"]["nodeName"] not in answering
            or stamp(self.now) < min(pod["metadata"]["deletionTimestamp"], self._luck())
        ]

    def _luck(self) -> str:
        """Return a time before or after now, as it happens."""
        return stamp(self.now + STEP * self._random.choice([-1, 1, 1]))

    def _gangs_on(self, instance: Instance) -> list[Gang]:
        assert instance.node is not None
        name = instance.node["metadata"]["name"]
        return [
            self.gangs[pod["metadata"]["annotations"]["volcano.sh/job-name"]]
            for pod in self.pods
            if pod["spec"]["nodeName"] == name and "deletionTimestamp" not in pod["metadata"]
        ]

    def _fail(self, gang: Gang) -> None:
        if gang.phase == "Running":
            gang.phase = "Restarting"
        self._delete_pods(gang)

    def _delete_pods(self, gang: Gang) -> None:
        for pod in self._pods_of(gang):
            pod["metadata"].setdefault("deletionTimestamp", stamp(self.now + _GRACE))

    def _pods_of(self, gang: Gang) -> list[Json]:
        return [
            pod
            for pod in self.pods
            if pod["metadata"]["annotations"]["volcano.sh/job-name"] == gang.name
        ]

    # --- Volcano ---------------------------------------------------------------------------------
    def _volcano(self) -> None:
        for gang in sorted(self.gangs.values(), key=lambda each: each.created):
            if gang.phase == "Running":
                gang.works_for -= STEP
                if gang.works_for <= timedelta(0):
                    gang.phase = "Completed"
                    self.pods = [pod for pod in self.pods if pod not in self._pods_of(gang)]
                    self.say(f"{gang.name} has completed")
            elif gang.phase not in _OVER and not self._pods_of(gang):
                self._place(gang)

    def _place(self, gang: Gang) -> None:
        taken = {pod["spec"]["nodeName"] for pod in self.pods}
        open_ones = [
            each.node["metadata"]["name"]
            for each in self.instances.values()
            if each.node is not None
            and not is_cordoned(each.node)
            and why_unusable(each.node, DEVICES) is None
            and each.node["metadata"]["name"] not in taken
        ]
        if len(open_ones) < gang.size:
            return
        gang.phase = "Running"
        self.say(f"{gang.name} runs")
        for index, name in enumerate(self._random.sample(open_ones, gang.size)):
            self.pods.append(
                {
                    "metadata": {
                        "name": f"{gang.name}-{index}",
                        "namespace": kubernetes.NAMESPACE,
                        "annotations": {"volcano.sh/job-name": gang.name},
                    },
                    "spec": {"nodeName": name},
                    "status": {"phase": "Running"},
                }
            )

    # --- the scaler's clients --------------------------------------------------------------------
    def items(self, path: str) -> list[Json]:
        """List objects; copies, as over the network."""
        lists: dict[str, list[Json]] = {
            NODES: [each.node for each in self.instances.values() if each.node is not None],
            PODS: self.pods,
            JOBS.format(namespace=kubernetes.NAMESPACE): [
                {
                    "apiVersion": "batch.volcano.sh/v1alpha1",
                    "kind": "Job",
                    "metadata": {
                        "name": gang.name,
                        "namespace": kubernetes.NAMESPACE,
                        "uid": gang.name,
                        "creationTimestamp": stamp(gang.created),
                        "annotations": gang.annotations,
                    },
                    "spec": {"tasks": [{"replicas": gang.size}]},
                    "status": {"state": {"phase": gang.phase}},
                }
                for gang in self.gangs.values()
            ],
        }
        copied: list[Json] = json.loads(json.dumps(lists[path]))
        return copied

    def find(self, path: str) -> Json | None:
        """Read the request."""
        assert path == REQUEST.format(namespace=kubernetes.NAMESPACE)
        copied: Json = json.loads(json.dumps(self.request))
        return copied

    def patch(self, path: str, changes: Json) -> None:
        """Apply a merge patch."""
        if self._random.random() < 0.02:
            raise RuntimeError("the API server does not answer")
        kind, _, name = path.rpartition("/")
        if kind == NODES:
            nodes = [each.node for each in self.instances.values() if each.node is not None]
            (node,) = (node for node in nodes if node["metadata"]["name"] == name)
            _merge(node, changes)
        elif kind.endswith("configmaps"):
            _merge(self.request, changes)
        else:
            _merge(self.gangs[name].annotations, changes["metadata"]["annotations"])

    def create(self, path: str, entry: Json) -> None:
        """Take an event."""

    def read(self) -> Group:
        """Describe the group."""
        return Group(
            name="eks-1",
            desired=self.desired,
            most=MOST,
            instances={
                each.id: IN_SERVICE if self.now - each.launched >= STEP else "Pending"
                for each in self.instances.values()
            },
            changing=self.now < self.changing_until,
        )

    def resize(self, group: Group, number: int) -> None:
        """Raise the desired capacity."""
        assert self.desired < number <= MOST
        self.desired = number

    def lower(self, group: Group, number: int) -> int:
        """Give up instances that were not delivered."""
        size = max(number, len(self.instances))
        assert size <= self.desired
        self.desired = size
        return size

    def terminate(self, instance: str) -> None:
        """Terminate an instance that the scaler has chosen; it must not be in use."""
        if self._random.random() < 0.02:
            raise RuntimeError("EC2 does not answer")
        ended = self.instances[instance]
        if ended.node is not None:
            busy = self._gangs_on(ended)
            if busy and ended.answers:
                self.wrong.append(f"{self.now}: {instance} was ended under {busy[0].name}")
            if self.now < self.changing_until:
                self.wrong.append(f"{self.now}: {instance} was ended during an update")
        self.desired -= 1
        self._end(ended)

    # --- what must hold --------------------------------------------------------------------------
    def _measure(self) -> None:
        """Add up how long each node has been without users, and for how long it may."""
        for each in self.instances.values():
            if each.node is None:
                continue
            name = each.node["metadata"]["name"]
            if any(pod["spec"]["nodeName"] == name for pod in self.pods):
                self.idle_times.pop(each.id, None)
                continue
            idle = self.idle_times.setdefault(
                each.id, IdleTime(rules=RULES, slack=_SLACK, since=self.now)
            )
            if self.now >= self.changing_until:
                idle.spent += STEP
            idle.new_jobs |= {g.name for g in self.gangs.values() if g.created > idle.since}
            idle.requests.add(self.request["data"].get("id"))
            if idle.spent > idle.limit:
                self.wrong.append(f"{self.now}: {name} is idle for {idle.spent}")

    def check_end(self) -> None:
        """Every gang has run, or is told why not; nothing that no job needs is left."""
        for gang in self.gangs.values():
            if gang.phase in _OVER or gang.phase == "Running":
                continue
            told = gang.annotations.get(kubernetes.DROPPED)
            if kubernetes.SCALE in gang.annotations and not told:
                self.wrong.append(f"{gang.name} waits for ever and asks for nodes")
        idle = len(self.instances) - len({pod["spec"]["nodeName"] for pod in self.pods})
        if idle or self.desired > len(self.instances):
            self.wrong.append(
                f"{idle} nodes are left without users, {self.desired} are wanted, of "
                f"{len(self.instances)}"
            )


def _merge(entry: Json, changes: Json) -> None:
    """RFC 7396."""
    for name, value in changes.items():
        if value is None:
            entry.pop(name, None)
        elif isinstance(value, dict):
            _merge(entry.setdefault(name, {}), value)
        else:
            entry[name] = value
