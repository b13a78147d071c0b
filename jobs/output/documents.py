"""The documents of ``--json``; `tools/schemas.py` generates docs/schemas/jobs-* from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from jobs.deployment import Deployment, DeploymentFields, RunFields, where
from jobs.job import Attempt, Explanation, Job, JobKind, JobStatus, RunSummary, ZonePosition
from jobs.output.explain import explain
from jobs.output.streams import LogLine
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.documents import Amount, Keywords, Natural, Positive, Sha256, picked
from trainium_catalogue.workloads import Hardware

SubmitAction = Literal["submitted", "already-running", "not-submitted", "dry-run"]


@dataclass(frozen=True, kw_only=True)
class RefusalDocument:
    """A refusal, printed by any command with --json; exit code 2."""

    refused: str
    """Stable code of the refusal."""
    message: str
    """Value, reason and remedy."""


@dataclass(frozen=True, kw_only=True)
class ExplainedReason:
    """Explanation of an exit code or reason."""

    meaning: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class ExplainedAttempt(Attempt):
    """One attempt of a job or of a node."""

    meaning: str | None
    """Meaning of the exit code or reason."""


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
    """Orchestrator of the job's nodes; batch for every CPU job."""
    num_nodes: Positive
    """Number of nodes, children of an array, or 1."""
    depends_on: tuple[str, ...]
    """Ids of jobs that must succeed first."""
    max_attempts: Positive | None
    """Maximum number of attempts; null if Batch does not report it."""
    attempts: tuple[ExplainedAttempt, ...]
    """Ended attempts, with the main node's outcome."""
    nodes: tuple[NodeState, ...]
    """Nodes known to the orchestrator, whether or not they have started."""


@dataclass(frozen=True, kw_only=True)
class StatusDocument(Outcome, RunFields):
    """The state of a run, node by node, with its training progress."""

    job_id: str
    cause: str
    """The most likely cause of the state, judging from this document; `explain` checks further."""
    workload: str | None
    zone: ZonePosition | None
    """The job's zone, and the next one; null with a single zone."""
    training: Mapping[str, Any] | None
    """The run's status.json (run-status or program-status); null without one."""


@dataclass(frozen=True, kw_only=True)
class ForgottenDocument(RunFields):
    """A training run whose jobs Batch has deleted, 7 days after they ended."""

    job_id: None = None
    workload: str | None
    status: None = None
    training: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ListedRun(RunSummary):
    """One run of a list."""

    cause: str
    """The most likely cause of its state, judging from the list; `explain` checks further."""


@dataclass(frozen=True, kw_only=True)
class ListDocument(DeploymentFields):
    """The runs of a deployment, newest first."""

    runs: tuple[ListedRun, ...]


@dataclass(frozen=True, kw_only=True)
class LogsDocument(RunFields):
    """The lines of all nodes, merged by time; with --follow, of the followed nodes."""

    job_id: str
    log_group: str
    lines: tuple[LogLine, ...]
    outcome: Outcome | None
    """The state of the job; with --follow, its final state."""


@dataclass(frozen=True, kw_only=True)
class StopDocument(RunFields):
    """The outcome of stopping a run."""

    job_id: str
    action: Literal["stopping", "already-ended"]
    reason: str | None
    """Reason recorded with the job; null if it had already ended."""
    ended: bool
    outcome: Outcome | None
    """With --wait: the state of the job after the wait."""


@dataclass(frozen=True, kw_only=True)
class TrainingSummary:
    """Figures derived from the parameters of a training workload."""

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
    """A user's own program."""

    script: str | None
    """File in the bundle to run."""
    module: str | None
    """Module to run instead."""
    argv: tuple[str, ...]
    code: Sha256
    """SHA-256 of the bundle."""
    bytes: Positive
    """Size of the bundle."""
    files: Positive
    left_out: tuple[str, ...]
    """Names excluded from the bundle."""
    run_exists: bool
    changes: tuple[str, ...]
    """Differences from the last submission of the run."""
    continues_from_snapshot: int | None
    """Number of the newest complete snapshot; null without one."""


