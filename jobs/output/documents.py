"""The documents that ``--json`` prints; docs/schemas/jobs-*.schema.json describes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from jobs.deployment import Deployment
from jobs.job import Attempt, Explanation, Job, RunSummary
from jobs.output.explain import explain
from jobs.output.streams import LogLine

Document = dict[str, Any]


def outcome(job: Job) -> Document:
    """Describe a job with its attempts and its nodes."""
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
        "depends_on": list(job.depends_on),
        "max_attempts": job.max_attempts,
        "attempts": [_attempt(attempt) for attempt in job.attempts],
        "nodes": [
            {
                "node": node.index,
                "status": node.status,
                "status_reason": node.status_reason,
                "pod": node.name,
                "attempts": [_attempt(attempt) for attempt in node.attempts],
            }
            for node in job.nodes
        ],
    }


def status_document(deployment: Deployment, job: Job, training: Document | None) -> Document:
    """Make the document of ``status --json``; ``training`` is the run's status.json."""
    return {
        **where(deployment, job.run, job.job_id),
        "workload": job.workload,
        **outcome(job),
        "training": training,
    }


def forgotten_document(deployment: Deployment, run: str, training: Document) -> Document:
    """Make the document of ``status --json`` for a run whose jobs Batch has forgotten."""
    return {
        **where(deployment, run, None),
        "workload": training.get("workload"),
        "status": None,
        "training": training,
    }


def list_document(deployment: Deployment, runs: Iterable[RunSummary]) -> Document:
    """Make the document of ``list --json``."""
    return {
        "deployment": deployment.name,
        "region": deployment.region,
        "runs": [asdict(summary) for summary in runs],
    }


def logs_document(
    deployment: Deployment, run: str, job_id: str, *, lines: Iterable[LogLine], job: Job | None
) -> Document:
    """Make the document of ``logs --json``."""
    return {
        **where(deployment, run, job_id),
        "log_group": deployment.log_group,
        "lines": [asdict(line) for line in lines],
        "outcome": outcome(job) if job else None,
    }


def stop_document(
    deployment: Deployment, summary: RunSummary, *, action: str, reason: str | None, job: Job | None
) -> Document:
    """Make the document of ``stop --json``."""
    return {
        **where(deployment, summary.run, summary.job_id),
        "action": action,
        "reason": reason,
        "ended": job.ended if job else summary.ended,
        "outcome": outcome(job) if job else None,
    }


def refused_document(code: str, message: str) -> Document:
    """Make the document of a refusal under ``--json``."""
    return {"refused": code, "message": message}


def where(deployment: Deployment, run: str, job_id: str | None) -> Document:
    return {
        "deployment": deployment.name,
        "region": deployment.region,
        "run": run,
        "job_id": job_id,
    }


def _attempt(attempt: Attempt) -> Document:
    found = explain(exit_code=attempt.exit_code, reasons=(attempt.status_reason, attempt.reason))
    return {**asdict(attempt), "meaning": found.meaning if found else None}


def _explanation(found: Explanation | None) -> Document | None:
    return {"meaning": found.meaning, "remedy": found.remedy} if found else None
