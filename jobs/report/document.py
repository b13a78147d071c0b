"""The document of `report --json`, from which text and page are rendered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from jobs.deployment import RunFields
from trainium_catalogue.attempts import NodeLoss
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.documents import Amount, Keywords, Natural, Positive, Timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedJob:
    """One submission of the run."""

    job_id: str
    orchestrator: Orchestrator | None
    num_nodes: int | None
    """Number of nodes, children of an array, or 1."""
    submitted_at: Timestamp | None
    status: str | None
    """Status in Batch's terms on both orchestrators; null once the job is deleted."""
    status_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedAttempt:
    """One attempt of a job, or of a child of an array. Unknown fields are null."""

    job_id: str | None
    attempt: Positive
    child: Natural
    """Index in an array; 0 outside one."""
    num_nodes: Positive
    instance_type: str | None
    waited_since: Timestamp | None
    """Time of the submission, or of the previous attempt's end."""
    started_at: Timestamp
    """Start of the main node's launcher; if not recorded, when it was first seen."""
    joined_at: Timestamp | None
    """Time when all nodes had joined."""
    trained_at: Timestamp | None
    """Start of training."""
    ended_at: Timestamp | None
    last_seen_at: Timestamp | None
    """When an attempt whose end was not recorded was last seen."""
    is_running: bool
    code: int | None
    """Exit code."""
    code_name: str | None
    meaning: str | None
    """Meaning of the exit code."""
    reason: str | None
    lost: tuple[NodeLoss, ...]
    """Nodes lost during the attempt."""
    from_step: int | None
    """Steps completed before the attempt."""
    reached_step: int | None
    """Last known step of the attempt."""
    repeated_steps: int | None
    """Steps repeated by the next attempt."""
    node_seconds: Amount
    """Number of nodes times the seconds from start to end, or to when it was last seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedCheckpoint:
    """A checkpoint of training, or a snapshot of a program."""

    step: int | None
    """Step of a checkpoint."""
    number: int | None
    """Number of a snapshot."""
    at: Timestamp | None
    """Time of completion; null if it is not known to be complete."""
    bytes: int | None
    paused_s: float | None
    """Seconds for which it paused training."""
    failure: str | None
    """Reason for a failed save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedStep:
    """A step that counts, at a point of the curve."""

    step: Natural
    loss: float | None
    tokens_per_second: float | None
    steps_per_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationPoint:
    """A validation loss."""

    step: Natural
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentTime:
    """A part of the paid time."""

    on: Annotated[
        str,
        Keywords(enum=["steps", "repeated", "checkpoints", "validation", "starting", "other"]),
    ]
    """steps: steps that count, with an attempt's first step at the mean of the others; repeated:
    repeated steps at the attempt's mean seconds per step; starting: an attempt's time until
    training begins, plus the excess of its first step over the others, or all of an attempt that
    never trained."""
    node_seconds: Amount


@dataclass(frozen=True, kw_only=True)
class ReportDocument(RunFields):
    """Summary of a run so far. Unknown fields are null, and explained in ``unknown``."""

    made_at: Timestamp
    workload: str | None
    state: Annotated[str, Keywords(enum=["waiting", "running", "succeeded", "failed", "unknown"])]
    """State of the newest submission."""
    began_at: Timestamp | None
    """Time of the first submission."""
    ended_at: Timestamp | None
    """End of the last attempt; null while the run is unfinished."""
    jobs: tuple[ReportedJob, ...]
    """Jobs, ordered by submission."""
    attempts: tuple[ReportedAttempt, ...]
    """Attempts, ordered by start."""
    steps: int | None
    """Steps that count, without repeated ones."""
    max_steps: int | None
    repeated_steps: int | None
    """Number of repeated steps."""
    is_repeated_lower_bound: bool
    """True if ``repeated_steps`` is a lower bound."""
    last_loss: float | None
    last_validation: ValidationPoint | None
    tokens: int | None
    tokens_per_second: float | None
    """Mean over the steps that count, without compilation."""
    steps_per_second: float | None
    mfu: float | None
    """Mean model FLOPs utilization, 0 to 1."""
    node_seconds: Amount
    """Paid time: each attempt from start to end, times its nodes."""
    is_time_lower_bound: bool
    """True if the paid time is a lower bound."""
    spent: tuple[SpentTime, ...]
    """Parts of the paid time; empty if no steps are known."""
    goodput: float | None
    """Fraction of paid node-seconds spent on steps that count, 0 to 1."""
    usd: float | None
    """Estimate: paid node-seconds at list prices."""
    usd_per_million_tokens: float | None
    prices_of: str
    """Month of the prices."""
    checkpoints: tuple[ReportedCheckpoint, ...]
    curve: tuple[ReportedStep, ...]
    """Steps that count, evenly sampled down to about a thousand."""
    validation: tuple[ValidationPoint, ...]
    unknown: tuple[str, ...]
    """Sentences about missing data."""
