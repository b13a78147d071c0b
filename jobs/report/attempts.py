"""The attempts of a run, as recorded in the bucket and by the services, with their progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from jobs.bucket.attempts import RecordedJob
from jobs.deployment import Deployment
from jobs.job import Attempt, Job, JobKind
from jobs.output.explain import explain_exit
from jobs.report.curves import TrainingSpan, parse_timestamp, stamp
from jobs.report.document import ReportedAttempt
from trainium_catalogue.attempts import AttemptRecord
from trainium_catalogue.documents import picked
from trainium_catalogue.exit_codes import EXIT_CODES, ExitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSources:
    """All data available about a run."""

    target: Deployment
    run: str
    recorded: Mapping[str, RecordedJob]
    jobs: tuple[Job, ...]
    """Jobs that a service still returns."""
    spans: tuple[TrainingSpan, ...]
    is_program: bool
    status: Mapping[str, Any]
    """Contents of the run's status.json."""
    children_reasons: Mapping[tuple[str, int], str]
    """Exit reasons from child nodes, for attempts whose main node reported none."""
    silent: tuple[str, ...]
    """Sentences about services that did not respond."""


@dataclass(slots=True, kw_only=True)
class AttemptEvidence:
    """All that is known about one attempt: its record, its service's data and its progress."""

    job_id: str | None
    attempt: int
    child: int
    record: AttemptRecord | None = None
    job: Job | None = None
    seen: Attempt | None = None
    """The attempt as reported by its service."""
    span: TrainingSpan | None = None

    @property
    def started_s(self) -> float | None:
        """Start time: from the record, else from the service, else from the metrics."""
        if self.record is not None and (at := parse_timestamp(self.record.started_at)) is not None:
            return at
        if self.seen is not None and self.seen.started_at_ms:
            return self.seen.started_at_ms / 1000
        return self.span.began_at if self.span is not None else None

    @property
    def ended_s(self) -> float | None:
        """Time of its end; None if it is running, or its end was not recorded."""
        if self.record is not None and (at := parse_timestamp(self.record.ended_at)) is not None:
            return at
        return self.seen.stopped_at_ms / 1000 if self.seen and self.seen.stopped_at_ms else None

    @property
    def is_timed_by_service(self) -> bool:
        """True if its service reports its start."""
        return self.seen is not None and bool(self.seen.started_at_ms)

    @property
    def last_seen_s(self) -> float:
        """Time of the latest evidence."""
        seen = [self.started_s or 0.0]
        if self.record is not None:
            times = (self.record.joined_at, *(loss.at for loss in self.record.lost))
            seen += [parse_timestamp(at) or 0.0 for at in times]
        if self.span is not None:
            seen.append(self.span.last_at)
        return max(seen)

    @property
    def code(self) -> int | None:
        """Exit code."""
        if self.record is not None and self.record.code is not None:
            return self.record.code
        return self.seen.exit_code if self.seen is not None else None

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        if self.record is not None:
            return max(1, self.record.num_nodes)
        if self.span is not None and self.span.num_nodes is not None:
            return self.span.num_nodes
        return self.job.num_nodes if self.job and self.job.shape.kind is JobKind.NODES else 1

    @property
    def instance_type(self) -> str | None:
        """Name of the instance type, if recorded."""
        if self.record is not None:
            return self.record.instance_type
        return self.span.instance_type if self.span is not None else None


def find_attempts(sources: RunSources) -> tuple[list[AttemptEvidence], int]:
    """Collect the evidence of each attempt, ordered by start.

    Also return the number of attempts without any known time.
    """
    found: dict[tuple[str | None, int, int], AttemptEvidence] = {}

    def evidence_of(job_id: str | None, attempt: int, child: int = 0) -> AttemptEvidence:
        key = (job_id, attempt, child)
        return found.setdefault(key, AttemptEvidence(job_id=job_id, attempt=attempt, child=child))

    for job_id, recorded in sources.recorded.items():
        for record in recorded.attempts:
            evidence_of(job_id, record.attempt, record.child).record = record
    for job in sources.jobs:
        for child, seen in _service_attempts(job):
            evidence_of(job.job_id, seen.number, child).seen = seen
    for span in sources.spans:
        _owner(span, found, evidence_of).span = span
    jobs = {job.job_id: job for job in sources.jobs}
    for known in found.values():
        known.job = jobs.get(known.job_id or "")
    started = [known for known in found.values() if known.started_s is not None]
    started.sort(key=lambda known: (known.started_s, known.attempt, known.child))
    return started, len(found) - len(started)


def _service_attempts(job: Job) -> Iterator[tuple[int, Attempt]]:
    """Yield a job's attempts as reported by its service, each with its array index."""
    if job.shape.kind is JobKind.ARRAY:
        for node in job.nodes:
            for attempt in node.attempts:
                yield node.index, attempt
        return
    for attempt in job.attempts:
        yield 0, attempt
    ended = {attempt.number for attempt in job.attempts}
    main = next((node for node in job.nodes if node.index == 0), None)
    for attempt in main.attempts if main is not None else ():
        if attempt.number not in ended and attempt.started_at_ms:
            yield 0, attempt


