"""Notifications about a run: waiting, failed attempts, no progress, cost, and its outcome.

They depend only on the run's state, so that lost or repeated events do not matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from jobs.diagnosis.evidence import EvidenceSource, RunEvidence
from jobs.job import ESTIMATE_NOTE, Attempt, Job
from jobs.output.console import duration
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.workloads import Hardware

RECENT_S = 3600.0
"""Seconds after its end in which a job or attempt is reported, so that older ones are skipped."""
COST_SHARE = 0.8
"""Fraction of an attempt's time limit, and thus of its maximum cost, at which to notify."""
_WAITING = ("SUBMITTED", "RUNNABLE", "STARTING")


class NotificationKind(StrEnum):
    """Kinds of notifications; subscriptions can filter by them (message attribute ``kind``)."""

    WAITING = "waiting"
    ATTEMPT_FAILED = "attempt-failed"
    NO_PROGRESS = "no-progress"
    COST = "cost"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """A notification about a run."""

    kind: NotificationKind
    attempt: int
    text: str
    """Rest of a sentence that begins with the run name."""

    @property
    def key(self) -> str:
        """Identifier, unique among the notifications of its job."""
        return f"{self.kind}-{self.attempt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationRules:
    """Thresholds for notifications."""

    wait_s: float
    """Waiting time after which to notify."""
    now_ms: int

    def is_recent(self, time_ms: int | None) -> bool:
        """Return whether an end time is recent; None (pods deleted just now) counts as recent."""
        return time_ms is None or self.now_ms - time_ms < 1000 * RECENT_S


def notifications_of(
    job: Job,
    evidence: RunEvidence,
    rules: NotificationRules,
    *,
    ready_ms: int | None,
    usd_per_node_hour: float,
) -> Iterator[Notification]:
    """Yield all notifications about a job, including those already published.

    Args:
        job: The job.
        evidence: Evidence about it.
        rules: Thresholds.
        ready_ms: Time when its last dependency ended, 0 if there are none; None until then.
        usd_per_node_hour: List price of a Trainium node.
    """
    retried = _retried_attempts(job)
    for attempt in retried:
        if rules.is_recent(attempt.stopped_at_ms):
            yield _attempt_failure(job, attempt)
    number = len(retried) + 1
    if job.ended:
        kind = NotificationKind.SUCCEEDED if job.succeeded else NotificationKind.FAILED
        yield Notification(kind=kind, attempt=number, text=f"{kind} in attempt {number}")
    elif job.status == "RUNNING":
        yield from _running_notifications(job, evidence, rules, number, usd_per_node_hour)
    elif job.status in _WAITING and ready_ms is not None:
        waited_s = (rules.now_ms - _waiting_since_ms(job, ready_ms)) / 1000
        if waited_s >= rules.wait_s:
            text = f"has been waiting for {duration(waited_s)} ({job.status})"
            yield Notification(kind=NotificationKind.WAITING, attempt=number, text=text)


def _retried_attempts(job: Job) -> tuple[Attempt, ...]:
    """Return the attempts that were retried."""
    if not job.ended or not job.attempts:
        return job.attempts
    # On the cluster, nothing is known of a successful attempt once its pods are deleted.
    is_last_unknown = job.orchestrator is Orchestrator.EKS and job.attempts[-1].exit_code != 0
    return job.attempts if job.succeeded and is_last_unknown else job.attempts[:-1]


def _attempt_failure(job: Job, attempt: Attempt) -> Notification:
    code = "" if attempt.exit_code is None else f" with exit code {attempt.exit_code}"
    of = "" if job.max_attempts is None else f" of {job.max_attempts}"
    text = f"failed in attempt {attempt.number}{of}{code}, and is being retried"
    return Notification(kind=NotificationKind.ATTEMPT_FAILED, attempt=attempt.number, text=text)


def _running_notifications(
    job: Job, evidence: RunEvidence, rules: NotificationRules, number: int, usd_per_node_hour: float
) -> Iterator[Notification]:
    for fact in evidence.facts:
        if fact.source is EvidenceSource.SILENCE and fact.is_problem:
            text = f"is running without progress: {fact.text}"
            yield Notification(kind=NotificationKind.NO_PROGRESS, attempt=number, text=text)
    if job.time_limit_s and job.started_at_ms and job.hardware is Hardware.TRAINIUM:
        ran_s = (rules.now_ms - job.started_at_ms) / 1000
        if ran_s >= COST_SHARE * job.time_limit_s:
            usd = job.num_nodes * usd_per_node_hour / 3600
            text = (
                f"has run for {duration(ran_s)} of {duration(job.time_limit_s)} in attempt "
                f"{number}: about {usd * ran_s:,.0f} of at most {usd * job.time_limit_s:,.0f} USD "
                f"({ESTIMATE_NOTE})"
            )
            yield Notification(kind=NotificationKind.COST, attempt=number, text=text)


def _waiting_since_ms(job: Job, ready_ms: int) -> int:
    """Return when the wait began: when the last attempt ended, or when the job could start.

    On the cluster, ``started_at_ms`` is the time of Volcano's Pending condition, updated when the
    job waits again.
    """
    ends = (attempt.stopped_at_ms for attempt in job.attempts)
    return max(
        job.created_at_ms or 0, ready_ms, job.started_at_ms or 0, *(end or 0 for end in ends)
    )
