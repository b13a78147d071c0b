"""The documents that ``--json`` prints; `tools/schemas.py` makes docs/schemas/jobs-* from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from jobs.deployment import Deployment, OfDeployment, OfRun, where
from jobs.job import Attempt, Explanation, Job, JobKind, JobStatus, RunSummary
from jobs.output.explain import explain
from jobs.output.streams import LogLine
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.documents import Keywords, Natural, Positive, Sha256, picked
from trainium_catalogue.workloads import Hardware

SubmitAction = Literal["submitted", "already-running", "not-submitted", "dry-run"]


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A refusal, which any command prints with --json; exit code 2."""

    refused: str
    """Stable code of the refusal."""
    message: str
    """Value, reason and remedy."""


@dataclass(frozen=True, kw_only=True)
class ExplainedReason:
    """An exit code or a reason in plain words."""

    meaning: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class ExplainedAttempt(Attempt):
    """One attempt of a job or of a node."""

    meaning: str | None
    """Exit code or reason in plain words."""


@dataclass(frozen=True, kw_only=True)
class NodeState:
    """One node, child of an array, or container."""

    node: Natural
    """Index; 0 is the main node."""
    status: JobStatus
    status_reason: str | None
    pod: str | None
    """Name of its pod; null on Batch."""
    attempts: tuple[ExplainedAttempt, ...]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A job with its attempts and its nodes; times are milliseconds since the epoch."""

    status: JobStatus
    status_reason: str | None
    explanation: ExplainedReason | None
    created_at_ms: int | None
    started_at_ms: int | None
    """Start of the last attempt."""
    stopped_at_ms: int | None
    kind: JobKind
    orchestrator: Orchestrator
    """What runs the job's nodes; batch for every CPU job."""
    num_nodes: Positive
    """Nodes, children of an array, or 1."""
    depends_on: tuple[str, ...]
    """Ids of jobs that have to succeed first."""
    max_attempts: Positive | None
    """Null where Batch does not say."""
    attempts: tuple[ExplainedAttempt, ...]
    """Attempts that ended, as the main node decided them."""
    nodes: tuple[NodeState, ...]
    """Nodes that Batch has started; empty before."""


@dataclass(frozen=True, kw_only=True)
class StatusDocument(Outcome, OfRun):
    """The state of a run, node by node, and of its training."""

    job_id: str
    cause: str
    """The most likely cause of the state by what is shown here; `explain` looks further."""
    workload: str | None
    training: Mapping[str, Any] | None
    """The run's status.json (run-status or program-status); null without one."""


@dataclass(frozen=True, kw_only=True)
class ForgottenDocument(OfRun):
    """A training run whose jobs Batch has forgotten, 7 days after their end."""

    job_id: None = None
    workload: str | None
    status: None = None
    training: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ListedRun(RunSummary):
    """One run of a list."""

    cause: str
    """The most likely cause of its state by what the list shows; `explain` looks further."""


@dataclass(frozen=True, kw_only=True)
class ListDocument(OfDeployment):
    """The runs of a deployment, newest first."""

    runs: tuple[ListedRun, ...]


@dataclass(frozen=True, kw_only=True)
class LogsDocument(OfRun):
    """The lines of all nodes, merged by time."""

    job_id: str
    log_group: str
    lines: tuple[LogLine, ...]
    outcome: Outcome | None
    """The state of the job; with --follow, its end."""


@dataclass(frozen=True, kw_only=True)
class StopDocument(OfRun):
    """What became of a run that was to be stopped."""

    job_id: str
    action: Literal["stopping", "already-ended"]
    reason: str | None
    """Reason that Batch was given."""
    ended: bool
    outcome: Outcome | None
    """With --grace: the state of the job when the time was over."""


@dataclass(frozen=True, kw_only=True)
class TrainingSummary:
    """What follows from the parameters of a training workload."""

    num_parameters: Positive
    num_ranks: Positive
    tensor_parallel: Positive
    data_parallel: Positive
    global_batch: Positive
    micro_batch: Positive
    accumulation_steps: Positive
    seq_len: Positive
    tokens_per_step: Positive
    max_steps: Positive
    checkpoint_bytes: Positive
    dataset: str
    dataset_tokens: Positive
    run_exists: bool
    continues_from_step: int | None
    """Newest complete checkpoint; null without one."""


@dataclass(frozen=True, kw_only=True)
class ProgramSummary:
    """What a program of the user's own consists of."""

    script: str | None
    """File of the bundle that is run."""
    module: str | None
    """Module that is run instead."""
    argv: tuple[str, ...]
    code: Sha256
    """SHA-256 of the bundle."""
    bytes: Positive
    """Size of the bundle."""
    files: Positive
    left_out: tuple[str, ...]
    """Names that are not part of the bundle."""
    run_exists: bool
    changes: tuple[str, ...]
    """Differences from the last submission of the run."""
    continues_from_snapshot: int | None
    """Number of the newest complete snapshot; null without one."""


@dataclass(frozen=True, kw_only=True)
class ProgramPlan:
    """What is planned for a program of the user's own."""

    program: ProgramSummary


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """List prices, for orientation only."""

    usd_per_node_hour: float
    usd_at_time_limit: float
    """One attempt of all nodes that uses all its time."""
    max_attempts: Positive
    note: str


