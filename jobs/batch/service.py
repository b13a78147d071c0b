"""The Batch implementation of `JobService`: listing, exactly-once submission, stopping."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from jobs import errors
from jobs.aws import Aws, BatchClient, LogsClient, pages
from jobs.batch.describe import array_status, describe_job, find_logs
from jobs.batch.request import (
    check_default_group,
    check_grace,
    check_length,
    encode_request,
    submit_arguments,
)
from jobs.batch.waiting import waits_for, why_waiting
from jobs.batch.zones import ended_recently, next_zone, zone_position
from jobs.bucket.name_hold import hold_name, newest_holder
from jobs.bucket.objects import Bucket
from jobs.capacity import check_quota, check_wait, check_window
from jobs.deployment import Deployment
from jobs.errors import Refusal
from jobs.job import (
    ON_HOSTS,
    Explanation,
    Job,
    JobRequest,
    NodeLog,
    RunSummary,
    Shape,
    ZonePosition,
)
from trainium_catalogue import contract
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.workloads import Hardware

MOVE_WAITS_S = (2.0,) * 10
"""Pauses while a job of the run is being submitted to another zone."""
WAITS_S = (1.0, 2.0, 4.0, 8.0)
"""Pauses between attempts, because ListJobs does not show a new job immediately."""


@dataclass(slots=True)
class BatchService:
    """The deployment's job queues."""

    aws: Aws
    target: Deployment
    once: bool = False
    """True to use a single client without automatic retries, as SubmitJob requires."""
    _client: BatchClient | None = None

    @property
    def orchestrator(self) -> Orchestrator:
        """Batch."""
        return Orchestrator.BATCH

    @property
    def log_group(self) -> str:
        """The deployment's log group, shared by all its jobs."""
        return self.target.log_group

    def runs(self, run: str | None = None) -> list[RunSummary]:
        """List the queues' jobs, newest first."""
        zones = {each.job_queue: each.zone for each in self.target.zones}
        return list_runs(self._batch(), self.target.queues, run=run, zones=zones)

    def describe(self, job_id: str, shape: Shape | None = None) -> Job | None:
        """Describe a job with its nodes."""
        return describe_job(self._batch(), job_id, shape=shape)

    def logs(self) -> LogsClient:
        """Create a CloudWatch Logs client."""
        return self.aws.logs()

    def find_logs(self, job: Job, nodes: Collection[int] | None = None) -> Sequence[NodeLog]:
        """Find the log streams of a large job; the description of a smaller one includes them."""
        return find_logs(self._batch(), job, nodes)

    def check(self, request: JobRequest) -> None:
        """Refuse a grace period that hosts would cut short, or overlong parameters."""
        check_grace(request)
        check_length(request)

    def check_place(self, request: JobRequest, note: Callable[[str], None]) -> None:
        """Refuse a job that would wait forever, or whose nodes could not reach each other."""
        check_quota(self.aws, self.target, request, note)
        check_window(self.target, request)
        check_wait(self._batch(), self.target, request, note)
        check_default_group(self.aws.ec2, self.target, request, note)

    def payload(self, request: JobRequest) -> dict[str, Any]:
        """Build the arguments of SubmitJob."""
        return submit_arguments(request)

    def submit(
        self, request: JobRequest, *, earlier: set[str], sleep: Callable[[float], None]
    ) -> str:
        """Call SubmitJob, without creating a second job if a response is lost."""
        assert self.once
        arguments = submit_arguments(request)
        if (digest := arguments["tags"].get(contract.TAG_REQUEST)) is not None:
            # Written before the job is submitted, so that every job has its request.
            key = contract.request_key(request.run, digest)
            self._bucket.write(key, encode_request(arguments))
        return submit_once(arguments, self._batch(), earlier=earlier, sleep=sleep)

    def stop(self, summary: RunSummary, reason: str) -> None:
        """Call TerminateJob, which also cancels jobs that have not started."""
        if summary.zone is not None and summary.status not in ON_HOSTS:
            summary = self.prevent_move(summary.run)
        if not summary.ended:
            self._batch().terminate_job(jobId=summary.job_id, reason=reason)

    def prevent_move(self, run: str) -> RunSummary:
        """Prevent the newest job of a run from being moved to another zone, and return it.

        While the name is locked, no job can be added; a move locks it for a few seconds.
        """
        for pause_s in (*MOVE_WAITS_S, None):
            jobs = self.runs(run)
            try:
                with hold_name(self._bucket, run, known={each.job_id for each in jobs}) as hold:
                    hold.renew(stopped=jobs[0].job_id)
                return jobs[0]
            except Refusal:
                if pause_s is None:
                    raise
                time.sleep(pause_s)
        raise AssertionError("the last pause raises")

    @property
    def _bucket(self) -> Bucket:
        return Bucket(client=self.aws.s3(), name=self.target.bucket)

    def is_moving(self, job: Job) -> bool:
        """Return whether a job ended only to be resubmitted in another zone.

        When a dependency is moved, the jobs that depend on it fail and move with it.
        """
        if job.status != "FAILED" or next_zone(self.target, job) is None or not ended_recently(job):
            return False
        if not job.lacked_capacity:
            first = None if job.was_stopped else self.moved_dependency(job)
            if first is None or (first.ended and not first.succeeded and not self.is_moving(first)):
                return False
        holder = newest_holder(self._bucket, job.run)
        known = {each.job_id for each in self.runs(job.run)}
        return holder is None or holder.lets_move(job.job_id, known)

    def moved_dependency(self, job: Job) -> Job | None:
        """Return the newest job of a dependency that was moved; None if none was."""
        for job_id in job.depends_on:
            first = self.describe(job_id)
            if first is not None and first.lacked_capacity:
                newest = self.runs(first.run)[0]
                return self.describe(newest.job_id, newest.shape)
        return None

    def zone(self, job: Job) -> ZonePosition | None:
        """Return a job's position among the deployment's zones."""
        return zone_position(self.target, self.describe, job, is_moving=self.is_moving(job))

    def why_waiting(self, job: Job) -> Explanation | None:
        """Explain why a job waits, from its queue and compute environment."""
        return why_waiting(self._batch(), self.target, job)

    def waits_for(self, job: Job) -> Explanation | None:
        """Name the jobs that must succeed before this one starts; None if there are none."""
        return waits_for(self._batch(), job)

    def _batch(self) -> BatchClient:
        if self._client is None:
            self._client = self.aws.batch_once() if self.once else self.aws.batch()
        return self._client


