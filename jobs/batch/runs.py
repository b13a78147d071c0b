"""What a job is, and finding the jobs of a run in Batch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from jobs.aws import BatchClient
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.workloads import Hardware

ENDED = frozenset({"SUCCEEDED", "FAILED"})
ON_HOSTS = frozenset({"STARTING", "RUNNING"})
LAUNCHERS_VERDICT = re.compile(r"^launch: exit [1-9]\d* \([^)]*\): ")
"""How the last line of a node's log begins that has not finished; why follows."""

# From the latest to the earliest; what some children of an array job do, the job does.
_AS_CHILDREN = ("RUNNING", "STARTING", "RUNNABLE")


class Kind(StrEnum):
    """What a job consists of."""

    NODES = "nodes"
    """Of a multi-node job."""
    ARRAY = "array"
    """Children, each a container with a share of the work."""
    CONTAINER = "container"
    """One container."""

    @property
    def part(self) -> str:
        """One of it, in a word."""
        return "child" if self is Kind.ARRAY else "node"

    def sized(self, count: int) -> str:
        """So many of it, in words."""
        if self is Kind.CONTAINER:
            return "1 container"
        return f"array of {count}" if self is Kind.ARRAY else f"{count} nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Kind and size of a job."""

    kind: Kind
    size: int

    def part_ids(self, job_id: str) -> list[str]:
        """Job ids of the nodes or children; none where the job is its own."""
        if self.kind is Kind.CONTAINER:
            return []
        mark = ":" if self.kind is Kind.ARRAY else "#"
        return [f"{job_id}{mark}{index}" for index in range(self.size)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One line of a list of runs."""

    run: str
    job_id: str
    status: str
    status_reason: str | None
    created_at_ms: int
    started_at_ms: int | None
    stopped_at_ms: int | None
    num_nodes: int | None
    """Children of an array job, 1 of another CPU job; None where Batch does not say."""
    hardware: Hardware
    orchestrator: Orchestrator = Orchestrator.BATCH
    exit_code: int | None = None
    """Of a container that has ended; None where the list does not say it."""

    @property
    def shape(self) -> Shape | None:
        """Kind and size, where the list tells them."""
        if self.num_nodes is None or (self.hardware is Hardware.CPU and self.num_nodes < 2):
            return None
        kind = Kind.ARRAY if self.hardware is Hardware.CPU else Kind.NODES
        return Shape(kind=kind, size=self.num_nodes)

    @property
    def ended(self) -> bool:
        """Nothing more will happen."""
        return self.status in ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt of a job, or of one of its nodes."""

    number: int
    """From 1."""
    exit_code: int | None
    reason: str | None
    """What ECS, or Kubernetes, says of the container; or the last that a pod's launcher said."""
    status_reason: str | None
    """What Batch says of the attempt, or Kubernetes of the pod."""
    log_stream: str | None
    """In the log group; of a pod, its name."""
    started_at_ms: int | None
    stopped_at_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node of a multi-node job, one child of an array job, or the container of another."""

    index: int
    status: str
    status_reason: str | None
    attempts: tuple[Attempt, ...]
    name: str | None = None
    """Of its pod; None on Batch."""

    @property
    def last(self) -> Attempt | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job with its nodes.

    The status of a multi-node job is that of the main node (node 0). Batch keeps an array job
    PENDING while its children run; here it has the status of the child that has come farthest.
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
    """None where Batch does not say."""
    attempts: tuple[Attempt, ...]
    """Attempts that ended."""
    nodes: tuple[Node, ...]
    orchestrator: Orchestrator = Orchestrator.BATCH
    command: tuple[str, ...] = ()
    """Of every node; empty where it is not known."""

    @property
    def ended(self) -> bool:
        """Nothing more will happen."""
        return self.status in ENDED

    @property
    def succeeded(self) -> bool:
        """The main node exited with 0; of an array, every child."""
        return self.status == "SUCCEEDED"

    @property
    def waits_unexplained(self) -> bool:
        """Whether somebody should look why it does not run.

        Of a job on a cluster always: what its scheduler says is about pods and nodes, not about
        what to do.
        """
        if self.orchestrator is Orchestrator.EKS:
            return self.status in ("RUNNABLE", "STARTING")
        return self.status == "RUNNABLE" and not self.status_reason

    @property
    def num_nodes(self) -> int:
        """Nodes, children, or 1."""
        return self.shape.size

    @property
    def ending(self) -> Attempt | None:
        """The attempt that decided how the job ended, as far as it is known."""
        if self.attempts:
            return self.attempts[-1]
        node = self.nodes[0] if self.nodes else None
        if self.shape.kind is Kind.ARRAY:
            node = next((node for node in self.nodes if node.status == "FAILED"), node)
        return node.last if node else None


def list_runs(
    batch: BatchClient, queues: Mapping[str, Hardware], *, run: str | None = None
) -> list[RunSummary]:
    """List the jobs of the queues, or those of one run; newest first."""
    # One filter returns the jobs of every status; without a filter Batch lists RUNNING ones only.
    wanted = (
        {"name": "AFTER_CREATED_AT", "values": ["0"]}
        if run is None
        else {"name": "JOB_NAME", "values": [run]}
    )
    found = [
        _summary(item, hardware)
        for queue, hardware in queues.items()
        for page in _pages(batch, jobQueue=queue, filters=[wanted])
        for item in page["jobSummaryList"]
        # Batch compares names without case. The children of an array are not runs.
        if (run is None or item["jobName"] == run) and ":" not in item["jobId"]
    ]
    return sorted(found, key=lambda summary: summary.created_at_ms, reverse=True)


def _pages(batch: BatchClient, **kwargs: Any) -> Iterator[Mapping[str, Any]]:
    token: dict[str, str] = {}
    while True:
        page = batch.list_jobs(**kwargs, **token)
        yield page
        if not page.get("nextToken"):
            return
        token = {"nextToken": page["nextToken"]}


def _summary(item: Mapping[str, Any], hardware: Hardware) -> RunSummary:
    array = item.get("arrayProperties") or {}
    size = item.get("nodeProperties", {}).get("numNodes")
    if hardware is Hardware.CPU:
        size = array.get("size", 1)
    return RunSummary(
        run=item["jobName"],
        job_id=item["jobId"],
        status=array_status(item["status"], array.get("statusSummary") or {}),
        status_reason=item.get("statusReason"),
        created_at_ms=int(item.get("createdAt", 0)),
        started_at_ms=item.get("startedAt"),
        stopped_at_ms=item.get("stoppedAt"),
        num_nodes=size,
        hardware=hardware,
        exit_code=(item.get("container") or {}).get("exitCode"),
    )


def array_status(said: str, children: Mapping[str, int]) -> str:
    """The status of an array job: ``children`` counts theirs."""
    if said in ENDED:
        return said
    return next((status for status in _AS_CHILDREN if children.get(status)), said)
