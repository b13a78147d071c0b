"""A round: read, decide, act, and report in the log and in the cluster's events."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from node_scaler.cluster import Cluster
from node_scaler.group import NodeGroup
from node_scaler.plan import Discard, Mark, Raise, Remove, Rules, ScalingStep, Seen, plan, strangers
from trainium_catalogue import kubernetes
from trainium_catalogue.node_use import stamp

Json = dict[str, Any]

NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/{namespace}/jobs"
EVENTS = "/api/v1/namespaces/{namespace}/events"
_OF_NODES = "default"
"""Namespace for events about cluster-scoped objects (kubernetes/client-go, tools/events)."""


@dataclass(slots=True, kw_only=True)
class Scaler:
    """Scales one node group of one cluster."""

    cluster: Cluster
    node_group: NodeGroup
    namespace: str
    """Namespace of the jobs."""
    rules: Rules
    say: Callable[[str], None]
    _said: str = field(default="", init=False)
    _strangers: dict[str, datetime] = field(default_factory=dict, init=False)

    def round(self, now: datetime) -> int:
        """Do one round; returns the number of failed steps."""
        # All nodes: the group knows its own, and a label could have been removed.
        nodes = self.cluster.items(NODES)
        # In this order: a pod created in between is seen, and keeps its node.
        jobs = self.cluster.items(JOBS.format(namespace=self.namespace))
        pods = self.cluster.items(PODS)
        group = self.node_group.read()
        self._strangers = strangers(nodes, group, self._strangers, now=now)
        seen = Seen(nodes=nodes, pods=pods, jobs=jobs, group=group, strangers=self._strangers)
        decided = plan(seen, self.rules, now=now)
        if decided.summary != self._said:
            self.say(decided.summary)
            self._said = decided.summary
        return sum(not self._done(step, seen, now) for step in decided.steps)

    def _done(self, step: ScalingStep, seen: Seen, now: datetime) -> bool:
        """Take a step; a failed one does not block the others, and is repeated next round."""
        try:
            match step:
                case Raise():
                    self._raise(step, seen, now)
                case Mark():
                    self._mark(step, now)
                case Remove():
                    self._remove(step, now)
                case Discard():
                    self.node_group.terminate(step.instance)
                    self.say(f"terminated {step.instance}, no node since {stamp(step.since)}")
        except Exception as error:
            self.say(f"{type(step).__name__.lower()} failed: {type(error).__name__}: {error}")
            return False
        return True

    def _raise(self, step: Raise, seen: Seen, now: datetime) -> None:
        self.node_group.resize(seen.group, step.number)
        text = f"{seen.group.desired} -> {step.number} nodes, for {', '.join(step.jobs)}"
        self.say(text)
        for job in seen.jobs:
            if job["metadata"]["name"] in step.jobs:
                self._tell(dict(job), "NodesRequested", text, now)

    def _mark(self, step: Mark, now: datetime) -> None:
        changes: Json = {"metadata": {"annotations": dict(step.annotations)}}
        if step.unschedulable is not None:
            changes["spec"] = {"unschedulable": step.unschedulable or None}
        self.cluster.patch(f"{NODES}/{step.node}", changes)
        if step.unschedulable is not None:
            done = "cordoned: idle, about to go" if step.unschedulable else "uncordoned: stays"
            self.say(f"node {step.node} {done}")
            self._tell(_node(step.node), "IdleNode", done, now)

    def _remove(self, step: Remove, now: datetime) -> None:
        # Marked first: whatever fails afterwards, no instance is terminated twice.
        marks = {kubernetes.ENDS_SINCE: stamp(now)}
        self.cluster.patch(f"{NODES}/{step.node}", {"metadata": {"annotations": marks}})
        self.node_group.terminate(step.instance)
        text = f"terminated {step.instance}, idle since {stamp(step.idle_since)}"
        self.say(f"node {step.node}: {text}")
        self._tell(_node(step.node), "IdleNodeRemoved", text, now)

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
