"""The decisions of one round, made from what that round has read.

State is kept in annotations on the nodes, so that a new process continues where the last one
stopped, and everybody can read it. Only an instance that is not a node has no annotations: the
process itself remembers since when.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from trainium_catalogue import kubernetes
from trainium_catalogue.node_use import (
    Wait,
    instance_of,
    marked_since,
    stamp,
    users_of_nodes,
    waits_of,
)

Json = Mapping[str, Any]

_ENDS_WITHIN = timedelta(minutes=10)
"""Time after which an instance that should be gone, but is not, is terminated again."""
IN_SERVICE = "InService"
"""The only state in which an instance counts and may be terminated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The Auto Scaling group of the node group."""

    name: str
    desired: int
    most: int
    instances: Mapping[str, str]
    """Lifecycle state of each instance, by id."""
    changing: bool = False
    """True while EKS is replacing the nodes or deleting the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All that a round has read."""

    nodes: Sequence[Json]
    """Nodes of the whole cluster."""
    pods: Sequence[Json]
    """Pods of all namespaces."""
    jobs: Sequence[Json]
    """Volcano jobs."""
    group: Group
    strangers: Mapping[str, datetime] = field(default_factory=dict)
    """Instances in service that are not nodes, with the time since when."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The waiting times of the scaler."""

    idle: timedelta
    """Time after which an unused node is removed."""
    cordon_time: timedelta
    """Time between cordoning and removing a node: a scheduler may act on what it saw before."""
    join: timedelta
    """Time after which an instance that has not become a node is terminated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Raise:
    """Buy more nodes."""

    number: int
    jobs: tuple[str, ...]
    """Jobs that asked for nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Change a node's annotations, and open or close it to pods."""

    node: str
    annotations: Mapping[str, str | None]
    unschedulable: bool | None = None
    """Cordon or uncordon the node; None leaves it unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """Terminate a node's instance and shrink the group by one."""

    node: str
    instance: str
    idle_since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """Terminate an instance that is not a node and shrink the group by one."""

    instance: str
    since: datetime


ScalingStep = Raise | Mark | Remove | Discard


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPlan:
    """Steps in order, and the state of the group in a sentence."""

    steps: tuple[ScalingStep, ...]
    summary: str


def plan(seen: Seen, rules: Rules, *, now: datetime) -> ScalingPlan:
    """Decide what to do; the same objects at the same time give the same plan."""
    group = seen.group
    nodes = [node for node in seen.nodes if _is_there(node, group, now)]
    users = users_of_nodes(seen.pods)
    busy = [node for node in nodes if _name(node) in users]
    idle = [node for node in nodes if _name(node) not in users]
    # A gang larger than the group's maximum never starts.
    waits = [wait for wait in waits_of(seen.jobs, seen.pods) if wait.size <= group.most]
    kept = sum(wait.missing for wait in waits)
    idle.sort(key=_first_to_go)
    spare, needed = idle[: max(0, len(idle) - kept)], idle[max(0, len(idle) - kept) :]
    steps: list[ScalingStep] = [
        *_raise(group, waits, num_busy=len(busy), num_unusable=sum(map(_closed_by_others, idle))),
        *(step for node in (*busy, *needed) for step in _give_back(node)),
        *(step for node in spare for step in _let_go(node, rules, now)),
        *(
            Discard(instance=instance, since=since)
            for instance, since in seen.strangers.items()
            if now - since >= rules.join
        ),
    ]
    if group.changing:
        # An update fails if others remove or add nodes meanwhile (aws/containers-roadmap issue
        # 916), and the nodes that it has cordoned look like nodes that need a replacement.
        steps = [step for step in steps if isinstance(step, Mark)]
    summary = _summary(group, busy, needed, spare, rules)
    return ScalingPlan(steps=tuple(steps), summary=summary + _rest_of_summary(seen))


def strangers(
    nodes: Sequence[Json], group: Group, before: Mapping[str, datetime], *, now: datetime
) -> dict[str, datetime]:
    """Instances in service that are not nodes, and since when; ``before`` is the last round's.

    Nobody else terminates them: EC2 finds them healthy, and EKS does not look again
    (aws/containers-roadmap issue 764). The Cluster Autoscaler does the same (its FAQ,
    ``max-node-provision-time``).
    """
    joined = {instance_of(node) for node in nodes}
    return {
        instance: before.get(instance, now)
        for instance, state in group.instances.items()
        if state == IN_SERVICE and instance not in joined
    }


