"""What Kubernetes and Volcano report of a job, its gang and its pods beside their status: events.

Of a gang that it does not let in Volcano writes no more than an event (1.15.1, pkg/scheduler/
plugins/capacity and proportion, JobEnqueueable), of pods that it may not create as well
(FailedCreate), and the kubelet of volumes that it cannot mount (FailedMount).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jobs.eks.cluster import EVENTS, Cluster
from jobs.eks.pods import milliseconds

Json = Mapping[str, Any]

_HELD = ("Unschedulable", "FailedCreate", "PluginError", "PVCError", "PodGroupError")
_ON_NODES = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "Failed", "BackOff")
# Of every gang that waits, as often as the scheduler looks: it only counts the pods.
_NO_NEWS = "tasks in gang unschedulable"


def unschedulable(gang: Json) -> str | None:
    """Volcano's own words for why the pods of a PodGroup are not placed."""
    for condition in reversed((gang.get("status") or {}).get("conditions") or ()):
        if condition.get("type") == "Unschedulable" and condition.get("status") == "True":
            return str(condition.get("message"))
    return None


def why_held(cluster: Cluster, *names: str) -> str | None:
    """The newest reason for which a job has no pods."""
    return _newest(_events(cluster, names), _HELD)


def why_not_started(cluster: Cluster, *pods: str) -> str | None:
    """The newest reason for which pods that have a node do not run."""
    return _newest(_events(cluster, pods), _ON_NODES)


def _events(cluster: Cluster, names: Iterable[str]) -> list[Json]:
    return [
        event
        for name in names
        for event in cluster.items(EVENTS, fieldSelector=f"involvedObject.name={name}")
    ]


def _newest(events: Iterable[Json], reasons: Iterable[str]) -> str | None:
    wanted = set(reasons)
    news = [
        event
        for event in events
        if event.get("reason") in wanted and _NO_NEWS not in str(event.get("message"))
    ]
    last = max(news, key=_time, default=None)
    return None if last is None else " ".join(str(last.get("message")).split())


def _time(event: Json) -> int:
    # Recorders of events.k8s.io write eventTime, the others lastTimestamp.
    series = event.get("series") or {}
    times = event.get("lastTimestamp"), series.get("lastObservedTime"), event.get("eventTime")
    return max(milliseconds(time) or 0 for time in times)
