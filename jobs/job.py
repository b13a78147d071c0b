"""Data classes of jobs: requested, running or ended, on either orchestrator."""

from __future__ import annotations

import getpass
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated

from jobs.errors import Refusal
from trainium_catalogue import contract
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.documents import Keywords, Positive
from trainium_catalogue.node_use import stamp
from trainium_catalogue.parameters.parameter import Value, flag_value
from trainium_catalogue.wording import counted
from trainium_catalogue.workloads import Hardware

JobStatus = Annotated[
    str,
    Keywords(
        enum=["SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING", "SUCCEEDED", "FAILED"]
    ),
]
"""Status of a job, in Batch's terms on both orchestrators."""
ENDED = frozenset({"SUCCEEDED", "FAILED"})
ON_HOSTS = frozenset({"STARTING", "RUNNING"})
LAUNCHER_VERDICT = re.compile(r"^launch: exit [1-9]\d* \([^)]*\): ")
"""Start of the last log line of a failed node; the reason follows."""
LAUNCHER_LAST_LINE = re.compile(r"^launch: exit \d+ \(")
"""Start of the last log line of a node whose launcher ran to completion."""

STOPPED = re.compile(r"stopped by (?P<user>.*) with jobs (stop|down)")
"""Reason that `jobs stop` and `jobs down` record on a job."""
COMPILE_TIME_LIMIT_HOURS = 6.0
"""Time limit of a compile job, unless the training job's is shorter."""
ESTIMATE_NOTE = "estimate, list price; check your account"
_ENDED_RESERVATIONS = frozenset({"expired", "cancelled", "failed", "payment-failed", "unsupported"})
"""Final states of a reservation (EC2 API reference, CapacityReservation)."""
BLOCK_LEAD = timedelta(minutes=40)
"""Time before the end of a Capacity Block at which jobs save and stop. EC2 begins to terminate its
instances 30 minutes before the end, and sends a warning 40 minutes before it
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-using.html and
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-monitor.html)."""


NO_CAPACITY = "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY"
"""Part of the status reason of a job that lacks capacity in its zone, both waiting and cancelled
(AWS Batch User Guide, jobs stuck in RUNNABLE due to capacity)."""

LARGE_JOB_PARTS = 17
"""Minimum size of a large job, of which only some parts are shown and only some logs followed."""


class JobKind(StrEnum):
    """Kinds of jobs, by their parts."""

    NODES = "nodes"
    """Nodes of a multi-node job."""
    ARRAY = "array"
    """Children, each a container with a share of the work."""
    CONTAINER = "container"
    """One container."""

    @property
    def part(self) -> str:
        """Word for one part."""
        return "child" if self is JobKind.ARRAY else "node"

    def sized(self, count: int) -> str:
        """Format a number of parts."""
        if self is JobKind.CONTAINER:
            return "1 container"
        return f"array of {count}" if self is JobKind.ARRAY else counted(count, "node")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Kind and size of a job."""

    kind: JobKind
    size: int

    @property
    def is_large(self) -> bool:
        """True if it has too many parts to show each."""
        return self.size >= LARGE_JOB_PARTS

    def part_ids(self, job_id: str) -> list[str]:
        """Return the job ids of the nodes or children; none if the job has no parts."""
        if self.kind is JobKind.CONTAINER:
            return []
        separator = ":" if self.kind is JobKind.ARRAY else "#"
        return [f"{job_id}{separator}{index}" for index in range(self.size)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One job in a list of runs."""

    run: str
    job_id: str
    status: JobStatus
    status_reason: str | None
    created_at_ms: int
    started_at_ms: int | None
    stopped_at_ms: int | None
    num_nodes: int | None
    """Number of nodes; for an array job, of children; 1 for other CPU jobs; null if not listed."""
    hardware: Hardware
    orchestrator: Orchestrator = Orchestrator.BATCH
    exit_code: int | None = None
    """Exit code of an ended container; None if the list lacks it."""
    zone: str | None = None
    """Zone id of its nodes; None with a single zone."""

    @property
    def shape(self) -> Shape | None:
        """Kind and size; None if the list lacks them."""
        if self.num_nodes is None or (self.hardware is Hardware.CPU and self.num_nodes < 2):
            return None
        kind = JobKind.ARRAY if self.hardware is Hardware.CPU else JobKind.NODES
        return Shape(kind=kind, size=self.num_nodes)

    @property
    def ended(self) -> bool:
        """True in a final state."""
        return self.status in ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt of a job, or of one of its nodes."""

    number: Positive
    exit_code: int | None
    reason: str | None
    """Why the container ended, from ECS, Kubernetes or the last line of a pod's launcher."""
    status_reason: str | None
    """Why the attempt ended, according to Batch, or why the pod did, according to Kubernetes."""
    log_stream: str | None
    """Log stream in the log group."""
    started_at_ms: int | None
    stopped_at_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLog:
    """The log stream of one node in one attempt."""

    name: str
    node: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of a multi-node job, a child of an array job, or a job's only container."""

    index: int
    status: str
    status_reason: str | None
    attempts: tuple[Attempt, ...]
    name: str | None = None
    """Name of its pod; None on Batch."""

    @property
    def last(self) -> Attempt | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None


