"""A job as values: requested, running or ended, on either orchestrator."""

from __future__ import annotations

import getpass
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated

from jobs.errors import Refusal
from trainium_catalogue import contract
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.documents import Keywords, Positive
from trainium_catalogue.parameters.parameter import Value, flag_value
from trainium_catalogue.workloads import Hardware

JobStatus = Annotated[
    str,
    Keywords(
        enum=["SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING", "SUCCEEDED", "FAILED"]
    ),
]
"""Status of a job, in Batch's words on both orchestrators."""
ENDED = frozenset({"SUCCEEDED", "FAILED"})
ON_HOSTS = frozenset({"STARTING", "RUNNING"})
LAUNCHERS_VERDICT = re.compile(r"^launch: exit [1-9]\d* \([^)]*\): ")
"""Start of the last log line of a failed node; the reason follows."""
LAUNCHERS_LAST_LINE = re.compile(r"^launch: exit \d+ \(")
"""Start of the last log line of a node whose launcher came to its end."""

STOPPED = re.compile(r"stopped by (?P<user>.*) with jobs (stop|down)")
"""Reason that `jobs stop` and `jobs down` record on a job."""
COMPILE_TIME_LIMIT_HOURS = 6.0
"""Time limit of a compile job, unless the training job's is shorter."""
ESTIMATE_NOTE = "estimate, list price; check your account"


