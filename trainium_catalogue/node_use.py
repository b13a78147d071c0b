"""State of a cluster's nodes (usable, in use) and of the jobs that wait for nodes.

Shared by the node scaler, which acts on it, and the commands, which explain it. Objects are JSON as
returned by the Kubernetes API.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from trainium_catalogue import kubernetes
from trainium_catalogue.contract import ZONE_PATIENCE_MINUTES
from trainium_catalogue.exit_codes import ExitCode

Json = Mapping[str, Any]

JOIN_S = 1200.0
"""Seconds after which EKS reports that instances failed to join."""
UNUSABLE_S = 600.0
"""Timeout of an unusable node; longer than a reboot or a new node's plugin registration."""
CORDON_S = 20.0
"""Seconds from cordon to removal; enough for the node scaler to recheck the node."""
MAX_FAILED_NODES = 2
"""Failures, each of one or more added nodes, after which a request for nodes is dropped."""
KILL_S = 60.0
"""Seconds after the grace period in which the kubelet, which sends SIGKILL only then (Kubernetes,
Pod Lifecycle), can end the processes and unmount the volumes; the number is this project's choice.
"""
UNFIT = "has a host that a job found unfit"
"""Why a node with an unfit host is unusable."""
_TIME = "%Y-%m-%dT%H:%M:%SZ"
# Annotation of a pod created by the kubelet (Kubernetes, static pods).
_MIRROR = "kubernetes.io/config.mirror"
_JOB_NAME = "volcano.sh/job-name"
_MINUTES = re.compile(r"[0-9]{1,6}")
_AGENT_CONDITIONS = frozenset(
    {
        "AcceleratedHardwareReady",
        "ContainerRuntimeReady",
        "KernelReady",
        "NetworkingReady",
        "StorageReady",
    }
)
# Phases in which a job needs no more nodes: volcano.sh/apis, batch/v1alpha1/job.go.
_ENDED_PHASES = frozenset(
    {"Completed", "Completing", "Terminated", "Terminating", "Aborted", "Aborting", "Failed"}
)


# --- nodes ---------------------------------------------------------------------------------------
def is_cordoned(node: Json) -> bool:
    """Return whether the node accepts no new pods."""
    return bool((node.get("spec") or {}).get("unschedulable"))


def is_ready(node: Json) -> bool:
    """Return whether the kubelet reports the node as ready."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def is_unfit(node: Json) -> bool:
    """Return whether the node scaler has marked the node's host as unfit."""
    return kubernetes.UNFIT_SINCE in _annotations(node)


def unfit_nodes(nodes: Iterable[Json], pods: Iterable[Json]) -> set[str]:
    """Return the nodes whose host a job found unfit, by the exit codes of their pods."""
    known = {node["metadata"]["name"]: created_at(node) for node in nodes}
    found = set()
    for pod in pods:
        name = pod["spec"].get("nodeName")
        if name not in known or _JOB_NAME not in _annotations(pod):
            continue
        for container in (pod.get("status") or {}).get("containerStatuses") or ():
            ended = (container.get("state") or {}).get("terminated") or {}
            if ended.get("exitCode") != ExitCode.UNFIT_HOST:
                continue
            # A failed pod may outlive its node, whose name a new node may reuse.
            at, created = _time(ended.get("finishedAt")), known[name]
            if at is not None and (created is None or at >= created):
                found.add(name)
    return found


def reported_fault(node: Json) -> str | None:
    """Return the fault that EKS's node monitoring agent reports for a Ready node, if any.

    A False condition is a fault, and the node is repaired 10 or 30 minutes later (EKS User Guide,
    automatic node repair).
    """
    for condition in (node.get("status") or {}).get("conditions") or ():
        if condition["type"] in _AGENT_CONDITIONS and condition["status"] == "False":
            return f"has {condition['type']}=False ({condition.get('reason', 'no reason')})"
    return None


def why_unusable(node: Json, devices: Mapping[str, int]) -> str | None:
    """Explain why a job's pod could not run on the node; None if it could.

    A cordon does not count: the callers treat cordoned nodes differently.

    Args:
        node: The node.
        devices: Devices of a node of its type, see ``kubernetes.device_resources``.
    """
    if "deletionTimestamp" in node["metadata"]:
        return "is being deleted"
    if is_unfit(node):
        return UNFIT
    if not is_ready(node):
        return "is not ready"
    offers = (node.get("status") or {}).get("allocatable") or {}
    for resource, number in devices.items():
        if int(offers.get(resource, 0)) < number:
            return f"offers {offers.get(resource, 0)} of {number} {resource}"
    return reported_fault(node)


