"""A round: read, decide, act, and report in the log and in the cluster's events."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from node_scaler.cluster import ClusterClient
from node_scaler.group import ManagedNodeGroup
from node_scaler.plan import (
    Answer,
    Discard,
    Lower,
    Mark,
    Note,
    Observation,
    Raise,
    Remove,
    Rules,
    ScalingStep,
    plan,
    strangers,
)
from trainium_catalogue import kubernetes
from trainium_catalogue.node_use import NodeRequest, stamp

Json = dict[str, Any]

NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/{namespace}/jobs"
EVENTS = "/api/v1/namespaces/{namespace}/events"
REQUEST = "/api/v1/namespaces/{namespace}/configmaps/" + kubernetes.NODE_REQUEST
_OF_NODES = "default"
"""Namespace for events about cluster-scoped objects (kubernetes/client-go, tools/events)."""


@dataclass(slots=True, kw_only=True)
class Scaler:
    """Scales one node group of one cluster."""

    cluster: ClusterClient
    node_group: ManagedNodeGroup
    namespace: str
    """Namespace of the jobs."""
    rules: Rules
    say: Callable[[str], None]
    _said: str = field(default="", init=False)
    _strangers: dict[str, datetime] = field(default_factory=dict, init=False)
    _discarded: dict[str, datetime] = field(default_factory=dict, init=False)
    _surplus_since: datetime | None = field(default=None, init=False)

    def round(self, now: datetime) -> int:
        """Do one round; returns the number of failed steps."""
        # All nodes: the group knows its own, and a label could have been removed.
        nodes = self.cluster.items(NODES)
        # In this order: a pod created in between is seen, and keeps its node.
        jobs = self.cluster.items(JOBS.format(namespace=self.namespace))
        pods = self.cluster.items(PODS)
        group = self.node_group.read()
        asked = self.cluster.find(REQUEST.format(namespace=self.namespace))
        self._strangers = strangers(nodes, group, self._strangers, self._discarded, now=now)
        seen = Observation(
            nodes=nodes,
            pods=pods,
            jobs=jobs,
            group=group,
            request=None if asked is None else NodeRequest.read(asked),
            strangers=self._strangers,
            surplus_since=self._surplus_since,
        )
        decided = plan(seen, self.rules, now=now)
        self._surplus_since = (self._surplus_since or now) if decided.surplus else None
        if decided.summary != self._said:
            self.say(decided.summary)
            self._said = decided.summary
        return sum(not self._done(step, seen, now) for step in decided.steps)

    def _done(self, step: ScalingStep, seen: Observation, now: datetime) -> bool:
        """Take a step; a failed one does not block the others, and is repeated next round."""
        try:
            match step:
                case Raise():
                    self._raise(step, seen, now)
                case Lower():
                    size = self.node_group.lower(seen.group, step.number)
                    self.say(f"{seen.group.desired} -> {size} nodes: nothing needs the rest")
                case Note():
                    self._note(step, seen, now)
                case Answer():
                    self._answer(step.request)
                case Mark():
                    self._mark(step, now)
                case Remove():
                    self._remove(step, now)
                case Discard():
                    # Also if the answer is lost: a second time would shrink the group twice.
                    self._discarded[step.instance] = now
                    self.node_group.terminate(step.instance)
                    self.say(f"terminated {step.instance}, no node since {stamp(step.since)}")
        except Exception as error:
            self.say(f"{type(step).__name__.lower()} failed: {type(error).__name__}: {error}")
            return False
        return True

    def _raise(self, step: Raise, seen: Observation, now: datetime) -> None:
        self.node_group.resize(seen.group, step.number)
        for_whom = ", ".join(step.jobs) or "a user's request"
        text = f"{seen.group.desired} -> {step.number} nodes, for {for_whom}"
        self.say(text)
        for job in seen.jobs:
            if job["metadata"]["name"] in step.jobs:
                self._tell(dict(job), "NodesRequested", text, now)

    def _note(self, step: Note, seen: Observation, now: datetime) -> None:
        path = f"{JOBS.format(namespace=self.namespace)}/{step.job}"
        self.cluster.patch(path, {"metadata": {"annotations": dict(step.annotations)}})
        dropped = step.annotations.get(kubernetes.DROPPED)
        if dropped is None:
            return
        self.say(f"job {step.job} gets no more nodes: {dropped}")
        for job in seen.jobs:
            if job["metadata"]["name"] == step.job:
                self._tell(dict(job), "NodesDropped", dropped, now)

    def _answer(self, request: NodeRequest) -> None:
        path = REQUEST.format(namespace=self.namespace)
        self.cluster.patch(path, {"data": request.answer()})
        self.say(
            f"a user asks for {request.nodes} nodes"
            + (f"; dropped: {request.dropped}" if request.dropped else "")
        )

    def _mark(self, step: Mark, now: datetime) -> None:
        changes: Json = {"metadata": {"annotations": dict(step.annotations)}}
        if step.unschedulable is not None:
            changes["spec"] = {"unschedulable": step.unschedulable or None}
        self.cluster.patch(f"{NODES}/{step.node}", changes)
        if step.unschedulable is not None:
            done = "cordoned: about to be removed" if step.unschedulable else "uncordoned: stays"
            self.say(f"node {step.node} {done}")
            self._tell(_node(step.node), "NodeCordoned", done, now)

    def _remove(self, step: Remove, now: datetime) -> None:
        # Marked first: whatever fails afterwards, no instance is terminated twice.
        marks = {kubernetes.TERMINATING_SINCE: stamp(now)}
        self.cluster.patch(f"{NODES}/{step.node}", {"metadata": {"annotations": marks}})
        self.node_group.terminate(step.instance)
        text = f"terminated {step.instance}: {step.why}"
        self.say(f"node {step.node}: {text}")
        self._tell(_node(step.node), "NodeRemoved", text, now)

    def _tell(self, about: Json, reason: str, message: str, now: datetime) -> None:
        """Write an event; a failure to do so undoes nothing."""
        metadata = about["metadata"]
        namespace = metadata.get("namespace") or _OF_NODES
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
            self.say(f"no event: {error}")


def _node(name: str) -> Json:
    # kubectl describe node looks for events whose uid is the node's name, as the kubelet's are.
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": name}}
