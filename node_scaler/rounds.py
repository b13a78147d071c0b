"""Reconcile node groups: read, decide, act, and report in the log and in cluster events."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from node_scaler.cluster import ClusterClient
from node_scaler.group import ManagedNodeGroup
from node_scaler.model import (
    Answer,
    Assign,
    Discard,
    Group,
    Mark,
    Move,
    Note,
    Observation,
    Remove,
    Rules,
    ScaleDown,
    ScaleUp,
    ScalingStep,
    name_of,
)
from node_scaler.plan import ScalingPlan, plan, unregistered_instances
from node_scaler.zones import place
from trainium_catalogue import kubernetes
from trainium_catalogue.node_use import (
    NodeRequest,
    has_ended,
    recently_left_zone,
    selected_run,
    stamp,
    waiting_jobs,
)
from trainium_catalogue.wording import counted

Json = dict[str, Any]

NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/{namespace}/jobs"
EVENTS = "/api/v1/namespaces/{namespace}/events"
REQUEST = "/api/v1/namespaces/{namespace}/configmaps/" + kubernetes.NODE_REQUEST
_NODE_EVENT_NAMESPACE = "default"
"""Namespace for events about cluster-scoped objects (kubernetes/client-go, tools/events)."""


@dataclass(slots=True)
class _Zone:
    """A zone's node group, and its state between reconciliations."""

    node_group: ManagedNodeGroup
    prefix: str
    """Prefix of its log lines."""
    last_summary: str = ""
    unregistered: dict[str, datetime] = field(default_factory=dict)
    discarded: dict[str, datetime] = field(default_factory=dict)
    surplus_since: datetime | None = None
    at_maximum: bool = False