def instance_of(node: Json) -> str | None:
    """Return the id of a node's EC2 instance: the end of ``aws:///us-west-2d/i-...``."""
    return str((node.get("spec") or {}).get("providerID") or "").rpartition("/")[2] or None


# --- pods on nodes -------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class PodsOfNode:
    """Pods that occupy a node, as ``namespace/name``."""

    users: tuple[str, ...] = ()
    """Pods that are starting, running or terminating: they keep the node in use."""
    stuck: tuple[str, ...] = ()
    """Pods that should have ended: their kubelet does not respond, or cannot end them."""


def pods_of_nodes(pods: Iterable[Json], *, now: datetime) -> dict[str, PodsOfNode]:
    """Return the pods that occupy nodes, by node name.

    Every unfinished pod in any namespace counts, except pods of DaemonSets and the kubelet's own.
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
    """Return an object's creation time."""
    return _time(entry["metadata"].get("creationTimestamp"))


def is_stuck(pod: Json, *, now: datetime) -> bool:
    """Return whether a terminating pod is well past its grace period.

    The API server sets ``deletionTimestamp`` to the time at which the grace period ends
    (Kubernetes API reference, ObjectMeta). Only then does the kubelet send SIGKILL.
    """
    ends = _time(pod["metadata"].get("deletionTimestamp"))
    return ends is not None and now > ends + timedelta(seconds=KILL_S)


def _occupies(pod: Json) -> bool:
    metadata = pod["metadata"]
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return False
    owners = metadata.get("ownerReferences") or ()
    if any(owner.get("kind") == "DaemonSet" for owner in owners):
        return False
    return _MIRROR not in (metadata.get("annotations") or {})


# --- jobs in several zones -----------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneAnnotations:
    """A job's annotations about the zones that it tries in order."""

    zone: str | None = None
    """Zone of its nodes; None for the first zone."""
    tried: tuple[str, ...] = ()
    """Zones that had no capacity for it."""
    short_since: datetime | None = None
    """Time from which its zone has had no capacity."""
    patience: timedelta = timedelta(minutes=ZONE_PATIENCE_MINUTES)
    """Time after which it moves to the next zone."""

    @classmethod
    def read(cls, job: Json) -> ZoneAnnotations:
        """Read a job's annotations."""
        notes = _annotations(job)
        minutes = notes.get(kubernetes.ZONE_PATIENCE, "")
        is_given = _MINUTES.fullmatch(minutes) is not None
        return cls(
            zone=notes.get(kubernetes.ZONE),
            tried=tuple(filter(None, notes.get(kubernetes.ZONES_TRIED, "").split(","))),
            short_since=_time(notes.get(kubernetes.SHORT_SINCE)),
            patience=timedelta(minutes=int(minutes) if is_given else ZONE_PATIENCE_MINUTES),
        )

    def current(self, zones: Collection[str]) -> str:
        """Return its zone, or the first if its zone no longer exists."""
        return next((zone for zone in zones if zone == self.zone), next(iter(zones)))

    def next(self, zones: Collection[str]) -> str | None:
        """Return the first zone not yet tried; None if there is none."""
        return next(
            (zone for zone in zones if zone not in (*self.tried, self.current(zones))), None
        )


# --- jobs that wait ------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingJob:
    """A job that lacks nodes to start or continue."""

    job: str
    """The waiting job itself, not its compile job."""
    missing: int
    size: int
    """Total number of nodes that it needs."""
    scales: bool
    """True if the node scaler should add the missing nodes."""
    created: datetime | None = None
    not_before: datetime | None = None
    """Start of its reserved capacity."""
    held_since: datetime | None = None
    failed_nodes: tuple[datetime, ...] = ()
    dropped: str | None = None
    run: str = ""
    """Run whose nodes its current pods select; empty without a selector."""
    placed: tuple[str, ...] = ()
    """Nodes of the scheduled pods."""
    zones: ZoneAnnotations = ZoneAnnotations()


