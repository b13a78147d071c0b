"""The documents that ``--json`` prints; docs/schemas/jobs-*.schema.json describes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from jobs.deployment import Deployment
from jobs.explain import Explanation, explain
from jobs.request import ESTIMATE_NOTE, JobRequest
from jobs.runs import Attempt, Job, RunSummary
from jobs.streams import LogLine
from trainium_catalogue import contract

Document = dict[str, Any]


def outcome(job: Job) -> Document:
    """How a job stands: its attempts and its nodes."""
    last = job.attempts[-1] if job.attempts else None
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
        "num_nodes": job.num_nodes,
        "max_attempts": job.max_attempts,
        "attempts": [_attempt(attempt) for attempt in job.attempts],
        "nodes": [
            {
                "node": node.index,
                "status": node.status,
                "status_reason": node.status_reason,
                "attempts": [_attempt(attempt) for attempt in node.attempts],
            }
            for node in job.nodes
        ],
    }


def status_document(deployment: Deployment, job: Job) -> Document:
    """What ``status --json`` prints."""
    return {**_where(deployment, job.run, job.job_id), "workload": job.workload, **outcome(job)}


def list_document(deployment: Deployment, runs: Iterable[RunSummary]) -> Document:
    """What ``list --json`` prints."""
    return {
        "deployment": deployment.name,
        "region": deployment.region,
        "runs": [asdict(summary) for summary in runs],
    }


def submit_document(
    deployment: Deployment,
    request: JobRequest,
    *,
    action: str,
    job_id: str | None,
    status: str | None,
    job: Job | None,
) -> Document:
    """What ``submit --json`` prints."""
    return {
        **_where(deployment, request.run, job_id),
        "action": action,
        "status": job.status if job else status,
        "workload": request.workload,
        "nodes": request.num_nodes,
        "time_limit_hours": request.time_limit_hours,
        "instance_type": deployment.instance_type.name,
        "estimate": {
            "usd_per_node_hour": request.usd_per_node_hour,
            "usd_at_time_limit": round(request.usd_at_time_limit, 2),
            "max_attempts": contract.ATTEMPTS,
            "note": ESTIMATE_NOTE,
        },
        "payload": request.to_submit_kwargs(),
        "outcome": outcome(job) if job else None,
    }


def logs_document(
    deployment: Deployment, run: str, job_id: str, *, lines: Iterable[LogLine], job: Job | None
) -> Document:
    """What ``logs --json`` prints."""
    return {
        **_where(deployment, run, job_id),
        "log_group": deployment.log_group,
        "lines": [asdict(line) for line in lines],
        "outcome": outcome(job) if job else None,
    }


def stop_document(
    deployment: Deployment, summary: RunSummary, *, action: str, reason: str | None, job: Job | None
) -> Document:
    """What ``stop --json`` prints."""
    return {
        **_where(deployment, summary.run, summary.job_id),
        "action": action,
        "reason": reason,
        "ended": job.ended if job else summary.ended,
        "outcome": outcome(job) if job else None,
    }


def refused_document(code: str, message: str) -> Document:
    """What any command prints with ``--json`` when it refuses."""
    return {"refused": code, "message": message}


def _where(deployment: Deployment, run: str, job_id: str | None) -> Document:
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