def list_runs(
    batch: BatchClient,
    queues: Mapping[str, Hardware],
    *,
    run: str | None = None,
    zones: Mapping[str, str] = MappingProxyType({}),
) -> list[RunSummary]:
    """List the queues' jobs, or those of one run; newest first.

    ``zones`` are the zones of the queues, if there are several.
    """
    # With a filter, Batch lists jobs of every status; without one, only RUNNING jobs.
    job_filter = (
        {"name": "AFTER_CREATED_AT", "values": ["0"]}
        if run is None
        else {"name": "JOB_NAME", "values": [run]}
    )
    summaries = [
        _summary(item, hardware, zones.get(queue))
        for queue, hardware in queues.items()
        for page in pages(batch.list_jobs, jobQueue=queue, filters=[job_filter])
        for item in page["jobSummaryList"]
        # Batch compares names case-insensitively. The children of an array are not runs.
        if (run is None or item["jobName"] == run) and ":" not in item["jobId"]
    ]
    return sorted(summaries, key=lambda summary: summary.created_at_ms, reverse=True)


def _summary(item: Mapping[str, Any], hardware: Hardware, zone: str | None) -> RunSummary:
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
        zone=zone,
    )


def submit_once(
    arguments: Mapping[str, Any],
    batch: BatchClient,
    *,
    earlier: Collection[str] = (),
    sleep: Callable[[float], None],
) -> str:
    """Call SubmitJob and return the job id; retry only if no earlier call has created a job.

    ``batch`` must not retry automatically (``Aws.batch_once``). ``earlier`` are the ids of the
    run's previous jobs.
    """
    for wait_s in WAITS_S:
        try:
            return str(batch.submit_job(**arguments)["jobId"])
        except Exception as error:
            ambiguous = errors.is_ambiguous(error)
            if not ambiguous and not errors.is_throttled(error):
                raise
            sleep(wait_s)
            if ambiguous:
                # The response was lost, but the job may exist: check before retrying. The
                # hardware only affects how sizes are parsed, which does not matter here.
                queue = {str(arguments["jobQueue"]): Hardware.TRAINIUM}
                try:
                    summaries = list_runs(batch, queue, run=str(arguments["jobName"]))
                except Exception:
                    # The first error indicates to the caller that a job may have been added.
                    raise error from None
                for summary in summaries:
                    if summary.job_id not in earlier:
                        return summary.job_id
    return str(batch.submit_job(**arguments)["jobId"])