@dataclass(frozen=True, kw_only=True)
class CompileJob:
    """With --compile: the job that is submitted first."""

    run: str
    job_id: str | None
    """Null with --dry-run."""
    time_limit_hours: Annotated[float, Keywords(exclusiveMinimum=0)]
    usd_at_time_limit: float
    payload: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class WheelsJob:
    """With --requirements: the dependencies, and the job that collects them first."""

    key: Annotated[str, Keywords(pattern="^[0-9a-f]{32}$")]
    collected: bool
    """True if they were there, so that no job is needed."""
    run: str
    job_id: str | None
    """Null with --dry-run, and if they were there."""
    payload: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class SubmitDocument(OfRun):
    """What was submitted, or would be, or is running already."""

    job_id: str | None
    """Null with --dry-run."""
    action: SubmitAction
    status: JobStatus | None
    workload: str
    hardware: Hardware
    """cpu: a data or export job on ordinary instances."""
    orchestrator: Orchestrator
    """What runs the job's nodes; batch for every CPU job."""
    nodes: Positive
    """Of a CPU job: children of an array, or 1."""
    time_limit_hours: Annotated[float, Keywords(exclusiveMinimum=0)]
    """Of each attempt."""
    instance_type: str | None
    """Null for a CPU job: the compute environment chooses."""
    estimate: Estimate
    plan: TrainingSummary | ProgramPlan | None
    compile: CompileJob | None
    wheels: WheelsJob | None
    payload: Mapping[str, Any]
    """The exact arguments of Batch's SubmitJob, or the exact Volcano job."""
    outcome: Outcome | None
    """With --follow: how the job ended."""


def outcome(job: Job) -> Outcome:
    """Describe a job with its attempts and its nodes."""
    return Outcome(**_outcome(job))


def _outcome(job: Job) -> dict[str, Any]:
    last = job.ending
    found = explain(
        exit_code=last.exit_code if last and job.ended else None,
        reasons=(job.status_reason, last.reason if last else None),
    )
    return {
        "status": job.status,
        "status_reason": job.status_reason,
        "explanation": _explanation(found),
        "created_at_ms": job.created_at_ms,
        "started_at_ms": job.started_at_ms,
        "stopped_at_ms": job.stopped_at_ms,
        "kind": job.shape.kind,
        "orchestrator": job.orchestrator,
        "num_nodes": job.num_nodes,
        "depends_on": job.depends_on,
        "max_attempts": job.max_attempts,
        "attempts": tuple(_attempt(attempt) for attempt in job.attempts),
        "nodes": tuple(
            NodeState(
                node=node.index,
                status=node.status,
                status_reason=node.status_reason,
                pod=node.name,
                attempts=tuple(_attempt(attempt) for attempt in node.attempts),
            )
            for node in job.nodes
        ),
    }


def status_document(
    deployment: Deployment, job: Job, training: Mapping[str, Any] | None, *, cause: str
) -> StatusDocument:
    """Make the document of ``status --json``; ``training`` is the run's status.json."""
    return StatusDocument(
        **where(deployment, job.run),
        **_outcome(job),
        job_id=job.job_id,
        cause=cause,
        workload=job.workload,
        training=training,
    )


def forgotten_document(
    deployment: Deployment, run: str, training: Mapping[str, Any]
) -> ForgottenDocument:
    """Make the document of ``status --json`` for a run whose jobs Batch has forgotten."""
    return ForgottenDocument(
        **where(deployment, run), workload=training.get("workload"), training=training
    )


def list_document(
    deployment: Deployment, runs: Iterable[RunSummary], cause_of: Callable[[RunSummary], str]
) -> ListDocument:
    """Make the document of ``list --json``."""
    listed = tuple(picked(ListedRun, run, cause=cause_of(run)) for run in runs)
    return ListDocument(deployment=deployment.name, region=deployment.region, runs=listed)


def logs_document(
    deployment: Deployment, run: str, job_id: str, *, lines: Iterable[LogLine], job: Job | None
) -> LogsDocument:
    """Make the document of ``logs --json``."""
    return LogsDocument(
        **where(deployment, run),
        job_id=job_id,
        log_group=deployment.log_group,
        lines=tuple(lines),
        outcome=outcome(job) if job else None,
    )


def stop_document(
    deployment: Deployment, summary: RunSummary, *, reason: str | None, job: Job | None
) -> StopDocument:
    """Make the document of ``stop --json``; without a reason, the run had ended before."""
    return StopDocument(
        **where(deployment, summary.run),
        job_id=summary.job_id,
        action="already-ended" if reason is None else "stopping",
        reason=reason,
        ended=job.ended if job else summary.ended,
        outcome=outcome(job) if job else None,
    )


def _attempt(attempt: Attempt) -> ExplainedAttempt:
    found = explain(exit_code=attempt.exit_code, reasons=(attempt.status_reason, attempt.reason))
    return picked(ExplainedAttempt, attempt, meaning=found.meaning if found else None)


def _explanation(found: Explanation | None) -> ExplainedReason | None:
    return ExplainedReason(meaning=found.meaning, remedy=found.remedy) if found else None