def waiting_jobs(jobs: Iterable[Json], pods: Iterable[Json], *, now: datetime) -> list[WaitingJob]:
    """Return the Volcano jobs with fewer pods on nodes than they need, oldest first.

    A job and its compile job run one after the other, so only the larger of the two counts.
    """
    alive = {job["metadata"]["name"]: job for job in jobs if not has_ended(job)}
    placed: dict[str, list[str]] = {}
    for pod in pods:
        if (name := _annotations(pod).get(_JOB_NAME)) and _has_place(pod, now=now):
            placed.setdefault(name, []).append(pod["spec"]["nodeName"])
    after = {name: _annotations(job).get(kubernetes.AFTER) for name, job in alive.items()}
    followed = {other for other in after.values() if other in alive}
    found = []
    for name, job in sorted(alive.items(), key=lambda item: _creation_key(item[1])):
        if name in followed:
            continue
        chain = [name, *([other] if (other := after[name]) in alive else [])]
        size = max(_size(alive[each]) for each in chain)
        places = tuple(node for each in chain for node in placed.get(each, ()))
        if size > len(places):
            run = selected_run(alive[chain[-1]])
            found.append(_waiting_job(job, placed=places, size=size, run=run))
    return found


def has_ended(job: Json) -> bool:
    """Return whether a job needs no more nodes."""
    return _phase(job) in _ENDED_PHASES


def recently_left_zone(job: Json, *, since: datetime) -> str | None:
    """Return the zone that a job has left since ``since``, if any."""
    zone, _, text = _annotations(job).get(kubernetes.ZONE_LEFT, "").partition("=")
    at = _time(text)
    return zone if at is not None and at >= since else None


def labels_of(job: Json) -> Mapping[str, str]:
    """Return the labels of a job; jobs of `torchx run` have them only on their pods."""
    tasks: Sequence[Json] = job["spec"].get("tasks") or ()
    templates = [task.get("template") or {} for task in tasks[:1]]
    described = [*(each.get("metadata") or {} for each in templates), job["metadata"]]
    return {name: text for each in described for name, text in (each.get("labels") or {}).items()}


def selected_run(job: Json) -> str:
    """Return the run whose nodes a job's pods select; empty without a selector."""
    for task in job["spec"].get("tasks") or ():
        spec = (task.get("template") or {}).get("spec") or {}
        return str((spec.get("nodeSelector") or {}).get(kubernetes.LABEL_RUN, ""))
    return ""


def _waiting_job(job: Json, *, placed: tuple[str, ...], size: int, run: str) -> WaitingJob:
    notes = _annotations(job)
    failed = (_time(each) for each in notes.get(kubernetes.FAILED_NODES, "").split(","))
    return WaitingJob(
        job=job["metadata"]["name"],
        missing=size - len(placed),
        size=size,
        scales=notes.get(kubernetes.SCALE) == "true",
        created=_time(job["metadata"].get("creationTimestamp")),
        not_before=_time(notes.get(kubernetes.NOT_BEFORE)),
        held_since=_time(notes.get(kubernetes.HELD_SINCE)),
        failed_nodes=tuple(each for each in failed if each is not None),
        dropped=notes.get(kubernetes.DROPPED),
        run=run,
        placed=placed,
        zones=ZoneAnnotations.read(job),
    )


def _has_place(pod: Json, *, now: datetime) -> bool:
    """Return whether a pod has a node and neither failed nor is stuck; a finished pod counts."""
    if not pod["spec"].get("nodeName") or is_stuck(pod, now=now):
        return False
    return (pod.get("status") or {}).get("phase") != "Failed"


def _size(job: Json) -> int:
    return sum(int(task.get("replicas", 1)) for task in job["spec"].get("tasks") or ())


def _phase(job: Json) -> str:
    return str(((job.get("status") or {}).get("state") or {}).get("phase") or "")


def _annotations(entry: Json) -> Mapping[str, str]:
    return entry["metadata"].get("annotations") or {}


def _creation_key(job: Json) -> tuple[str, str]:
    return str(job["metadata"].get("creationTimestamp")), job["metadata"]["name"]


# --- a user's request for nodes ------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRequest:
    """The contents of the ConfigMap ``node-request``.

    A user writes the number and an id; the node scaler adds the time at which it first read the id,
    and the reason if it drops the request.
    """

    id: str
    nodes: int
    since: datetime | None = None
    """Time at which the node scaler first read the request; None until then."""
    failed_nodes: tuple[datetime, ...] = ()
    dropped: str | None = None

    @classmethod
    def read(cls, config_map: Json) -> NodeRequest | None:
        """Read the ConfigMap; None if there is no valid request."""
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
    """Return the time in an annotation; None if it is missing or invalid."""
    return _time(_annotations(node).get(annotation))


def _time(text: object) -> datetime | None:
    try:
        return datetime.strptime(str(text), _TIME).replace(tzinfo=UTC)
    except ValueError:
        return None


def removal_time(node: Json, idle: timedelta) -> datetime | None:
    """Return the earliest time at which an idle node is removed; None for a node in use."""
    since = marked_since(node, kubernetes.IDLE_SINCE)
    return None if since is None else since + idle
