"""Records of every submission and attempt of a run in the bucket, for `python -m jobs report`.

Batch keeps a job for at least 7 days after it ends, the cluster for 7 days, and a killed node
reports nothing. So the CLI records each submission, and the main node's launcher records the start
of each attempt, lost nodes and the attempt's end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.documents import DeviceName, Keywords, Natural, Positive, Timestamp

SUBMISSION_NAME = "submission.json"
"""Name of a job's ``SubmissionRecord``, under its attempts' prefix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionRecord:
    """One submission of a run, written once its job is submitted."""

    schema: Annotated[int, Keywords(const=1)] = 1
    workload: str
    orchestrator: Orchestrator
    num_nodes: Positive
    """Number of nodes or array children; otherwise 1."""
    submitted_at: Timestamp
    """UTC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoss:
    """A node that was lost during an attempt, as recorded by the main node."""

    node: Natural
    at: Timestamp
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One attempt of a job or array child; its main node rewrites it at each change.

    ``ended_at`` is null while the attempt runs, or if the main node is killed.
    """

    schema: Annotated[int, Keywords(const=1)] = 1
    workload: str
    orchestrator: Orchestrator
    job_id: str
    attempt: Positive
    child: Natural
    """Index of the array child; 0 if the job is not an array."""
    num_nodes: Positive
    device: DeviceName
    instance_type: str | None
    started_at: Timestamp
    """Start of the main node's launcher; UTC, like all times."""
    joined_at: Timestamp | None = None
    """Time at which all nodes had joined and work began."""
    lost: tuple[NodeLoss, ...] = ()
    ended_at: Timestamp | None = None
    code: int | None = None
    """Exit code of the attempt."""
    reason: str | None = None
    steps: int | None = None
    """Optimizer steps that the workers had completed; null if they report none."""


def attempt_name(attempt: int, *, child: int = 0) -> str:
    """Return the name of an ``AttemptRecord``, under its job's attempts' prefix."""
    return f"{attempt}-child-{child}.json" if child else f"{attempt}.json"