class JobKind(StrEnum):
    """Kinds of parts that make up a job."""

    NODES = "nodes"
    """Nodes of a multi-node job."""
    ARRAY = "array"
    """Children, each a container with a share of the work."""
    CONTAINER = "container"
    """One container."""

    @property
    def part(self) -> str:
        """Name of one part."""
        return "child" if self is JobKind.ARRAY else "node"

    def sized(self, count: int) -> str:
        """Spell a number of parts."""
        if self is JobKind.CONTAINER:
            return "1 container"
        return f"array of {count}" if self is JobKind.ARRAY else counted(count, "node")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Kind and size of a job."""

    kind: JobKind
    size: int

    def part_ids(self, job_id: str) -> list[str]:
        """Return the job ids of the nodes or children; none if the job has no parts."""
        if self.kind is JobKind.CONTAINER:
            return []
        mark = ":" if self.kind is JobKind.ARRAY else "#"
        return [f"{job_id}{mark}{index}" for index in range(self.size)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One line of a list of runs."""

    run: str
    job_id: str
    status: JobStatus
    status_reason: str | None
    created_at_ms: int
    started_at_ms: int | None
    stopped_at_ms: int | None
    num_nodes: int | None
    """Children of an array job, 1 for another CPU job; None if Batch does not say."""
    hardware: Hardware
    orchestrator: Orchestrator = Orchestrator.BATCH
    exit_code: int | None = None
    """Exit code of a container that has ended; None if the list lacks it."""

    @property
    def shape(self) -> Shape | None:
        """Kind and size, if the list has them."""
        if self.num_nodes is None or (self.hardware is Hardware.CPU and self.num_nodes < 2):
            return None
        kind = JobKind.ARRAY if self.hardware is Hardware.CPU else JobKind.NODES
        return Shape(kind=kind, size=self.num_nodes)

    @property
    def ended(self) -> bool:
        """True if nothing more will happen."""
        return self.status in ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt of a job, or of one of its nodes."""

    number: Positive
    exit_code: int | None
    reason: str | None
    """Reason of ECS or Kubernetes for the container's end, or the last line of a pod's launcher."""
    status_reason: str | None
    """Reason of Batch for the attempt's end, or of Kubernetes for the pod's."""
    log_stream: str | None
    """Name in the log group."""
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
    """One node of a multi-node job, one child of an array job, or another job's container."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job with its nodes.

    A multi-node job has the status of its main node (node 0). Batch keeps an array job PENDING
    while its children run; here it has the status of the child that is furthest along.
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
    """Ids of jobs that have to succeed first."""
    max_attempts: int | None
    """Limit of attempts; None if Batch does not say."""
    attempts: tuple[Attempt, ...]
    """Finished attempts."""
    nodes: tuple[Node, ...]
    orchestrator: Orchestrator = Orchestrator.BATCH
    command: tuple[str, ...] = ()
    """Command of every node; empty if unknown."""

    @property
    def ended(self) -> bool:
        """True if nothing more will happen."""
        return self.status in ENDED

    @property
    def succeeded(self) -> bool:
        """True if the main node exited with 0; for an array, if every child did."""
        return self.status == "SUCCEEDED"

    @property
    def waits_unexplained(self) -> bool:
        """True if somebody should find out why it does not run.

        Always for a waiting job on a cluster: its scheduler's messages are about pods and nodes,
        not about remedies.
        """
        if self.orchestrator is Orchestrator.EKS:
            return self.status in ("RUNNABLE", "STARTING")
        return self.status == "RUNNABLE" and not self.status_reason

    @property
    def node_logs(self) -> list[NodeLog]:
        """The log streams that its nodes are known to have."""
        return [
            NodeLog(name=attempt.log_stream, node=node.index, attempt=attempt.number)
            for node in self.nodes
            for attempt in node.attempts
            if attempt.log_stream
        ]

    @property
    def was_stopped(self) -> bool:
        """True if it was ended with `jobs stop`."""
        return self.status == "FAILED" and bool(STOPPED.fullmatch(self.status_reason or ""))

    @property
    def num_nodes(self) -> int:
        """Number of nodes or children, or 1."""
        return self.shape.size

    @property
    def hardware(self) -> Hardware:
        """What it runs on."""
        return Hardware.TRAINIUM if self.shape.kind is JobKind.NODES else Hardware.CPU

    @property
    def ending(self) -> Attempt | None:
        """The attempt that decided how the job ended, if known."""
        if self.attempts:
            return self.attempts[-1]
        node = self.nodes[0] if self.nodes else None
        if self.shape.kind is JobKind.ARRAY:
            node = next((node for node in self.nodes if node.status == "FAILED"), node)
        return node.last if node else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Meaning and remedy of a reason."""

    pattern: str
    """Shell pattern of a ``statusReason`` or a container's ``reason``."""
    meaning: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """One submission of a workload."""

    run: str
    workload: str
    num_nodes: int
    """Nodes; for a CPU workload, children of an array job, or 1."""
    time_limit_hours: float
    deployment: str
    job_queue: str
    """Batch's ARN, or the name of Volcano's queue."""
    job_definition: str | None
    """Batch's ARN; None on EKS, which has none."""
    usd_per_node_hour: float
    hardware: Hardware = Hardware.TRAINIUM
    orchestrator: Orchestrator = Orchestrator.BATCH
    parameters: Mapping[str, Value] = field(default_factory=dict)
    depends_on: tuple[str, ...] = ()
    """Ids of jobs that have to succeed first."""
    program_argv: tuple[str, ...] = ()
    """Arguments of a user's own program."""
    scales: bool = False
    """On EKS: let the cluster add missing nodes."""

    @property
    def time_limit_seconds(self) -> int:
        """Batch's ``attemptDurationSeconds``, which applies to each attempt."""
        return round(self.time_limit_hours * 3600)

    @property
    def usd_at_time_limit(self) -> float:
        """Estimated price of one attempt that uses all of its time."""
        return self.num_nodes * self.time_limit_hours * self.usd_per_node_hour

    def command(self) -> list[str]:
        """The command of every node."""
        command = contract.launch_command(self.workload)
        for name, value in self.parameters.items():
            text = flag_value(value)
            # Alone, such a value would be read as the next parameter.
            command += [f"--{name}={text}"] if text.startswith("--") else [f"--{name}", text]
        if self.program_argv:
            command += [contract.ARGV_MARK, *self.program_argv]
        return command


def counted(number: int, noun: str) -> str:
    """Spell a number of things: 1 node, 2 nodes."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def stop_reason(command: str) -> str:
    """Build the reason that a command records on a job that it stops."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user id has no name, as in some containers
        user = "somebody"
    return f"stopped by {user} with jobs {command}"


def valid_run_name(run: str) -> str:
    """Refuse a name that cannot be both a Batch job name and a prefix in the bucket."""
    if re.fullmatch(contract.RUN_NAME_PATTERN, run):
        return run
    nearest = re.sub(r"[^A-Za-z0-9_-]+", "-", run).lstrip("-_")[:100].rstrip("-_")
    hint = f"; {nearest!r} would do" if nearest else ""
    raise Refusal(
        "run-name",
        f"{run!r} cannot be a run name: it takes 1 to 100 letters, digits, hyphens and "
        f"underscores and begins with a letter or digit{hint}",
    )


def compile_run(run: str) -> str:
    """Name the run that compiles for ``run``; refuse a name that would become too long."""
    return valid_run_name(f"{run}-compile")


def find_explanation(table: Iterable[Explanation], reason: str | None) -> Explanation | None:
    """Find the first explanation whose pattern matches a reason; None if none does."""
    found = (item for item in table if reason and fnmatchcase(reason, item.pattern))
    return next(found, None)