def _owner(
    span: TrainingSpan,
    found: Mapping[tuple[str | None, int, int], AttemptEvidence],
    evidence_of: Callable[[str | None, int], AttemptEvidence],
) -> AttemptEvidence:
    """Find the attempt of a span; a program's span has only a number and a time."""
    if span.job_id is not None:
        return evidence_of(span.job_id, span.attempt)
    earlier = [
        known
        for known in found.values()
        if known.attempt == span.attempt
        and known.span is None
        and known.started_s is not None
        and known.started_s <= span.began_at
    ]
    newest = max(earlier, key=lambda known: known.started_s or 0.0, default=None)
    return newest if newest is not None else evidence_of(None, span.attempt)


def _is_running(known: AttemptEvidence) -> bool:
    """Return whether its service reports it as still running."""
    job = known.job
    if job is None or job.ended or known.ended_s is not None or known.code is not None:
        return False
    return job.status in ("STARTING", "RUNNING") and known.attempt > len(job.attempts)


def reported_attempts(
    sources: RunSources, known: Sequence[AttemptEvidence], now_s: float
) -> tuple[ReportedAttempt, ...]:
    """Build the documents of attempts, in the same order."""
    reported: list[ReportedAttempt] = []
    ended: dict[tuple[str | None, int], float] = {}
    repeated = _repeated_steps(sources, known)
    for item in known:
        started_s = item.started_s
        assert started_s is not None
        running = _is_running(item)
        until_s = item.ended_s or (now_s if running else item.last_seen_s)
        before_s = ended.get((item.job_id, item.child), submitted_s(sources, item.job_id))
        if item.ended_s is not None:
            ended[item.job_id, item.child] = item.ended_s
        record, span = item.record, item.span
        explained = explain_exit(item.code)
        reached = [record.steps] if record is not None else []
        if span is not None:
            reached += [span.reached, span.samples[-1].step if span.samples else None]
        reported.append(
            picked(
                ReportedAttempt,
                item,
                waited_since=stamp(min(before_s, started_s)) if before_s is not None else None,
                started_at=stamp(started_s) or "",
                joined_at=record.joined_at if record is not None else None,
                trained_at=stamp(span.began_at) if span is not None else None,
                ended_at=stamp(item.ended_s),
                last_seen_at=None if item.ended_s is not None or running else stamp(until_s),
                is_running=running,
                code_name=_code_name(item.code),
                meaning=explained.meaning if explained is not None else None,
                reason=_reason(sources, item),
                lost=record.lost if record is not None else (),
                from_step=span.from_step if span is not None else None,
                reached_step=max((step for step in reached if step is not None), default=None),
                repeated_steps=repeated.get(id(item)),
                node_seconds=item.num_nodes * max(0.0, until_s - started_s),
            )
        )
    return tuple(reported)


def _code_name(code: int | None) -> str | None:
    return ExitCode(code).name if code is not None and code in EXIT_CODES else None


def _reason(sources: RunSources, item: AttemptEvidence) -> str | None:
    if item.record is not None and item.record.reason is not None:
        return item.record.reason
    other = sources.children_reasons.get((item.job_id or "", item.attempt))
    if other is not None or item.seen is None:
        return other
    return item.seen.reason or item.seen.status_reason


def submitted_s(sources: RunSources, job_id: str | None) -> float | None:
    """Return the time at which a job was submitted; None if unknown."""
    recorded = sources.recorded.get(job_id or "")
    if recorded is not None and recorded.submission is not None:
        return parse_timestamp(recorded.submission.submitted_at)
    created = next((job.created_at_ms for job in sources.jobs if job.job_id == job_id), None)
    return created / 1000 if created else None


def _repeated_steps(sources: RunSources, known: Sequence[AttemptEvidence]) -> dict[int, int]:
    """Count, for each attempt that trained, the steps that the next one repeated."""
    owners = {id(item.span): item for item in known if item.span is not None}
    repeated: dict[int, int] = {}
    for span, following in pairwise(sources.spans):
        if (item := owners.get(id(span))) is None:
            continue  # a duplicate start line, which no run writes
        if following.from_step is not None:
            resumed_from = following.from_step
        else:  # a program, whose steps are known only from its output
            resumed_from = following.samples[0].step - 1 if following.samples else 0
        reached = [span.reached, item.record.steps if item.record is not None else None]
        reached += [sample.step for sample in span.samples[-1:]]
        steps = [step for step in reached if step is not None]
        # Lines of earlier releases do not record the last step of the previous attempt.
        if steps and not (span.dropped and reached[:2] == [None, None]):
            repeated[id(item)] = max(0, max(steps) - resumed_from)
    return repeated


def is_repeated_lower_bound(
    spans: Sequence[TrainingSpan], known: Sequence[AttemptEvidence]
) -> bool:
    """Return whether an attempt before the last may have completed more steps than recorded."""
    owners = {id(item.span): item for item in known if item.span is not None}
    followed = [owners.get(id(span)) for span in spans[:-1]]
    return any(
        item is None or item.record is None or item.record.ended_at is None for item in followed
    )
