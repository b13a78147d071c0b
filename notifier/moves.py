"""Move jobs without capacity in their zone to the queue of the next zone.

A job that has waited too long is cancelled; CancelJob does not affect a job that has started in the
meantime. Once it has failed for lack of capacity, the same job is submitted to the next zone
exactly once: the run's name is locked, as for a user's submission (``jobs.bucket.name_hold``). If
the function dies before submitting, the lock expires within minutes, and a later invocation
submits; if it dies afterwards, the run already has a newer job.

The request is the job's own, stored in the bucket under the digest in the job's tag.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from jobs.aws import Aws
from jobs.batch.request import resubmit_arguments
from jobs.batch.service import BatchService, submit_once
from jobs.batch.zones import ended_recently, moves_after_ms, next_zone
from jobs.bucket.attempts import note_submission
from jobs.bucket.name_hold import hold_name
from jobs.bucket.objects import Bucket
from jobs.deployment import Deployment
from jobs.diagnosis.cause import NO_CAPACITY_CAUSE
from jobs.diagnosis.evidence_reader import gather, scaling_groups
from jobs.diagnosis.ranking import ranked
from jobs.errors import Refusal
from jobs.job import NO_CAPACITY, ON_HOSTS, Job, RunSummary
from trainium_catalogue import contract
from trainium_catalogue.workloads import Hardware

_SETTLE_S = 10.0
"""Time for Batch to set the cancelled jobs to FAILED."""
_RESERVE_S = 60.0
"""Remaining time below which no further job is checked; the next invocation continues."""


@dataclass(slots=True, kw_only=True)
class ZoneMoves:
    """One pass over a deployment's jobs that may move."""

    aws: Aws
    target: Deployment
    bucket: Bucket
    definition: Callable[[str], str | None]
    """Returns the job definition of a workload."""
    now_ms: int
    sleep: Callable[[float], None]
    remaining_s: Callable[[], float]
    """Time until the function times out."""
    _errors: list[str] = field(default_factory=list, init=False)

    def run(self) -> None:
        """Move the jobs that are due; raise at the end if anything failed."""
        service = BatchService(self.aws, self.target)
        due: list[Job] = []

        def cancel(job: Job) -> None:
            if self._is_due(service, job):
                due.append(job)
                self._cancel(job)

        # Jobs cancelled by an earlier invocation first: they are in no queue.
        self._move_ended(service)
        self._for_each(self._newest(service, "RUNNABLE"), cancel)
        if due:
            self.sleep(_SETTLE_S)
            self._move_ended(service)
        if self._errors:
            raise RuntimeError("; ".join(dict.fromkeys(self._errors)))

    def _move_ended(self, service: BatchService) -> None:
        # Dependencies first.
        ended = sorted(self._newest(service, "FAILED"), key=lambda job: len(job.depends_on))
        self._for_each(ended, lambda job: self._move(service, job))

    def _newest(self, service: BatchService, status: str) -> list[Job]:
        """Describe the newest job of each run that has this status and may move."""
        newest: dict[str, RunSummary] = {}
        for summary in service.runs():
            newest.setdefault(summary.run, summary)
        found = (
            service.describe(each.job_id, each.shape)
            for each in newest.values()
            if each.hardware is Hardware.TRAINIUM
            and each.status == status
            and (not each.ended or ended_recently(each))
        )
        return [job for job in found if job is not None and next_zone(self.target, job) is not None]

    def _for_each(self, jobs: Iterable[Job], act: Callable[[Job], None]) -> None:
        """Call ``act`` for each job until time runs out; an error does not affect the others."""
        for job in jobs:
            if self.remaining_s() < _RESERVE_S:
                self._errors.append("the function ran out of time before checking every job")
                break
            try:
                act(job)
            except Exception as error:
                self._errors.append(f"run {job.run}: {type(error).__name__}: {error}")

    def _is_due(self, service: BatchService, job: Job) -> bool:
        after_ms = moves_after_ms(service.describe, job)
        if after_ms is None or self.now_ms < after_ms or self._has_hosts(service, job):
            return False
        if NO_CAPACITY in (job.status_reason or ""):
            return True  # saves the many calls of a full diagnosis
        (cause, _), *_ = ranked(gather(self.aws, self.target, service, job))
        return cause.name == NO_CAPACITY_CAUSE

    def _has_hosts(self, service: BatchService, job: Job) -> bool:
        """Return whether all hosts of a job exist, as it stays RUNNABLE until they have booted."""
        zone = self.target.zone_of(job.job_queue)
        assert zone is not None
        others = (each for each in service.runs() if each.zone == zone.zone)
        busy = sum(each.num_nodes or 0 for each in others if each.status in ON_HOSTS)
        environment = zone.compute_environment.rpartition("/")[2]
        hosts = (
            host["LifecycleState"].partition(":")[0]
            for group in scaling_groups(self.aws, [environment])
            for host in group["Instances"]
        )
        return sum(state in ("Pending", "InService") for state in hosts) - busy >= job.num_nodes

    def _cancel(self, job: Job) -> None:
        zone, following = self.target.zone_of(job.job_queue), next_zone(self.target, job)
        assert zone is not None and following is not None
        reason = f"{NO_CAPACITY} in {zone.zone}: moves to {following.zone}"
        self.aws.batch_once().cancel_job(jobId=job.job_id, reason=reason)
        print(f"cancelled job {job.job_id} of run {job.run}: {reason}")

    def _move(self, service: BatchService, job: Job) -> None:
        """Resubmit a job in the next zone, or in the zone of its dependency."""
        if not service.is_moving(job):
            return
        zone, first = next_zone(self.target, job), None
        if not job.lacked_capacity:
            # It failed with its dependency, and moves with it.
            first = service.moved_dependency(job)
            if first is None or (first.ended and not first.succeeded):
                return
            zone = self.target.zone_of(first.job_queue)
        assert zone is not None
        try:
            with hold_name(
                self.bucket, job.run, known=_ids(service.runs(job.run)), moves=job.job_id
            ) as hold:
                jobs = service.runs(job.run)
                if jobs[0].job_id != job.job_id:
                    return  # already moved, or resubmitted by a user
                digest = str(job.request_digest)
                arguments = resubmit_arguments(
                    self.bucket.read(contract.request_key(job.run, digest)),
                    digest,
                    job_queue=zone.job_queue,
                    job_definition=str(self.definition(str(job.workload))),
                    depends_on=() if first is None or first.ended else (first.job_id,),
                )
                hold.adds_job = True
                hold.job_id = submit_once(
                    arguments, self.aws.batch_once(), earlier=_ids(jobs), sleep=self.sleep
                )
        except Refusal as refusal:
            print(f"run {job.run} was not moved: {refusal}")
            return
        with suppress(Exception):  # best effort: the job exists anyway
            note_submission(self.bucket, job, hold.job_id)
        print(f"moved run {job.run} to {zone.zone}: job {hold.job_id} replaces {job.job_id}")


def _ids(summaries: Iterable[RunSummary]) -> set[str]:
    return {each.job_id for each in summaries}
