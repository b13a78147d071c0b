"""Zones of jobs, and when jobs move to the next zone, in deployments with several zones.

`notifier.moves` moves them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from jobs.deployment import BatchZone, Deployment
from jobs.job import ENDED, Job, RunSummary, ZonePosition, ready_ms

MOVED_WITHIN_MS = 20 * 60_000
"""How long after its end a job can still be moved: the Lambda function runs every five minutes; an
invocation that dies at its five-minute timeout leaves the run's name locked for five more. A job
that ended longer ago counts as failed: it can no longer be moved, or had no next zone to move to.
"""
_LONGEST_WAIT_MS = 24 * 3_600_000
"""Maximum time at the head of a queue before Batch cancels a job (``maxTimeSeconds``)."""
Describe = Callable[[str], Job | None]


def next_zone(target: Deployment, job: Job) -> BatchZone | None:
    """Return the zone that a job without capacity moves to; None if it stays.

    A job that has had an attempt stays, because a resubmission would reset its attempt count.
    """
    if job.zone_patience_minutes is None or job.attempts:
        return None
    return target.next_zone(job.job_queue)


def ended_recently(job: Job | RunSummary) -> bool:
    """Return whether a job ended recently enough to be moved."""
    # AWS guarantees an end time only for a job that has run (API reference, JobDetail).
    ended_ms = job.stopped_at_ms or (job.created_at_ms or 0) + _LONGEST_WAIT_MS
    return time.time() * 1000 - ended_ms < MOVED_WITHIN_MS


def moves_after_ms(describe: Describe, job: Job) -> int | None:
    """Return the deadline of a job's wait for nodes; None until its dependencies have ended."""
    ready = ready_ms(describe, job)
    if ready is None or job.zone_patience_minutes is None:
        return None
    return max(job.created_at_ms or 0, ready) + 60_000 * job.zone_patience_minutes


def zone_position(
    target: Deployment, describe: Describe, job: Job, *, is_moving: bool
) -> ZonePosition | None:
    """Return a job's position among the zones; None with a single zone."""
    zone = target.zone_of(job.job_queue)
    if zone is None:
        return None
    may_move = job.status not in (*ENDED, "STARTING", "RUNNING")
    following = None
    if may_move or is_moving:
        following = next_zone(target, job)
    return ZonePosition(
        zone=zone.zone,
        next_zone=None if following is None else following.zone,
        moves_after_ms=None if following is None or not may_move else moves_after_ms(describe, job),
    )
