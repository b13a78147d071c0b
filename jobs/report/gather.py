"""Read the data of a run from the bucket, and from the services that still have its jobs."""

from __future__ import annotations

from collections.abc import Mapping

from jobs.bucket.attempts import RecordedJob, read_jobs
from jobs.bucket.objects import Bucket
from jobs.deployment import Deployment
from jobs.eks.describe import read_reports
from jobs.job import Job
from jobs.orchestrators import Services, unknown_run
from jobs.report.attempts import RunSources
from jobs.report.curves import read_program, read_training
from trainium_catalogue.contract import PROGRAM, RUN_STATUS, Orchestrator, run_key


def gather(bucket: Bucket, services: Services, target: Deployment, run: str) -> RunSources:
    """Read all data of a run; refuse a run without any."""
    recorded = read_jobs(bucket, run)
    jobs: list[Job] = []
    for service, summary in services.runs(run):
        job = service.describe(summary.job_id, summary.shape)
        if job is not None:
            jobs.append(job)
    status = bucket.document(run_key(run, RUN_STATUS)) or {}
    training = read_training(bucket, run)
    if not (recorded or jobs or status or training):
        raise unknown_run(run, (), target)
    submitted = {item.submission.workload for item in recorded.values() if item.submission}
    is_program = status.get("kind") == PROGRAM or PROGRAM in {
        *submitted,
        *(job.workload for job in jobs),
    }
    return RunSources(
        target=target,
        run=run,
        recorded=recorded,
        jobs=tuple(jobs),
        spans=tuple(read_program(bucket, run) if is_program else training),
        is_program=is_program,
        status=status,
        children_reasons=_children_reasons(bucket, run, recorded),
        silent=tuple(
            f"jobs on {orchestrator} are unknown: {refusal.message}"
            for orchestrator, refusal in services.silent.items()
        ),
    )


def _children_reasons(
    bucket: Bucket, run: str, recorded: Mapping[str, RecordedJob]
) -> dict[tuple[str, int], str]:
    """Read exit reasons from child nodes of a cluster, for attempts whose main node was killed."""
    found: dict[tuple[str, int], str] = {}
    for job_id, job in recorded.items():
        without_end = {record.attempt for record in job.attempts if record.ended_at is None}
        on_cluster = any(record.orchestrator is Orchestrator.EKS for record in job.attempts)
        if not without_end or not on_cluster:
            continue
        for attempt, ending in read_reports(bucket, run, job_id).items():
            if attempt in without_end:
                found[job_id, attempt] = ending.reason
    return found