@dataclass(slots=True, kw_only=True)
class Scaler:
    """Scales the node groups of a cluster, one per zone."""

    cluster: ClusterClient
    node_groups: Mapping[str, ManagedNodeGroup]
    """Node groups by zone id, in the order that gangs try them; a single group needs no id."""
    namespace: str
    """Namespace of the jobs."""
    rules: Rules
    say: Callable[[str], None]
    _zones: dict[str, _Zone] = field(init=False)

    def __post_init__(self) -> None:
        """Create the state of each zone."""
        several = len(self.node_groups) > 1
        self._zones = {
            zone: _Zone(group, f"{zone}: " if several else "")
            for zone, group in self.node_groups.items()
        }

    def reconcile(self, now: datetime) -> int:
        """Reconcile once; return the number of failed steps."""
        # All nodes, because labels may be missing, and the group lists its own instances.
        nodes = self.cluster.items(NODES)
        # Jobs before pods, so that a pod created in between is seen and keeps its node.
        jobs = self.cluster.items(JOBS.format(namespace=self.namespace))
        pods = self.cluster.items(PODS)
        groups = {zone: each.node_group.read() for zone, each in self._zones.items()}
        config_map = self.cluster.find(REQUEST.format(namespace=self.namespace))
        request = None if config_map is None else NodeRequest.read(config_map)
        waits = waiting_jobs(jobs, pods, now=now)
        zone_of = {wait.job: wait.zones.current(groups) for wait in waits}
        # Instances launched for a gang may still join after it has moved to another zone.
        left_zones = {recently_left_zone(job, since=now - self.rules.join) for job in jobs}
        wanted = {zone: group.desired for zone, group in groups.items()}
        plans: dict[str, ScalingPlan] = {}
        todo: list[tuple[ScalingStep, Observation, _Zone]] = []
        # The first zone comes last: it gets a user's request minus the nodes used elsewhere.
        for zone, each in reversed(self._zones.items()):
            others = [other for other in self._zones.values() if other is not each]
            group = replace(groups[zone], elsewhere=sum(wanted.values()) - wanted[zone])
            each.unregistered = unregistered_instances(
                nodes, group, each.unregistered, each.discarded, now=now
            )
            seen = Observation(
                nodes=nodes,
                pods=pods,
                jobs=jobs,
                group=group,
                request=_share(request, zone, plans, groups, now),
                unregistered=each.unregistered,
                surplus_since=each.surplus_since,
                elsewhere=frozenset(job for job, other in zone_of.items() if other != zone),
                releases_idle=zone in left_zones or any(other.at_maximum for other in others),
            )
            plans[zone] = decided = plan(seen, self.rules, now=now)
            each.surplus_since = (each.surplus_since or now) if decided.surplus else None
            each.at_maximum = decided.at_maximum
            for step in decided.steps:
                if isinstance(step, ScaleUp):
                    wanted[zone] = step.number
            if decided.summary != each.last_summary:
                self.say(each.prefix + decided.summary)
                each.last_summary = decided.summary
            todo += [(step, seen, each) for step in decided.steps]
        in_order = {zone: plans[zone] for zone in groups}
        # Also with a single zone, for jobs submitted while there were several.
        placed = [wait for wait in waits if wait.run or len(groups) > 1]
        runs = {selected_run(each) for each in jobs if not has_ended(each)}
        steps = list(place(placed, runs, nodes, in_order, self.rules, now=now))
        if any(isinstance(step, Move) for step in steps):
            # The plans assume the zones before the moves.
            todo.clear()
        # These steps are independent of zones: any observation has all jobs.
        todo += [(step, seen, each) for step in steps]
        return sum(not self._execute(step, seen, zone, now) for step, seen, zone in todo)

    def _execute(self, step: ScalingStep, seen: Observation, zone: _Zone, now: datetime) -> bool:
        """Execute a step; a failed one does not block the others, and is retried next time."""
        try:
            match step:
                case ScaleUp():
                    self._scale_up(step, seen, zone, now)
                case ScaleDown():
                    size = zone.node_group.lower(seen.group, step.number)
                    self.say(
                        f"{zone.prefix}{seen.group.desired} -> {counted(size, 'node')}: the "
                        "others are not needed"
                    )
                case Note():
                    self._note(step, seen, now)
                case Move():
                    self._move(step, seen, now)
                case Assign():
                    labels = {kubernetes.LABEL_RUN: step.run}
                    self.cluster.patch(f"{NODES}/{step.node}", {"metadata": {"labels": labels}})
                    self.say(f"node {step.node} is assigned to {step.run or 'no run'}")
                case Answer():
                    self._answer(step.request, zone)
                case Mark():
                    self._mark(step, now)
                case Remove():
                    self._remove(step, zone, now)
                case Discard():
                    # Recorded first: after a lost response, a retry would shrink the group twice.
                    zone.discarded[step.instance] = now
                    zone.node_group.terminate(step.instance)
                    self.say(
                        f"terminated {step.instance}: has not joined since {stamp(step.since)}"
                    )
        except Exception as error:
            self.say(f"{type(step).__name__} failed: {type(error).__name__}: {error}")
            return False
        return True

    def _scale_up(self, step: ScaleUp, seen: Observation, zone: _Zone, now: datetime) -> None:
        zone.node_group.resize(seen.group, step.number)
        why = f"for {', '.join(step.jobs)}" if step.jobs else "as requested by a user"
        text = f"{zone.prefix}{seen.group.desired} -> {counted(step.number, 'node')} {why}"
        self.say(text)
        for job in step.jobs:
            self._write_job_event(job, seen, "NodesRequested", text, now)

    def _note(self, step: Note, seen: Observation, now: datetime) -> None:
        path = f"{JOBS.format(namespace=self.namespace)}/{step.job}"
        self.cluster.patch(path, {"metadata": {"annotations": dict(step.annotations)}})
        dropped = step.annotations.get(kubernetes.DROPPED)
        if dropped is None:
            return
        self.say(f"job {step.job} gets no more nodes: {dropped}")
        self._write_job_event(step.job, seen, "NodesDropped", dropped, now)

    def _move(self, step: Move, seen: Observation, now: datetime) -> None:
        path = f"{JOBS.format(namespace=self.namespace)}/{step.job}"
        self.cluster.patch(path, {"metadata": {"annotations": dict(step.annotations)}})
        self.say(f"job {step.job}: {step.why}")
        self._write_job_event(step.job, seen, "ZoneChanged", step.why, now)

    def _answer(self, request: NodeRequest, zone: _Zone) -> None:
        path = REQUEST.format(namespace=self.namespace)
        self.cluster.patch(path, {"data": request.answer()})
        self.say(
            f"{zone.prefix}a user requests {counted(request.nodes, 'node')}"
            + (f"; dropped: {request.dropped}" if request.dropped else "")
        )

    def _mark(self, step: Mark, now: datetime) -> None:
        changes: Json = {"metadata": {"annotations": dict(step.annotations)}}
        if step.unschedulable is not None:
            changes["spec"] = {"unschedulable": step.unschedulable or None}
        self.cluster.patch(f"{NODES}/{step.node}", changes)
        if step.unschedulable is not None:
            done = "cordoned for removal" if step.unschedulable else "uncordoned"
            self.say(f"node {step.node} {done}")
            self._write_event(_node(step.node), "NodeCordoned", done, now)

    def _remove(self, step: Remove, zone: _Zone, now: datetime) -> None:
        # Annotated first, so that no instance is terminated twice if this fails.
        marks = {kubernetes.TERMINATING_SINCE: stamp(now)}
        self.cluster.patch(f"{NODES}/{step.node}", {"metadata": {"annotations": marks}})
        zone.node_group.terminate(step.instance, is_replaced=step.is_replaced)
        text = f"{'replaced' if step.is_replaced else 'terminated'} {step.instance}: {step.why}"
        self.say(f"node {step.node}: {text}")
        self._write_event(_node(step.node), "NodeRemoved", text, now)

    def _write_job_event(
        self, name: str, seen: Observation, reason: str, message: str, now: datetime
    ) -> None:
        for job in seen.jobs:
            if name_of(job) == name:
                self._write_event(dict(job), reason, message, now)

    def _write_event(self, about: Json, reason: str, message: str, now: datetime) -> None:
        """Write an event, best effort."""
        metadata = about["metadata"]
        namespace = metadata.get("namespace") or _NODE_EVENT_NAMESPACE
        moment = stamp(now)
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{metadata['name']}.{uuid.uuid4().hex[:16]}"},
            "involvedObject": {
                "apiVersion": about["apiVersion"],
                "kind": about["kind"],
                "name": metadata["name"],
                "uid": metadata["uid"],
                **({"namespace": namespace} if metadata.get("namespace") else {}),
            },
            "reason": reason,
            "message": message,
            "type": "Normal",
            "count": 1,
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "source": {"component": kubernetes.SCALER},
        }
        try:
            self.cluster.create(EVENTS.format(namespace=namespace), event)
        except Exception as error:
            self.say(f"event was not written: {error}")


def _node(name: str) -> Json:
    # kubectl describe node finds events by this involvedObject.uid, as the kubelet sets it.
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": name}}


def _share(
    request: NodeRequest | None,
    zone: str,
    plans: Mapping[str, ScalingPlan],
    groups: Mapping[str, Group],
    now: datetime,
) -> NodeRequest | None:
    """Return a zone's share of a user's request.

    The first zone provides all nodes except those used in other zones.
    """
    if request is None:
        return None
    if zone != next(iter(groups)):
        return replace(request, nodes=0, since=request.since or now)
    used = sum(len(decided.nodes.busy) for decided in plans.values())
    return replace(request, nodes=max(0, request.nodes - used))
