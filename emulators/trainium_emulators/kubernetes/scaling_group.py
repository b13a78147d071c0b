"""The Auto Scaling group behind a node group, with simulated capacity faults.

Time comes from a clock, so that a simulation can advance it without waiting. The group changes only
during calls, so callers that advance the clock must call ``advance`` or describe the group.
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from trainium_emulators.kubernetes import nodes
from trainium_emulators.kubernetes.resources import NODE
from trainium_emulators.kubernetes.store import Store

RETRY_S = 60.0
"""Seconds until a failed launch is retried: an estimate, because AWS publishes no value."""
PENDING, IN_SERVICE, TERMINATING = "Pending", "InService", "Terminating:Wait"
"""Lifecycle states (Amazon EC2 Auto Scaling user guide, instance lifecycle). EKS adds a termination
lifecycle hook, hence ``:Wait``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityFaults:
    """Faults of EC2 and of new instances; none by default."""

    available: int | None = None
    """Instances that EC2 has for the group, including those in use; launches beyond it fail with
    InsufficientInstanceCapacity and are retried. None: unlimited."""
    launch_s: float = 0.0
    """Time from the request until an instance is in service."""
    join_s: float = 0.0
    """Time until an in-service instance is a Ready node."""
    terminate_s: float = 0.0
    """Time that a terminating instance and its node remain."""
    never_join: int = 0
    """Number of upcoming instances that never become nodes."""


@dataclass(slots=True, kw_only=True)
class GroupInstance:
    """One instance of the group."""

    instance_id: str
    in_service_at: float
    joins_at: float | None
    """None if it never becomes a node."""
    node: str | None = None
    ends_at: float | None = None
    """Set once the instance is being terminated."""

    def state(self, now: float) -> str:
        """Return the instance's lifecycle state."""
        if self.ends_at is not None:
            return TERMINATING
        return IN_SERVICE if now >= self.in_service_at else PENDING


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """A scaling activity as DescribeScalingActivities lists it."""

    started_at: float
    description: str
    message: str = ""
    """Reason of a failure; empty otherwise."""
    activity_id: str = field(default_factory=lambda: str(uuid.uuid4()))


class ScalingGroup:
    """Launches, replaces and terminates instances to maintain the desired capacity."""

    def __init__(
        self,
        store: Store,
        group: nodes.EmulatedNodeGroup,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.group = group
        self.clock = clock
        self.desired = 0
        self.faults = CapacityFaults()
        """May be replaced at any time; launches already in progress are not affected."""
        self.activities: list[Activity] = []
        """Newest first."""
        self._store = store
        self._instances: dict[str, GroupInstance] = {}
        self._num_never_joining = 0
        self._failed_at: float | None = None
        self._lock = threading.RLock()

    def instances(self) -> dict[str, str]:
        """Return the lifecycle state of each instance, by id."""
        self.advance()
        now = self.clock()
        return {name: each.state(now) for name, each in self._instances.items()}

    def failure(self) -> str:
        """Return why the latest launches failed; empty if they succeeded."""
        self.advance()
        if self._failed_at is None:
            return ""
        return next(each.message for each in self.activities if each.message)

    def set_desired(self, number: int) -> None:
        """Change the desired capacity; the group chooses the instances to terminate."""
        with self._lock:
            self.desired = number
            self._failed_at = None
            self.advance()

    def plant(self, faults: CapacityFaults) -> None:
        """Set the faults of subsequent launches and terminations."""
        with self._lock:
            if faults != self.faults:
                self.faults, self._num_never_joining = faults, faults.never_join
            self.advance()

    def terminate(self, instance_id: str, *, decrement: bool) -> None:
        """Terminate an instance; decrement the desired capacity, or launch a replacement."""
        with self._lock:
            self._end(self._instances[instance_id])
            if decrement:
                self.desired -= 1
            self.advance()

    def advance(self) -> None:
        """Advance the group to the current time: launch, join and terminate instances."""
        with self._lock:
            now = self.clock()
            for each in list(self._instances.values()):
                if each.ends_at is not None and now >= each.ends_at:
                    self._forget(each)
            present = [each for each in self._instances.values() if each.ends_at is None]
            present.sort(key=self._worst_first)
            for each in present[: max(0, len(present) - self.desired)]:
                self._end(each)
            self._launch(self.desired - len(present), now)
            for each in self._instances.values():
                due = each.joins_at is not None and now >= each.joins_at
                if due and each.node is None and each.ends_at is None:
                    each.node = self._join(each)

    def _launch(self, missing: int, now: float) -> None:
        faults = self.faults
        if missing <= 0:
            self._failed_at = None
            return
        if self._failed_at is not None and now < self._failed_at + RETRY_S:
            return
        room = missing
        if faults.available is not None:
            room = max(0, min(missing, faults.available - len(self._instances)))
        for _ in range(room):
            in_service_at = now + faults.launch_s
            joins_at = None if self._num_never_joining else in_service_at + faults.join_s
            self._num_never_joining = max(0, self._num_never_joining - 1)
            instance = GroupInstance(
                instance_id=f"i-{uuid.uuid4().hex[:17]}",
                in_service_at=in_service_at,
                joins_at=joins_at,
            )
            self._instances[instance.instance_id] = instance
            self._record(f"Launching a new EC2 instance: {instance.instance_id}")
        self._failed_at = now if room < missing else None
        if room < missing:
            # The message is from aws/containers-roadmap issue 2204; EKS repeats it as a health
            # issue of the node group. The activity is from kubernetes/autoscaler issue 1263.
            message = (
                "Could not launch On-Demand Instances. InsufficientInstanceCapacity - We currently "
                f"do not have sufficient {self.group.instance_type} capacity in the Availability "
                f"Zone you requested ({nodes.ZONE}). Our system will be working on provisioning "
                "additional capacity. Launching EC2 instance failed."
            )
            self._record("Launching a new EC2 instance.  Status Reason: " + message, message)

    def _record(self, description: str, message: str = "") -> None:
        activity = Activity(started_at=self.clock(), description=description, message=message)
        self.activities.insert(0, activity)

    def _worst_first(self, each: GroupInstance) -> tuple[bool, bool]:
        """Return the sort key of the group's termination order.

        Real groups compare zones, launch templates and ages (Amazon EC2 Auto Scaling user guide,
        configure termination policies), not pods. This is the worst case: nodes with pods are
        terminated first.
        """
        return not (each.node and nodes.is_busy(self._store, each.node)), each.node is None

    def _join(self, instance: GroupInstance) -> str:
        names = {node["metadata"]["name"] for node in nodes.members(self._store, self.group.name)}
        free = (f"{self.group.name.lower()}-{number}" for number in itertools.count())
        name = next(name for name in free if name not in names)
        self._store.create(NODE, "", nodes.node(self.group, name, instance.instance_id))
        return name

    def _end(self, instance: GroupInstance) -> None:
        instance.ends_at = self.clock() + self.faults.terminate_s
        self._record(f"Terminating EC2 instance: {instance.instance_id}")
        if self.faults.terminate_s == 0:
            self._forget(instance)

    def _forget(self, instance: GroupInstance) -> None:
        del self._instances[instance.instance_id]
        if instance.node is not None:
            nodes.remove(self._store, instance.node)
