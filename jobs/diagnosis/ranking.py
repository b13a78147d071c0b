"""Rank the causes that match the evidence: root causes first, then symptoms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.deployment import Deployment, RunFields, where
from jobs.diagnosis.cause import CAUSES, Cause, Rank, fields
from jobs.diagnosis.evidence import EvidenceSource, Fact, RunEvidence, of_job, of_summary
from jobs.job import Job, JobStatus, RunSummary, ZonePosition
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.documents import picked

_FACTS_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class FactItem:
    """A fact, as shown in documents."""

    source: EvidenceSource
    text: str


@dataclass(frozen=True, kw_only=True)
class RankedCause:
    """A cause that matches the evidence."""

    cause: str
    """Stable name."""
    says: str
    earlier: bool
    """True if only evidence from an earlier attempt matches."""
    evidence: tuple[FactItem, ...]
    remedy: str
    """Command to paste; replace uppercase words."""
    source: str
    """Public source of the matching texts, or this project's file that writes them."""


@dataclass(frozen=True, kw_only=True)
class ExplainDocument(RunFields):
    """Explanation of why a run waits, prints nothing or has failed."""

    job_id: str
    status: JobStatus
    orchestrator: Orchestrator
    cause: str
    """The first cause in one line, as in `status` and `list`."""
    causes: tuple[RankedCause, ...]
    """Causes, most likely first."""
    zone: ZonePosition | None
    """The job's zone, and the next one; null with a single zone."""
    last_lines: tuple[str, ...]
    """Last lines of the log, if read."""
    unread: tuple[str, ...]
    """Failed reads, with the missing permission or the reason."""


def ranked(evidence: RunEvidence) -> list[tuple[Cause, list[Fact]]]:
    """Return the causes that match the evidence, most likely first.

    Causes from earlier attempts come last. Within a rank, the most direct evidence decides: facts
    are in that order, and the earliest line of a log explains the later ones.
    """
    found: list[tuple[tuple[bool, int, int], Cause, list[Fact]]] = []
    for cause in CAUSES:
        shown = list(cause.shown_by(evidence))
        if present := [pair for pair in shown if not pair[1].past]:
            shown = present
        if shown:
            place, first = shown[0]
            key = (first.past, int(cause.rank), place)
            found.append((key, cause, [fact for _, fact in shown]))
    found.sort(key=lambda each: each[0])
    is_normal = bool(found) and found[0][1].rank is Rank.NORMAL
    causes: list[tuple[Cause, list[Fact]]] = []
    explained: list[Fact] = []
    for _, cause, facts in found:
        # Skip a symptom whose facts are already explained by a root cause.
        is_informative = cause.rank is not Rank.SYMPTOM or any(
            fact not in explained for fact in facts
        )
        if is_informative and (is_normal or cause.rank is not Rank.NORMAL):
            causes.append((cause, facts))
            explained += facts
    return causes


def first_cause(run: RunSummary | Job) -> Cause:
    """Return the most likely cause, judging from a list item or a description alone."""
    return ranked(of_job(run) if isinstance(run, Job) else of_summary(run))[0][0]


def explanation(
    target: Deployment, job: Job, evidence: RunEvidence, *, zone: ZonePosition | None = None
) -> ExplainDocument:
    """Build the document of `explain`."""
    known = fields(target, job, evidence)
    causes = ranked(evidence)
    lines = [fact.text for fact in evidence.facts if fact.source is EvidenceSource.LOG]
    return ExplainDocument(
        **where(target, job.run),
        job_id=job.job_id,
        status=job.status,
        orchestrator=job.orchestrator,
        cause=causes[0][0].line,
        causes=tuple(
            picked(
                RankedCause,
                cause,
                cause=cause.name,
                earlier=facts[0].past,
                evidence=shown(facts),
                remedy=cause.remedy.format(**known),
            )
            for cause, facts in causes
        ),
        zone=zone,
        last_lines=tuple(lines[-_FACTS_SHOWN:]),
        unread=tuple(evidence.unread),
    )


def shown(facts: Sequence[Fact]) -> tuple[FactItem, ...]:
    """Return the first facts, for documents."""
    return tuple(FactItem(source=fact.source, text=fact.text) for fact in facts[:_FACTS_SHOWN])
