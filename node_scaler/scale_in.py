"""Remove nodes in steps: annotate, cordon, terminate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from node_scaler.model import Group, Json, Mark, NodesInService, Remove, Rules, ScalingStep, name_of
from trainium_catalogue import kubernetes
from trainium_catalogue.node_use import (
    UNFIT,
    NodeRequest,
    WaitingJob,
    instance_of,
    is_cordoned,
    marked_since,
    reported_fault,
    stamp,
)

_MARKS = (kubernetes.IDLE_SINCE, kubernetes.UNUSABLE_SINCE, kubernetes.CORDONED_SINCE)


def clear_marks(node: Json) -> tuple[Mark, ...]:
    """Clear a node's annotations; uncordon it if the scaler cordoned it."""
    annotations = node["metadata"].get("annotations") or {}
    ours = [mark for mark in _MARKS if mark in annotations]
    if not ours:
        return ()
    unschedulable = False if kubernetes.CORDONED_SINCE in ours else None
    return (Mark(node=name_of(node), annotations=dict.fromkeys(ours), unschedulable=unschedulable),)


def scale_in_steps(
    nodes: NodesInService,
    spare: Sequence[Json],
    num_needed: int,
    request: NodeRequest | None,
    rules: Rules,
    now: datetime,
    *,
    releases_idle: bool,
) -> Iterator[ScalingStep]:
    """Advance the removal of nodes that no job needs: annotate, cordon, remove."""
    cutoff = None if request is None or not request.since else request.since + rules.cordon_time
    since = None if request is None else request.since
    cutoff_if_fewer = cutoff if request and len(nodes) > request.nodes else None
    room = 0 if releases_idle else len(spare)
    if request is not None:
        room = max(0, request.nodes - len(nodes.busy) - num_needed)
    surplus, requested = spare[: max(0, len(spare) - room)], spare[max(0, len(spare) - room) :]

    def advance(node: Json, mark: str, why: str, *, at_once: bool) -> tuple[ScalingStep, ...]:
        limit = rules.unusable if mark == kubernetes.UNUSABLE_SINCE else rules.idle
        return _advance_removal(node, mark, why, timedelta(0) if at_once else limit, rules, now)

    for name, why in nodes.unusable.items():
        node = nodes.by_name[name]
        at_once = why == UNFIT or _is_before(node, cutoff_if_fewer, now)
        yield from advance(node, kubernetes.UNUSABLE_SINCE, why, at_once=at_once)
    for node in nodes.cordoned:
        why = "cordoned and idle"
        yield from advance(
            node, kubernetes.IDLE_SINCE, why, at_once=_is_before(node, cutoff_if_fewer, now)
        )
    for node in surplus:
        at_once = releases_idle or _is_before(node, cutoff, now)
        yield from advance(node, kubernetes.IDLE_SINCE, "idle", at_once=at_once)
    for node in requested:
        mark, limit = kubernetes.IDLE_SINCE, rules.idle
        yield from _advance_removal(node, mark, "idle", limit, rules, now, not_before=since)


def with_unfit(
    steps: Iterable[ScalingStep], nodes: NodesInService, *, num_replaced: int, now: datetime
) -> Iterator[ScalingStep]:
    """Annotate nodes whose host is unfit, and replace some of them.

    The job that found the host unfit restarts, and may not be able to request nodes.
    """
    for step in steps:
        match step:
            case Mark() if nodes.unusable.get(step.node) == UNFIT:
                marks = {**step.annotations, kubernetes.UNFIT_SINCE: stamp(now)}
                yield replace(step, annotations=marks)
            case Remove() if nodes.unusable.get(step.node) == UNFIT and num_replaced > 0:
                num_replaced -= 1
                yield replace(step, is_replaced=True)
            case _:
                yield step


def num_missing(
    waiting: Iterable[WaitingJob],
    nodes: NodesInService,
    group: Group,
    request: NodeRequest | None,
    requested: int,
) -> int:
    """Count the nodes that jobs will lack once unusable nodes are removed.

    Args:
        waiting: Waiting and restarting jobs.
        nodes: The nodes in service.
        group: The Auto Scaling group.
        request: The user's active request; more nodes are added only for jobs that request them.
        requested: Size of the group requested by jobs.
    """
    size = len(nodes.busy) + sum(wait.missing for wait in waiting if wait.dropped is None)
    if request is not None:
        size = min(size, max(request.nodes, requested))
    return max(0, size - (group.desired - len(nodes.unusable) - len(nodes.cordoned)))


def _is_before(node: Json, cutoff: datetime | None, now: datetime) -> bool:
    """Return whether the node was already idle or unusable at the time ``cutoff``."""
    marks = (kubernetes.IDLE_SINCE, kubernetes.UNUSABLE_SINCE)
    since = next((moment for mark in marks if (moment := marked_since(node, mark))), now)
    return cutoff is not None and since <= cutoff


def _advance_removal(
    node: Json,
    mark: str,
    why: str,
    limit: timedelta | None,
    rules: Rules,
    now: datetime,
    *,
    not_before: datetime | None = None,
) -> tuple[ScalingStep, ...]:
    """Advance the removal of a node by one step.

    Args:
        node: The node.
        mark: Annotation with the start of its timeout.
        why: Reason for removal.
        limit: Timeout after which it is cordoned; None for never.
        rules: Timeouts.
        now: The time.
        not_before: Earliest start of the timeout: the time of a user's request for the node.
    """
    since = marked_since(node, mark)
    cordoned = marked_since(node, kubernetes.CORDONED_SINCE)
    uncordoned_by_others = cordoned is not None and not is_cordoned(node)
    if since is None or uncordoned_by_others or (not_before is not None and since < not_before):
        # Removing the annotation restarts the timeout, so users can keep a node longer.
        start = now if since is None or not_before is None else max(not_before, since)
        start = now if uncordoned_by_others else start
        marks = {**dict.fromkeys(_MARKS), mark: stamp(start)}
        unschedulable = None if cordoned is None else False
        if (limit == timedelta(0) or reported_fault(node)) and not is_cordoned(node):
            # Despite a reported fault, a pod could still be placed there.
            marks[kubernetes.CORDONED_SINCE], unschedulable = stamp(now), True
        return (Mark(node=name_of(node), annotations=marks, unschedulable=unschedulable),)
    if limit is None or now - since < limit:
        return ()
    if is_cordoned_by_others(node):
        cordoned = since + limit
    elif cordoned is None:
        marks = {kubernetes.CORDONED_SINCE: stamp(now)}
        return (Mark(node=name_of(node), annotations=marks, unschedulable=True),)
    if now - cordoned < rules.cordon_time:
        return ()
    instance = instance_of(node)
    assert instance is not None  # it is in service
    return (Remove(node=name_of(node), instance=instance, why=f"{why} since {stamp(since)}"),)


def is_cordoned_by_others(node: Json) -> bool:
    """Return whether a user or another program cordoned the node, which then stays cordoned."""
    return is_cordoned(node) and marked_since(node, kubernetes.CORDONED_SINCE) is None


def removal_key(node: Json) -> tuple[bool, str, str]:
    """Return the sort key for removal: unassigned nodes first, then the longest idle."""
    since = marked_since(node, kubernetes.IDLE_SINCE)
    is_assigned = kubernetes.LABEL_RUN in (node["metadata"].get("labels") or {})
    return is_assigned, "~" if since is None else stamp(since), name_of(node)