def _is_there(node: Json, group: Group, now: datetime) -> bool:
    """Tell whether a node can serve a job: its object outlives its instance for minutes.

    An instance may still be described as in service after its termination; terminating it twice
    would shrink the group twice, the second time by a node of the group's choice.
    """
    ends = marked_since(node, kubernetes.ENDS_SINCE)
    if ends is not None and now - ends < _ENDS_WITHIN:
        return False
    return group.instances.get(instance_of(node) or "") == IN_SERVICE


def _raise(
    group: Group, waits: Sequence[Wait], *, num_busy: int, num_unusable: int
) -> tuple[Raise, ...]:
    """Add nodes for the jobs that ask, oldest first, beyond the nodes in use.

    A job that must wait for another job's nodes gets none until then: it could not use them.
    """
    number, jobs = num_busy, list[str]()
    for wait in waits:
        if wait.scales and number + wait.missing <= group.most:
            number += wait.missing
            jobs.append(wait.job)
    number = min(group.most, number + num_unusable)
    if not jobs or number <= group.desired:
        return ()
    return (Raise(number=number, jobs=tuple(jobs)),)


def _give_back(node: Json) -> tuple[Mark, ...]:
    """Clear a node's idle marks; uncordon it if it was cordoned by us."""
    annotations = node["metadata"].get("annotations") or {}
    ours = [a for a in (kubernetes.IDLE_SINCE, kubernetes.CORDONED_SINCE) if a in annotations]
    if not ours:
        return ()
    opened = False if kubernetes.CORDONED_SINCE in ours else None
    return (Mark(node=_name(node), annotations=dict.fromkeys(ours), unschedulable=opened),)


def _let_go(node: Json, rules: Rules, now: datetime) -> tuple[ScalingStep, ...]:
    """Take a node one step further: marked, cordoned, removed."""
    since = marked_since(node, kubernetes.IDLE_SINCE)
    cordoned = marked_since(node, kubernetes.CORDONED_SINCE)
    opened_by_others = cordoned is not None and not _is_closed(node)
    if since is None or opened_by_others:
        # Also restarts the clock of a node whose mark somebody has removed to keep it longer.
        marks = {kubernetes.IDLE_SINCE: stamp(now), kubernetes.CORDONED_SINCE: None}
        opened = None if cordoned is None else False
        return (Mark(node=_name(node), annotations=marks, unschedulable=opened),)
    if now - since < rules.idle:
        return ()
    if _closed_by_others(node):
        cordoned = since + rules.idle
    elif cordoned is None:
        marks = {kubernetes.CORDONED_SINCE: stamp(now)}
        return (Mark(node=_name(node), annotations=marks, unschedulable=True),)
    if now - cordoned < rules.cordon_time:
        return ()
    instance = instance_of(node)
    assert instance is not None  # it is in service
    return (Remove(node=_name(node), instance=instance, idle_since=since),)


def _closed_by_others(node: Json) -> bool:
    """Tell whether a person has cordoned the node: it stays closed to pods."""
    return _is_closed(node) and marked_since(node, kubernetes.CORDONED_SINCE) is None


def _is_closed(node: Json) -> bool:
    return bool((node.get("spec") or {}).get("unschedulable"))


def _first_to_go(node: Json) -> tuple[bool, str, str]:
    """Sort key: nodes cordoned by others first, then those idle longest."""
    since = marked_since(node, kubernetes.IDLE_SINCE)
    return not _closed_by_others(node), "~" if since is None else stamp(since), _name(node)


def _name(node: Json) -> str:
    return str(node["metadata"]["name"])


def _summary(
    group: Group,
    busy: Sequence[Json],
    needed: Sequence[Json],
    spare: Sequence[Json],
    rules: Rules,
) -> str:
    since = [marked_since(node, kubernetes.IDLE_SINCE) for node in spare]
    first = min((moment for moment in since if moment is not None), default=None)
    goes = "" if first is None else f", the first goes at {stamp(first + rules.idle)}"
    return (
        f"{group.desired} of at most {group.most} nodes are wanted: {len(busy)} in use, "
        f"{len(needed)} kept for jobs that wait, {len(spare)} idle{goes}"
    )


def _rest_of_summary(seen: Seen) -> str:
    missing = f", {len(seen.strangers)} have not joined" if seen.strangers else ""
    return missing + ("; EKS changes the group, which is left alone" if seen.group.changing else "")
