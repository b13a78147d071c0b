"""Data classes of a reconciliation: its observations, its rules, and its possible steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from trainium_catalogue.node_use import NodeRequest

Json = Mapping[str, Any]

IN_SERVICE = "InService"
"""Lifecycle state of an instance that counts as capacity and may be terminated."""


def name_of(entry: Json) -> str:
    """Return the name of an object."""
    return str(entry["metadata"]["name"])


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesInService:
    """Nodes in service, by use."""

    busy: Sequence[Json]
    """Nodes used by pods, in any condition."""
    free: Sequence[Json]
    """Idle, usable nodes, in order of removal."""
    cordoned: Sequence[Json]
    """Idle nodes cordoned by a user or another program."""
    unusable: Mapping[str, str]
    """Reasons why the other nodes are unusable, by name."""
    by_name: Mapping[str, Json]

    def __len__(self) -> int:
        return len(self.by_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """State of the node group's Auto Scaling group."""

    name: str
    desired: int
    max_size: int
    instances: Mapping[str, str]
    """Lifecycle states of the instances by id."""
    changing: bool = False
    """True while EKS is replacing the nodes or deleting the group."""
    elsewhere: int = 0
    """Desired nodes of the other zones' groups; ``max_size`` limits the total."""

    @property
    def max_desired(self) -> int:
        """Current upper bound of this group's desired capacity."""
        return max(0, self.max_size - self.elsewhere)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Everything that a reconciliation reads."""

    nodes: Sequence[Json]
    """All nodes of the cluster."""
    pods: Sequence[Json]
    """Pods of all namespaces."""
    jobs: Sequence[Json]
    """Volcano jobs."""
    group: Group
    request: NodeRequest | None = None
    """A user's latest request for a number of nodes."""
    unregistered: Mapping[str, datetime] = field(default_factory=dict)
    """Instances in service that have not joined the cluster, with the time each was first seen."""
    surplus_since: datetime | None = None
    """Time since which the group has had pending instances that no job needs."""
    elsewhere: frozenset[str] = frozenset()
    """Jobs whose nodes are in another zone."""
    releases_idle: bool = False
    """True to remove unneeded nodes immediately: a job needs the capacity in another zone, or a
    gang has just left this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Timeouts of the scaler, and the devices of a usable node."""

    idle: timedelta | None
    """Idle timeout of a node; None if only a user's request removes nodes."""
    hold: timedelta
    """Maximum time to hold idle nodes for a waiting job."""
    unusable: timedelta
    """Timeout of an unusable node."""
    join: timedelta
    """Timeout of an instance that does not join the cluster."""
    cordon_time: timedelta
    """Time between cordoning and removing a node, since a scheduler may act on stale state."""
    devices: Mapping[str, int]
    """Devices of a usable node."""
    speedup: float = 1.0
    """Factor that shortens time limits set by jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleUp:
    """Raise the group's desired capacity."""

    number: int
    jobs: tuple[str, ...]
    """Jobs that requested nodes; empty if a user did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleDown:
    """Lower the group's desired capacity, but not below its number of instances."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Change a node's annotations, and cordon or uncordon it."""

    node: str
    annotations: Mapping[str, str | None]
    unschedulable: bool | None = None
    """True to cordon, False to uncordon, None for no change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """Terminate a node's instance."""

    node: str
    instance: str
    why: str
    is_replaced: bool = False
    """True if the group launches a replacement; otherwise it shrinks by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """Terminate an instance that has not joined, and shrink the group by one."""

    instance: str
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Change a job's annotations."""

    job: str
    annotations: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Move a job to another zone."""

    job: str
    annotations: Mapping[str, str | None]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Assign a node to a run; None to unassign it."""

    node: str
    run: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Update the status of a user's request for nodes."""

    request: NodeRequest


ScalingStep = ScaleUp | ScaleDown | Mark | Remove | Discard | Note | Move | Assign | Answer