@dataclass(frozen=True, kw_only=True)
class ProgramPlan:
    """The plan for a user's own program."""

    program: ProgramSummary


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """List prices, for orientation only."""

    usd_per_node_hour: float
    usd_at_time_limit: float
    """Cost of one attempt on all nodes up to the time limit."""
    usd_at_most: Amount
    """Upper bound of this submission's instance cost, with all jobs, attempts and waits."""
    usd_at_most_caveat: str | None
    """Why the bound may be exceeded, such as an unknown list price, or hosts on Batch that may wait
    for each other indefinitely; null if it holds."""
    cap_usd: float | None
    """The smaller of --max-usd and the deployment's cap; null without one."""
    max_attempts: Positive
    note: str


@dataclass(frozen=True, kw_only=True)
class CompileJob:
    """With --compile: the compile job, submitted first."""

    run: str
    job_id: str | None
    """Null with --dry-run."""
    time_limit_hours: Annotated[float, Keywords(exclusiveMinimum=0)]
    usd_at_time_limit: float
    payload: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class WheelsJob:
    """With --requirements: the dependencies, and the job that collects them."""

    key: Annotated[str, Keywords(pattern="^[0-9a-f]{32}$")]
    collected: bool
    """True if they had already been collected, so that no job is needed."""
    run: str
    job_id: str | None
    """Null with --dry-run, or if already collected."""
    payload: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class SubmitDocument(RunFields):
    """A job that was submitted, would be submitted, or is already running."""

    job_id: str | None
    """Null with --dry-run."""
    action: SubmitAction
    status: JobStatus | None
    workload: str
    hardware: Hardware
    """cpu: a data or export job on ordinary instances."""
    orchestrator: Orchestrator
    """Orchestrator of the job's nodes; batch for every CPU job."""
    nodes: Positive
    """Number of nodes; for a CPU job, children of an array, or 1."""
    time_limit_hours: Annotated[float, Keywords(exclusiveMinimum=0)]
    """Time limit of each attempt."""
    instance_type: str | None
    """Null for a CPU job: the compute environment chooses."""
    estimate: Estimate
    plan: TrainingSummary | ProgramPlan | None
    compile: CompileJob | None
    wheels: WheelsJob | None
    payload: Mapping[str, Any]
    """The exact arguments of Batch's SubmitJob, or the exact Volcano job."""
    outcome: Outcome | None
    """With --follow: the outcome of the job."""


def outcome(job: Job) -> Outcome:
    """Describe a job with its attempts and its nodes."""
    return picked(Outcome, job, **_described(job))


def _described(job: Job) -> dict[str, Any]:
    """Return the fields of ``Outcome`` that are not copied from the job."""
    last = job.ending
    found = explain(
        exit_code=last.exit_code if last and job.ended else None,
        reasons=(job.status_reason, last.reason if last else None),
    )
    return {
        "explanation": _explanation(found),
        "kind": job.shape.kind,
        "attempts": tuple(_attempt(attempt) for attempt in job.attempts),
        "nodes": tuple(
            picked(
                NodeState,
                node,
                node=node.index,
                pod=node.name,
                attempts=tuple(_attempt(attempt) for attempt in node.attempts),
            )
            for node in job.nodes
        ),
    }


def status_document(
    deployment: Deployment,
    job: Job,
    training: Mapping[str, Any] | None,
    *,
    cause: str,
    zone: ZonePosition | None,
) -> StatusDocument:
    """Build the document of ``status --json``; ``training`` is the run's status.json."""
    known = {**where(deployment, job.run), **_described(job)}
    return picked(StatusDocument, job, **known, cause=cause, zone=zone, training=training)


def logs_document(
    deployment: Deployment, run: str, job_id: str, *, lines: Iterable[LogLine], job: Job | None
) -> LogsDocument:
    """Build the document of ``logs --json``."""
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
    """Build the document of ``stop --json``; without a reason, the run had already ended."""
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
