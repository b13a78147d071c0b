"""Pods that use a cluster's nodes, and jobs that wait for nodes: the rules for scaling in.

Objects are JSON as returned by the Kubernetes API.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from trainium_catalogue import kubernetes

Json = Mapping[str, Any]

_TIME = "%Y-%m-%dT%H:%M:%SZ"
# Annotation of a pod that the kubelet made by itself (Kubernetes, static pods).
_MIRROR = "kubernetes.io/config.mirror"
_JOB_NAME = "volcano.sh/job-name"
# Phases in which a job needs no more nodes, or none at all: volcano.sh/apis, batch/v1alpha1/job.go.
_NEEDS_NONE = frozenset(
    {"Completed", "Completing", "Terminated", "Terminating", "Aborted", "Aborting", "Failed"}
)


def users_of_nodes(pods: Iterable[Json]) -> dict[str, list[str]]:
    """Pods that keep a node busy, as ``namespace/name``, by the node's name.

    Every pod that has not ended counts, including terminating pods and those of other namespaces;
    pods that every node has (DaemonSets, the kubelet's own) do not.
    """
    found: dict[str, list[str]] = {}
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if node and _keeps_busy(pod):
            metadata = pod["metadata"]
            found.setdefault(node, []).append(f"{metadata.get('namespace')}/{metadata['name']}")
    return found


def _keeps_busy(pod: Json) -> bool:
    metadata = pod["metadata"]
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return False
    owners = metadata.get("ownerReferences") or ()
    if any(owner.get("kind") == "DaemonSet" for owner in owners):
        return False
    return _MIRROR not in (metadata.get("annotations") or {})


def instance_of(node: Json) -> str | None:
    """Id of a node's EC2 instance: the end of ``aws:///us-west-2d/i-...``."""
    return str((node.get("spec") or {}).get("providerID") or "").rpartition("/")[2] or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nodes that a job lacks before it can begin or continue."""

    job: str
    """The job that waits; for a job with a compile job, the job itself."""
    missing: int
    size: int
    """Total nodes that it takes."""
    scales: bool
    """True if the job asks the node scaler for the nodes that it lacks."""


def waits_of(jobs: Iterable[Json], pods: Iterable[Json]) -> list[Wait]:
    """Volcano jobs with fewer pods on nodes than they need, oldest first.

    For a job that waits for its compile job only the larger need counts, since they run in turn.
    """
    alive = {job["metadata"]["name"]: job for job in jobs if _phase(job) not in _NEEDS_NONE}
    placed = Counter(
        name for pod in pods if (name := _annotations(pod).get(_JOB_NAME)) and _has_place(pod)
    )
    after = {name: _annotations(job).get(kubernetes.AFTER) for name, job in alive.items()}
    followed = {other for other in after.values() if other in alive}
    found = []
    for name, job in sorted(alive.items(), key=lambda item: _age(item[1])):
        if name in followed:
            continue
        chain = [name, *([other] if (other := after[name]) in alive else [])]
        size = max(_size(alive[each]) for each in chain)
        missing = size - sum(placed[each] for each in chain)
        if missing > 0:
            scales = _annotations(job).get(kubernetes.SCALE) == "true"
            found.append(Wait(job=name, missing=missing, size=size, scales=scales))
    return found


def _has_place(pod: Json) -> bool:
    """Tell whether a pod needs no further node: it has one, or it finished before its peers."""
    return bool(pod["spec"].get("nodeName")) and (pod.get("status") or {}).get("phase") != "Failed"


def _size(job: Json) -> int:
    return sum(int(task.get("replicas", 1)) for task in job["spec"].get("tasks") or ())


def _phase(job: Json) -> str:
    return str(((job.get("status") or {}).get("state") or {}).get("phase") or "")


def _annotations(entry: Json) -> Mapping[str, str]:
    return entry["metadata"].get("annotations") or {}


def _age(job: Json) -> tuple[str, str]:
    return str(job["metadata"].get("creationTimestamp")), job["metadata"]["name"]


# --- times on nodes ------------------------------------------------------------------------------
def stamp(moment: datetime) -> str:
    """Format a time for an annotation."""
    return moment.astimezone(UTC).strftime(_TIME)


def marked_since(node: Json, annotation: str) -> datetime | None:
    """Read the time in an annotation; None if it is missing or holds something else."""
    try:
        return datetime.strptime(_annotations(node)[annotation], _TIME).replace(tzinfo=UTC)
    except (KeyError, ValueError):
        return None


def goes_at(node: Json, idle: timedelta) -> datetime | None:
    """Earliest time at which the node scaler removes an idle node; None for one in use."""
    since = marked_since(node, kubernetes.IDLE_SINCE)
    return None if since is None else since + idle
