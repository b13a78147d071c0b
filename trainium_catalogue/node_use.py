"""Which nodes of a cluster are usable and used, and which jobs wait for nodes.

The node scaler decides by these rules and the commands explain by them. Objects are JSON as
returned by the Kubernetes API.
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
_AGENTS_CONDITIONS = frozenset(
    {
        "AcceleratedHardwareReady",
        "ContainerRuntimeReady",
        "KernelReady",
        "NetworkingReady",
        "StorageReady",
    }
)
# Phases in which a job needs no more nodes, or none at all: volcano.sh/apis, batch/v1alpha1/job.go.
_NEEDS_NONE = frozenset(
    {"Completed", "Completing", "Terminated", "Terminating", "Aborted", "Aborting", "Failed"}
)


# --- nodes ---------------------------------------------------------------------------------------
def is_cordoned(node: Json) -> bool:
    """Tell whether the node accepts no new pods."""
    return bool((node.get("spec") or {}).get("unschedulable"))


def is_ready(node: Json) -> bool:
    """Tell whether the kubelet reports the node as ready."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def reported_fault(node: Json) -> str | None:
    """Return the fault that EKS's node monitoring agent reports of a node that is Ready.

    A condition that is not True is a fault, and the node is repaired 10 or 30 minutes later (EKS
    User Guide, automatic node repair).
    """
    for condition in (node.get("status") or {}).get("conditions") or ():
        if condition["type"] in _AGENTS_CONDITIONS and condition["status"] == "False":
            return f"has {condition['type']} False ({condition.get('reason', 'no reason given')})"
    return None


def why_unusable(node: Json, devices: Mapping[str, int]) -> str | None:
    """Explain why a job's pod could not run on the node; None if it could.

    A cordon does not count: the callers treat cordoned nodes differently.

    Args:
        node: The node.
        devices: Devices of a whole node of its type, see ``kubernetes.device_resources``.
    """
    if "deletionTimestamp" in node["metadata"]:
        return "is being deleted"
    if not is_ready(node):
        return "is not ready"
    offers = (node.get("status") or {}).get("allocatable") or {}
    for resource, number in devices.items():
        if int(offers.get(resource, 0)) < number:
            return f"offers {offers.get(resource, 0)} of {number} {resource}"
    return reported_fault(node)


def instance_of(node: Json) -> str | None:
    """Id of a node's EC2 instance: the end of ``aws:///us-west-2d/i-...``."""
    return str((node.get("spec") or {}).get("providerID") or "").rpartition("/")[2] or None


# --- pods on nodes -------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class PodsOfNode:
    """Pods that occupy a node, as ``namespace/name``."""

    users: tuple[str, ...] = ()
    """Pods that run, start or end: they keep the node."""
    stuck: tuple[str, ...] = ()
    """Pods that should have ended: their kubelet does not answer, or cannot end them."""


def pods_of_nodes(pods: Iterable[Json], *, now: datetime) -> dict[str, PodsOfNode]:
    """Find the pods that occupy nodes, by the node's name.

    Every pod that has not ended counts, including those of other namespaces; pods that every node
    has (DaemonSets, the kubelet's own) do not.
    """
    found: dict[str, tuple[list[str], list[str]]] = {}
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if node and _occupies(pod):
            metadata = pod["metadata"]
            users, stuck = found.setdefault(node, ([], []))
            name = f"{metadata.get('namespace')}/{metadata['name']}"
            (stuck if is_stuck(pod, now=now) else users).append(name)
    return {
        node: PodsOfNode(users=tuple(users), stuck=tuple(stuck))
        for node, (users, stuck) in found.items()
    }


def created_at(entry: Json) -> datetime | None:
    """Read an object's time of creation."""
    return _time(entry["metadata"].get("creationTimestamp"))


def is_stuck(pod: Json, *, now: datetime) -> bool:
    """Tell whether a terminating pod is past its grace period.

    The API server sets ``deletionTimestamp`` to the time at which the grace period ends
    (Kubernetes API reference, ObjectMeta).
    """
    return (ends := _time(pod["metadata"].get("deletionTimestamp"))) is not None and now > ends


def _occupies(pod: Json) -> bool:
    metadata = pod["metadata"]
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return False
    owners = metadata.get("ownerReferences") or ()
    if any(owner.get("kind") == "DaemonSet" for owner in owners):
        return False
    return _MIRROR not in (metadata.get("annotations") or {})


