"""Sending a request exactly once, although SubmitJob cannot be repeated safely."""

from __future__ import annotations

from collections.abc import Callable, Collection

from jobs import errors
from jobs.aws import BatchClient
from jobs.batch.runs import list_runs
from jobs.submit.request import JobRequest

WAITS_S = (1.0, 2.0, 4.0, 8.0)
"""Pauses between attempts; ListJobs shows a new job within a moment, not at once."""


def submit_once(
    request: JobRequest,
    batch: BatchClient,
    *,
    earlier: Collection[str] = (),
    sleep: Callable[[float], None],
) -> str:
    """Submit and return the job id; repeats only when no job can have come of the last call.

    ``batch`` must not retry by itself (``Aws.batch_once``). ``earlier`` holds the ids of the
    jobs that this run had before.
    """
    for wait_s in WAITS_S:
        try:
            return str(batch.submit_job(**request.to_submit_kwargs())["jobId"])
        except Exception as error:
            ambiguous = errors.is_ambiguous(error)
            if not ambiguous and not errors.is_throttled(error):
                raise
            sleep(wait_s)
            if ambiguous:
                # The answer was lost, perhaps not the job: look before asking again.
                queue = {request.job_queue: request.hardware}
                for summary in list_runs(batch, queue, run=request.run):
                    if summary.job_id not in earlier:
                        return summary.job_id
    return str(batch.submit_job(**request.to_submit_kwargs())["jobId"])
