"""Ranks the causes that the evidence shows: the origin first, then what follows from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jobs.deployment import Deployment, OfRun, where
from jobs.diagnosis.cause import CAUSES, Cause, Rank, fields
from jobs.diagnosis.evidence import EvidenceSource, Fact, RunEvidence, of_job, of_summary
from jobs.job import Job, JobStatus, RunSummary
from trainium_catalogue.contract import Orchestrator

_FACTS_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class FactShown:
    """One fact that shows a cause."""

    source: EvidenceSource
    text: str


@dataclass(frozen=True, kw_only=True)
class RankedCause:
    """A cause that the evidence shows."""

    cause: str
    """Stable word."""
    says: str
    earlier: bool
    """True if only an earlier attempt shows it."""
    evidence: tuple[FactShown, ...]
    remedy: str
    """A line to paste; words in capitals are to be filled in."""
    source: str
    """Public source of the texts that show it, or the file of the project that writes them."""


@dataclass(frozen=True, kw_only=True)
class ExplainDocument(OfRun):
    """Why a run waits, is silent or has failed."""

    job_id: str
    status: JobStatus
    orchestrator: Orchestrator
    cause: str
    """The first cause in one line, as in `status` and `list`."""
    causes: tuple[RankedCause, ...]
    """Most likely first."""
    last_lines: tuple[str, ...]
    """Last lines of the log, if they were read."""
    unread: tuple[str, ...]
    """What could not be read, with the right that is missing or the reason."""


def ranked(evidence: RunEvidence) -> list[tuple[Cause, list[Fact]]]:
    """Return the causes that the evidence shows, most likely first.

    What an earlier attempt shows comes last. Of causes of the same rank, the most direct evidence
    decides: the facts are in that order, and of a log the earliest line explains the later ones.
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
    is_normal = found[0][1].rank is Rank.NORMAL
    return [(c, facts) for _, c, facts in found if is_normal or c.rank is not Rank.NORMAL]


def first_cause(run: RunSummary | Job) -> Cause:
    """Return the most likely cause by what a list, or a description, shows of a run."""
    return ranked(of_job(run) if isinstance(run, Job) else of_summary(run))[0][0]


def explanation(target: Deployment, job: Job, evidence: RunEvidence) -> ExplainDocument:
    """Make the document of `explain`."""
    known = fields(target, job, evidence)
    causes = ranked(evidence)
    lines = [fact.text for fact in evidence.facts if fact.source is EvidenceSource.LOG]
    return ExplainDocument(
        **where(target, job.run),
        job_id=job.job_id,
        status=job.status,
        orchestrator=job.orchestrator,
        cause=causes[0][0].line,
        causes=tuple(_shown(cause, facts, known) for cause, facts in causes),
        last_lines=tuple(lines[-_FACTS_SHOWN:]),
        unread=tuple(evidence.unread),
    )


def _shown(cause: Cause, facts: Sequence[Fact], known: Mapping[str, object]) -> RankedCause:
    return RankedCause(
        cause=cause.name,
        says=cause.says,
        earlier=facts[0].past,
        evidence=tuple(
            FactShown(source=fact.source, text=fact.text) for fact in facts[:_FACTS_SHOWN]
        ),
        remedy=cause.remedy.format(**known),
        source=cause.source,
    )