# --- jobs that wait ------------------------------------------------------------------------------
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
    created: datetime | None = None
    held_since: datetime | None = None
    failed_nodes: tuple[datetime, ...] = ()
    dropped: str | None = None


def waits_of(jobs: Iterable[Json], pods: Iterable[Json], *, now: datetime) -> list[Wait]:
    """Volcano jobs with fewer pods on nodes than they need, oldest first.

    For a job that waits for its compile job only the larger need counts, since they run in turn.
    """
    alive = {job["metadata"]["name"]: job for job in jobs if _phase(job) not in _NEEDS_NONE}
    placed = Counter(
        name
        for pod in pods
        if (name := _annotations(pod).get(_JOB_NAME)) and _has_place(pod, now=now)
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
            found.append(_wait(job, missing=missing, size=size))
    return found


def _wait(job: Json, *, missing: int, size: int) -> Wait:
    notes = _annotations(job)
    failed = (_time(each) for each in notes.get(kubernetes.FAILED_NODES, "").split(","))
    return Wait(
        job=job["metadata"]["name"],
        missing=missing,
        size=size,
        scales=notes.get(kubernetes.SCALE) == "true",
        created=_time(job["metadata"].get("creationTimestamp")),
        held_since=_time(notes.get(kubernetes.HELD_SINCE)),
        failed_nodes=tuple(each for each in failed if each is not None),
        dropped=notes.get(kubernetes.DROPPED),
    )


def _has_place(pod: Json, *, now: datetime) -> bool:
    """Tell whether a pod needs no further node: it has one, or it finished before its peers."""
    if not pod["spec"].get("nodeName") or is_stuck(pod, now=now):
        return False
    return (pod.get("status") or {}).get("phase") != "Failed"


def _size(job: Json) -> int:
    return sum(int(task.get("replicas", 1)) for task in job["spec"].get("tasks") or ())


def _phase(job: Json) -> str:
    return str(((job.get("status") or {}).get("state") or {}).get("phase") or "")


def _annotations(entry: Json) -> Mapping[str, str]:
    return entry["metadata"].get("annotations") or {}


def _age(job: Json) -> tuple[str, str]:
    return str(job["metadata"].get("creationTimestamp")), job["metadata"]["name"]


# --- a user's request for nodes ------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRequest:
    """The contents of the ConfigMap ``node-request``.

    A user writes the number and an id; the node scaler answers with the time at which it first
    read that id, and with the reason if it drops the request.
    """

    id: str
    nodes: int
    since: datetime | None = None
    """Time of the node scaler's answer; None before it."""
    failed_nodes: tuple[datetime, ...] = ()
    dropped: str | None = None

    @classmethod
    def read(cls, config_map: Json) -> NodeRequest | None:
        """Read the ConfigMap; None if nobody has asked yet, or for something that is no number."""
        data = config_map.get("data") or {}
        number = str(data.get("nodes", ""))
        if not (number.isascii() and number.isdigit() and len(number) < 6 and data.get("id")):
            return None
        answered = data.get("answered") == data["id"]
        failed = (_time(each) for each in str(data.get("failedNodes") or "").split(","))
        return cls(
            id=str(data["id"]),
            nodes=int(number),
            since=_time(data.get("since")) if answered else None,
            failed_nodes=tuple(each for each in failed if each is not None) if answered else (),
            dropped=(data.get("dropped") or None) if answered else None,
        )

    def answer(self) -> dict[str, str | None]:
        """Return the fields that the node scaler writes."""
        return {
            "answered": self.id,
            "since": None if self.since is None else stamp(self.since),
            "failedNodes": ",".join(stamp(each) for each in self.failed_nodes) or None,
            "dropped": self.dropped,
        }


# --- times in annotations ------------------------------------------------------------------------
def stamp(moment: datetime) -> str:
    """Format a time for an annotation."""
    return moment.astimezone(UTC).strftime(_TIME)


def marked_since(node: Json, annotation: str) -> datetime | None:
    """Read the time in an annotation; None if it is missing or holds something else."""
    return _time(_annotations(node).get(annotation))


def _time(text: object) -> datetime | None:
    try:
        return datetime.strptime(str(text), _TIME).replace(tzinfo=UTC)
    except ValueError:
        return None


def goes_at(node: Json, idle: timedelta) -> datetime | None:
    """Earliest time at which the node scaler removes an idle node; None for one in use."""
    since = marked_since(node, kubernetes.IDLE_SINCE)
    return None if since is None else since + idle
