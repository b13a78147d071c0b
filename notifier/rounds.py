"""One invocation of the function: check all runs, and publish new notifications.

Notifications are published and recorded job by job, so that the function can be interrupted.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobs.aws import Aws
from jobs.bucket.objects import Bucket
from jobs.deployment import Deployment, cli_command
from jobs.diagnosis.evidence import RunEvidence, of_job, read_logs
from jobs.diagnosis.evidence_reader import gather
from jobs.diagnosis.ranking import ExplainDocument, explanation
from jobs.job import Job, RunSummary, ready_ms
from jobs.orchestrators import JobService
from notifier.notifications import (
    Notification,
    NotificationKind,
    NotificationRules,
    notifications_of,
)
from trainium_catalogue import contract

_MAX_SUBJECT = 100
"""Maximum length of a subject (SNS API reference, Publish)."""
_MAX_JOBS = 1000
"""Maximum number of jobs to remember: those with the latest notifications."""
_RESERVE_S = 60.0
"""Remaining time below which no further job is checked, since AWS may respond that slowly."""
PublishedKeys = dict[str, list[str]]
"""Keys of published notifications by job id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """The SNS topic for notifications."""

    client: Any
    arn: str

    def publish(self, *, subject: str, text: str, **attributes: str) -> None:
        """Publish one message; subscriptions can filter by the attributes."""
        self.client.publish(
            TopicArn=self.arn,
            Subject=subject[:_MAX_SUBJECT],
            Message=text,
            MessageAttributes={
                name: {"DataType": "String", "StringValue": value}
                for name, value in attributes.items()
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationMessage:
    """A message to publish."""

    job: Job
    notification: Notification
    document: ExplainDocument

    @property
    def cause(self) -> str:
        """The first line of `jobs explain`, or the failed attempt's own cause."""
        if self.notification.kind is NotificationKind.ATTEMPT_FAILED:
            for cause in self.document.causes:
                if cause.earlier:
                    return f"{cause.cause}: {cause.says}"
        return self.document.cause

    def text(self, target: Deployment) -> str:
        """Build the text, without the program's arguments, log or environment."""
        job = self.job
        size = job.shape.kind.sized(job.shape.size)
        return (
            f"Run {job.run} ({size}, {job.orchestrator.who}) {self.notification.text}.\n\n"
            f"{self.cause}\n\n"
            f"Evidence and remedies: {cli_command(target)} explain {job.run}\n"
            f"Job {job.job_id} of deployment {target.name} in {target.region}.\n"
        )


@dataclass(slots=True, kw_only=True)
class NotificationRound:
    """One pass over the runs of a deployment."""

    aws: Aws
    target: Deployment
    bucket: Bucket
    topic: Topic
    rules: NotificationRules
    remaining_s: Callable[[], float]
    """Time until the function times out."""
    _published: PublishedKeys = field(default_factory=dict, init=False)
    _etag: str | None = field(default=None, init=False)
    """Version of the published keys; None before the first."""
    _is_ours: bool = field(default=False, init=False)
    """True once this invocation has written that version."""
    _errors: list[str] = field(default_factory=list, init=False)

    def run(self, services: Iterable[JobService]) -> None:
        """Publish new notifications; raise at the end if something failed."""
        if version := self.bucket.read_version(contract.NOTIFICATIONS_SENT):
            self._published, self._etag = json.loads(version.data)["told"], version.etag
        for service, summary in self._runs_to_check(services):
            if self.remaining_s() < _RESERVE_S:
                self._errors.append("the function ran out of time before checking every run")
                break
            messages = self._messages(service, summary)
            if messages and not self._publish(summary.job_id, messages):
                print("another invocation is publishing the same notifications")
                break
        if self._errors:
            raise RuntimeError("; ".join(self._errors))

    def _runs_to_check(self, services: Iterable[JobService]) -> list[tuple[JobService, RunSummary]]:
        """List runs with possible news, ended ones first: they are reported for an hour only.

        The rest are shuffled, so that time does not always run out for the same run.
        """
        found = [
            (service, summary)
            for service, summary in self._list_runs(services)
            if not (summary.ended and not self.rules.is_recent(summary.stopped_at_ms))
        ]
        random.shuffle(found)
        return sorted(found, key=lambda each: not each[1].ended)

    def _list_runs(self, services: Iterable[JobService]) -> Iterator[tuple[JobService, RunSummary]]:
        """Yield all runs, Batch's first, so that an unreadable cluster does not hide them."""
        try:
            for service in services:
                yield from ((service, each) for each in service.runs())
        except Exception as error:
            self._errors.append(f"{type(error).__name__}: {error}")

    def _messages(self, service: JobService, summary: RunSummary) -> list[NotificationMessage]:
        """Return the new notifications about a job; errors do not affect other jobs."""
        published = self._published.get(summary.job_id, [])
        if any(
            key.startswith((NotificationKind.SUCCEEDED, NotificationKind.FAILED))
            for key in published
        ):
            return []
        try:
            job = service.describe(summary.job_id, summary.shape)
            if job is None or service.is_moving(job):
                return []  # deleted, or about to be replaced by another job
            found = notifications_of(
                job,
                _read_evidence(service, job, published),
                self.rules,
                ready_ms=ready_ms(service.describe, job),
                usd_per_node_hour=self.target.instance_type.usd_per_hour_estimate,
            )
            news = [each for each in found if each.key not in published]
            if not news:
                return []
            # Takes many calls, so only for new notifications.
            evidence = gather(self.aws, self.target, service, job)
            document = explanation(self.target, job, evidence)
            return [
                NotificationMessage(job=job, notification=each, document=document) for each in news
            ]
        except Exception as error:
            self._errors.append(f"run {summary.run}: {type(error).__name__}: {error}")
            return []

    def _publish(self, job_id: str, messages: Sequence[NotificationMessage]) -> bool:
        """Publish messages, then record them; return False if another invocation does.

        This order guarantees delivery at least once. Before the first message, this rewrites
        the object with the same keys: schedules invoke at least once, so only one of the concurrent
        invocations may continue, and only if it can record its messages.
        """
        if not self._is_ours and not self._write():
            return False
        self._is_ours = True
        published = [each.notification.key for each in messages if self._publish_one(each)]
        if not published:
            return True
        # Moved to the end, so that the oldest entries are dropped first.
        self._published[job_id] = [*self._published.pop(job_id, []), *published]
        return self._write()

    def _write(self) -> bool:
        latest = dict(list(self._published.items())[-_MAX_JOBS:])
        etag = self.bucket.replace(contract.NOTIFICATIONS_SENT, _encode(latest), etag=self._etag)
        self._etag = etag or self._etag
        return etag is not None

    def _publish_one(self, message: NotificationMessage) -> bool:
        """Publish one message; return False if it failed, for the next invocation to retry."""
        job, new = message.job, message.notification
        try:
            self.topic.publish(
                subject=f"trainium {self.target.name}: {job.run} {new.kind}",
                text=message.text(self.target),
                kind=new.kind,
                run=job.run,
                cause=message.cause.partition(":")[0],
            )
        except Exception as error:
            self._errors.append(f"{new.key} of run {job.run} was not published: {error}")
            return False
        print(f"published {new.key} of job {job.job_id}")
        return True


def _read_evidence(service: JobService, job: Job, published: Sequence[str]) -> RunEvidence:
    """Read the evidence that notifications depend on: the description, and a running job's log."""
    evidence = of_job(job)
    attempt = len(job.attempts) + 1
    if job.status == "RUNNING" and f"{NotificationKind.NO_PROGRESS}-{attempt}" not in published:
        read_logs(evidence, service, job)
    return evidence


def _encode(published: PublishedKeys) -> bytes:
    # The id makes each object unique, so that no invocation mistakes another's ETag for its own.
    return json.dumps({"round": uuid.uuid4().hex, "told": published}, indent=1).encode()
