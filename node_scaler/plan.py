"""The decisions of one round, made from what was read in it.

What has to be remembered is in annotations of the nodes, so that a new process goes on where the
last one was ended, and everybody can read it. Only an instance that is no node has none: since
when that is so, the process itself remembers.
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
"""Time after which an instance that should be gone, and is not, is ended once more."""
IN_SERVICE = "InService"
"""The only state in which an instance can be counted on, and be terminated once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The Auto Scaling group of the node group."""

    name: str
    desired: int
    most: int
    instances: Mapping[str, str]
    """State of each instance in its life cycle, by id."""
    changing: bool = False
    """EKS is replacing the nodes or deleting the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything that a round has read."""

    nodes: Sequence[Json]
    """Nodes of the whole cluster."""
    pods: Sequence[Json]
    """Pods of all namespaces."""
    jobs: Sequence[Json]
    """Jobs of Volcano."""
    group: Group
    strangers: Mapping[str, datetime] = field(default_factory=dict)
    """Instances in service that are no nodes, each with the time since when."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The times that a round waits for."""

    idle: timedelta
    """Time after which an unused node goes."""
    cordon_time: timedelta
    """Time between cordoning a node and its end: a scheduler may act on what it saw before."""
    join: timedelta
    """Time after which an instance goes that has not become a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Raise:
    """Buy more nodes."""

    number: int
    jobs: tuple[str, ...]
    """Jobs that asked for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Change annotations of a node, and whether pods may come."""

    node: str
    annotations: Mapping[str, str | None]
    unschedulable: bool | None = None
    """None: unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """End an instance and have one fewer."""

    node: str
    instance: str
    idle_since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """End an instance that is no node, and have one fewer."""

    instance: str
    since: datetime


Step = Raise | Mark | Remove | Discard


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Steps in their order, and the state of the group in a sentence."""

    steps: tuple[Step, ...]
    summary: str


def plan(seen: Seen, rules: Rules, *, now: datetime) -> Plan:
    """Decide; the same objects at the same time give the same plan."""
    group = seen.group
    nodes = [node for node in seen.nodes if _is_there(node, group, now)]
    users = users_of_nodes(seen.pods)
    busy = [node for node in nodes if _name(node) in users]
    idle = [node for node in nodes if _name(node) not in users]
    # A gang that is larger than the group can become never starts.
    waits = [wait for wait in waits_of(seen.jobs, seen.pods) if wait.size <= group.most]
    kept = sum(wait.missing for wait in waits)
    idle.sort(key=_first_to_go)
    spare, needed = idle[: max(0, len(idle) - kept)], idle[max(0, len(idle) - kept) :]
    steps: list[Step] = [
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
        # An update fails when others end or add nodes under it (aws/containers-roadmap issue 916),
        # and the nodes that it has cordoned look like ones that a job needs others for.
        steps = [step for step in steps if isinstance(step, Mark)]
    summary = _summary(group, busy, needed, spare, rules)
    return Plan(steps=tuple(steps), summary=summary + _rest_of_summary(seen))


def strangers(
    nodes: Sequence[Json], group: Group, before: Mapping[str, datetime], *, now: datetime
) -> dict[str, datetime]:
    """Instances in service that are no node, and since when: ``before`` is the last round's.

    Nobody else ends them: EC2 finds them healthy, and EKS does not look again
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

    An instance may be described as in service after it was ended; ending it twice would make the
    group smaller twice, by a node of its own choice.
    """
    ends = marked_since(node, kubernetes.ENDS_SINCE)
    if ends is not None and now - ends < _ENDS_WITHIN:
        return False
    return group.instances.get(instance_of(node) or "") == IN_SERVICE


def _raise(
    group: Group, waits: Sequence[Wait], *, num_busy: int, num_unusable: int
) -> tuple[Raise, ...]:
    """Room for the jobs that ask for it, the oldest first, beside the nodes that are in use.

    A job that has to wait for another one's nodes gets none until then: it could not use them.
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
    """Forget that a node was idle; open it if it was we who closed it."""
    annotations = node["metadata"].get("annotations") or {}
    ours = [a for a in (kubernetes.IDLE_SINCE, kubernetes.CORDONED_SINCE) if a in annotations]
    if not ours:
        return ()
    opened = False if kubernetes.CORDONED_SINCE in ours else None
    return (Mark(node=_name(node), annotations=dict.fromkeys(ours), unschedulable=opened),)


def _let_go(node: Json, rules: Rules, now: datetime) -> tuple[Step, ...]:
    """One step further: marked, cordoned, gone."""
    since = marked_since(node, kubernetes.IDLE_SINCE)
    cordoned = marked_since(node, kubernetes.CORDONED_SINCE)
    opened_by_others = cordoned is not None and not _is_closed(node)
    if since is None or opened_by_others:
        # Also of a node whose mark somebody has taken off, to keep it for another while.
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
    """Tell whether a person has cordoned the node: no pod can come, and it stays closed."""
    return _is_closed(node) and marked_since(node, kubernetes.CORDONED_SINCE) is None


def _is_closed(node: Json) -> bool:
    return bool((node.get("spec") or {}).get("unschedulable"))


def _first_to_go(node: Json) -> tuple[bool, str, str]:
    """Sorts nodes that nobody could use before others, and those idle longest before the rest."""
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