@dataclass(frozen=True, kw_only=True)
class ZonePosition:
    """A job's position among the zones of its deployment."""

    zone: str
    """Zone id."""
    next_zone: str | None
    """Zone that it moves to if it finds no capacity; None if it stays."""
    moves_after_ms: int | None
    """Deadline for finding capacity; None if it stays, or does not wait for capacity yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job with its nodes.

    A multi-node job has the status of its main node (node 0). Batch keeps an array job PENDING
    while its children run; here it has the status of its most advanced child.
    """

    job_id: str
    run: str
    workload: str | None
    status: str
    status_reason: str | None
    created_at_ms: int | None
    started_at_ms: int | None
    stopped_at_ms: int | None
    shape: Shape
    job_queue: str | None
    depends_on: tuple[str, ...]
    """Ids of jobs that must succeed first."""
    max_attempts: int | None
    """Maximum number of attempts; None if unknown."""
    attempts: tuple[Attempt, ...]
    """Finished attempts."""
    nodes: tuple[Node, ...]
    orchestrator: Orchestrator = Orchestrator.BATCH
    command: tuple[str, ...] = ()
    """Command of every node; empty if unknown."""
    time_limit_s: int | None = None
    """Time limit of an attempt; None if unknown."""
    zone_patience_minutes: int | None = None
    """Minutes that it may wait for capacity in a zone; None if it does not move."""
    request_digest: str | None = None
    """SHA-256 of the request that resubmits it, if it may move."""

    @property
    def ended(self) -> bool:
        """True in a final state."""
        return self.status in ENDED

    @property
    def succeeded(self) -> bool:
        """True if the main node, or every child of an array, exited with 0."""
        return self.status == "SUCCEEDED"

    @property
    def waits_unexplained(self) -> bool:
        """True if its status does not explain why it waits.

        Always true for a waiting job on a cluster: the scheduler's messages name pods and nodes,
        but no remedies.
        """
        if self.orchestrator is Orchestrator.EKS:
            return self.status in ("RUNNABLE", "STARTING")
        return self.status == "RUNNABLE" and not self.status_reason

    @property
    def node_logs(self) -> list[NodeLog]:
        """Known log streams of its nodes."""
        return [
            NodeLog(name=attempt.log_stream, node=node.index, attempt=attempt.number)
            for node in self.nodes
            for attempt in node.attempts
            if attempt.log_stream
        ]

    @property
    def was_stopped(self) -> bool:
        """True if `jobs stop` or `jobs down` ended it."""
        return self.status == "FAILED" and bool(STOPPED.fullmatch(self.status_reason or ""))

    @property
    def lacked_capacity(self) -> bool:
        """True if it was cancelled before its start because its zone had no capacity."""
        is_cancelled = self.status == "FAILED" and not self.attempts
        return is_cancelled and NO_CAPACITY in (self.status_reason or "")

    @property
    def num_nodes(self) -> int:
        """Number of nodes or children, or 1."""
        return self.shape.size

    @property
    def hardware(self) -> Hardware:
        """Hardware of its nodes."""
        return Hardware.TRAINIUM if self.shape.kind is JobKind.NODES else Hardware.CPU

    @property
    def ending(self) -> Attempt | None:
        """The attempt that decided the outcome, if known."""
        if self.attempts:
            return self.attempts[-1]
        node = self.nodes[0] if self.nodes else None
        if self.shape.kind is JobKind.ARRAY:
            node = next((node for node in self.nodes if node.status == "FAILED"), node)
        return node.last if node else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Meaning and remedy of a reason."""

    meaning: str
    remedy: str
    pattern: str = ""
    """In a table: shell pattern of a ``statusReason`` or a container's ``reason``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityWindow:
    """The period in which a Capacity Block or reservation provides a deployment's instances."""

    name: str
    is_block: bool
    state: str
    num_instances: int
    num_free: int
    starts: datetime
    ends: datetime | None
    """End; None for an unlimited reservation."""

    def __str__(self) -> str:
        kind = "Capacity Block" if self.is_block else "capacity reservation"
        return f"{kind} {self.name}"

    @property
    def stop_at(self) -> datetime | None:
        """Time when its jobs stop; None if its instances keep running, as in a reservation."""
        # "Instances running in the reserved capacity continue running until you stop them"
        # (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CancelCapacityReservation.html)
        return self.ends - BLOCK_LEAD if self.is_block and self.ends is not None else None

    def has_ended(self, now: datetime) -> bool:
        """Return whether it can no longer launch instances."""
        return self.state in _ENDED_RESERVATIONS or (self.ends is not None and self.ends < now)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """One submission of a workload."""

    run: str
    workload: str
    num_nodes: int
    """Number of nodes; for a CPU workload, children of an array job, or 1."""
    time_limit_hours: float
    deployment: str
    job_queue: str
    """ARN in Batch, or name of the Volcano queue."""
    job_definition: str | None
    """ARN in Batch; None on EKS."""
    usd_per_node_hour: float
    hardware: Hardware = Hardware.TRAINIUM
    orchestrator: Orchestrator = Orchestrator.BATCH
    parameters: Mapping[str, Value] = field(default_factory=dict)
    depends_on: tuple[str, ...] = ()
    """Ids of jobs that must succeed first."""
    program_argv: tuple[str, ...] = ()
    """Arguments of a user's own program."""
    scales: bool = False
    """On EKS: add missing nodes to the cluster."""
    window: CapacityWindow | None = None
    """Reserved capacity that it runs in, if the deployment has any."""
    zone_patience_minutes: int | None = None
    """Minutes that it may wait for capacity in each of several zones; None with one zone."""

    @property
    def time_limit_seconds(self) -> int:
        """Batch's ``attemptDurationSeconds``, which applies to each attempt."""
        return round(self.time_limit_hours * 3600)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that differ between submissions, the same on all nodes."""
        stop_at = None if self.window is None else self.window.stop_at
        return {
            contract.ENV_RUN: self.run,
            **({} if stop_at is None else {contract.ENV_STOP_AT: stamp(stop_at)}),
        }

    @property
    def usd_at_time_limit(self) -> float:
        """Estimated cost of one attempt that reaches its time limit."""
        return self.num_nodes * self.time_limit_hours * self.usd_per_node_hour

    def command(self) -> list[str]:
        """Build the command of every node."""
        command = contract.launch_command(self.workload)
        for name, value in self.parameters.items():
            text = flag_value(value)
            # As a separate argument, it would be parsed as the next parameter.
            command += [f"--{name}={text}"] if text.startswith("--") else [f"--{name}", text]
        if self.program_argv:
            command += [contract.ARGV_MARK, *self.program_argv]
        return command


def ready_ms(describe: Callable[[str], Job | None], job: Job) -> int | None:
    """Return when the last of a job's dependencies ended, 0 if there are none; None until then."""
    others = [other for each in job.depends_on if (other := describe(each)) is not None]
    if any(not other.ended for other in others):
        return None
    return max((other.stopped_at_ms or 0 for other in others), default=0)


def stop_reason(command: str) -> str:
    """Build the reason recorded on a job that a command stops."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user id has no name, as in some containers
        user = "an unknown user"
    return f"stopped by {user} with jobs {command}"


def valid_run_name(run: str) -> str:
    """Refuse a name that cannot be both a Batch job name and a prefix in the bucket."""
    if re.fullmatch(contract.RUN_NAME_PATTERN, run):
        return run
    nearest = re.sub(r"[^A-Za-z0-9_-]+", "-", run).lstrip("-_")[:100].rstrip("-_")
    hint = f"; for example {nearest!r}" if nearest else ""
    raise Refusal(
        "run-name",
        f"{run!r} is not a valid run name: use 1 to 100 letters, digits, hyphens and underscores, "
        f"starting with a letter or digit{hint}",
    )


def compile_run(run: str) -> str:
    """Return the name of the compile run for ``run``; refuse one that would be too long."""
    return valid_run_name(f"{run}-compile")


def find_explanation(table: Iterable[Explanation], reason: str | None) -> Explanation | None:
    """Find the first explanation whose pattern matches a reason; None if none does."""
    matches = (item for item in table if reason and fnmatchcase(reason, item.pattern))
    return next(matches, None)
