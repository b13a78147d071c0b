"""The end of `submit`: the compile job, the job itself, following, the document."""

from __future__ import annotations

import time

from jobs import documents
from jobs.aws import Aws, BatchClient
from jobs.deployment import Deployment
from jobs.errors import EXIT_OK
from jobs.options import exit_code, follow_command, note, print_document
from jobs.prepared import Prepared
from jobs.request import JobRequest
from jobs.runs import list_runs
from jobs.submission import submit_once
from trainium_catalogue.workloads import Hardware


def send_first(request: JobRequest, batch: BatchClient, target: Deployment) -> str:
    """Submit the compile job, or find the one that is running already."""
    earlier = list_runs(batch, target.queues, run=request.run)
    going_on = next((summary for summary in earlier if not summary.ended), None)
    if going_on is not None:
        note(f"run {request.run} is {going_on.status} already, job {going_on.job_id}")
        return going_on.job_id
    job_id = send(request, batch, earlier={summary.job_id for summary in earlier})
    note(f"submitted run {request.run}, job {job_id}")
    return job_id


def send(request: JobRequest, batch: BatchClient, *, earlier: set[str]) -> str:
    """Submit one job and return its id; ``earlier`` are the ids that the run had before."""
    try:
        return submit_once(request, batch, earlier=earlier, sleep=time.sleep)
    except KeyboardInterrupt:
        note(f"interrupted; whether it was submitted tells: python -m jobs status {request.run}")
        raise


def finish(
    aws: Aws,
    target: Deployment,
    ready: Prepared,
    job_id: str,
    compile_id: str | None,
    status_before: str | None,
    follow: bool,
    as_json: bool,
) -> int:
    """Follow when asked to, print the document when asked to; return the exit code.

    ``status_before`` is that of a job that was submitted earlier.
    """
    outcome = None
    code = EXIT_OK
    run = ready.request.run
    if follow:
        from jobs.watch import watch  # rich is not needed before

        if compile_id is not None and ready.compile_request is not None:
            watch(
                aws,
                target,
                run=ready.compile_request.run,
                job_id=compile_id,
                keep_lines=as_json,
            )
        is_array = ready.request.hardware is Hardware.CPU and ready.request.num_nodes > 1
        outcome, _ = watch(
            aws,
            target,
            run=run,
            job_id=job_id,
            keep_lines=as_json,
            part="child" if is_array else "node",
        )
        code = exit_code(outcome)
    else:
        note(f"follow it with: {follow_command(target, run)}")
    if as_json:
        document = documents.submit_document(
            target,
            ready,
            action="submitted" if status_before is None else "already-running",
            job_id=job_id,
            compile_id=compile_id,
            status=status_before or "SUBMITTED",
            job=outcome,
        )
        print_document(document)
    return code
