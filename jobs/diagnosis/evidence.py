"""What is known of a run: facts, each with its source, and what could not be read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from jobs.errors import as_refusal, error_code, is_denied
from jobs.job import LAUNCHERS_VERDICT, Job, NodeLog, RunSummary
from jobs.orchestrators import JobService
from jobs.output.console import duration
from jobs.output.explain import is_news
from trainium_catalogue.exit_codes import ExitCode

_LOG_LINES = 100
_LOG_STREAMS = 4
"""Streams read at most: the main node's, and those of nodes that ended differently."""
SILENCE_S = 1800.0
"""The launcher's default limit of a program's silence (hang-limit-s)."""


class EvidenceSource(StrEnum):
    """Where a fact comes from: its word in documents."""

    STATE = "state"
    REASON = "reason"
    LOG = "log"
    SILENCE = "silence"
    DEPENDENCY = "dependency"
    QUEUE = "queue"
    ENVIRONMENT = "environment"
    LIMIT = "limit"
    AHEAD = "ahead"
    QUOTA = "quota"
    RESERVATION = "reservation"
    ACTIVITY = "activity"
    ADDRESSES = "addresses"
    HOST = "host"
    GROUP = "group"
    NODE_GROUP = "node-group"
    NODES = "nodes"
    NODE = "node"
    SCALER = "scaler"
    EVENT = "event"
    LEAVING = "leaving"

    @property
    def heading(self) -> str:
        """The source in words."""
        return _TITLES[self]


_TITLES: Mapping[EvidenceSource, str] = {
    EvidenceSource.STATE: "state of the job",
    EvidenceSource.REASON: "reasons of the job and its nodes",
    EvidenceSource.LOG: "last lines of the log",
    EvidenceSource.SILENCE: "time since the last line",
    EvidenceSource.DEPENDENCY: "jobs it waits for",
    EvidenceSource.QUEUE: "job queue",
    EvidenceSource.ENVIRONMENT: "compute environment",
    EvidenceSource.LIMIT: "size limit of the deployment",
    EvidenceSource.AHEAD: "runs that have the nodes",
    EvidenceSource.QUOTA: "quota of the account",
    EvidenceSource.RESERVATION: "capacity reservation",
    EvidenceSource.ACTIVITY: "scaling activities",
    EvidenceSource.ADDRESSES: "addresses of the subnet",
    EvidenceSource.HOST: "instances and their consoles",
    EvidenceSource.GROUP: "default security group",
    EvidenceSource.NODE_GROUP: "node group",
    EvidenceSource.NODES: "number of nodes",
    EvidenceSource.NODE: "conditions of nodes",
    EvidenceSource.SCALER: "node scaler",
    EvidenceSource.EVENT: "events of the cluster",
    EvidenceSource.LEAVING: "pods of the attempt before",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One thing that was read."""

    source: EvidenceSource
    text: str
    wrong: bool = False
    """True if it is known to keep the job from running."""
    past: bool = False
    """True if it is about an earlier attempt."""


@dataclass(slots=True)
class RunEvidence:
    """Facts about a run: the most direct first."""

    facts: list[Fact] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    """What was not read, with the right that is missing or the error."""
    exit_code: int | None = None
    """Exit code that decided how the job, or its last attempt, ended."""
    quotas: dict[str, int] = field(default_factory=dict)
    """vCPUs of the account's quotas that were read, by code."""
    names: dict[str, str] = field(default_factory=dict)
    """Names for remedies that the deployment does not publish, see ``fields`` in cause.py."""

    def read(self, what: str, right: str, facts: Callable[[], Iterable[Fact]]) -> None:
        """Add facts; without the right to read them, or an answer, note that."""
        try:
            # In one step, so that half of a list does not pass for the whole.
            self.facts += list(facts())
        except Exception as error:
            refusal = as_refusal(error, region=None)
            if is_denied(error):
                self.unread.append(f"{what}: needs {right}")
            elif refusal is not None or hasattr(error, "status"):
                reason = refusal.message if refusal else f"{error_code(error) or error}"
                self.unread.append(f"{what}: {reason}")
            else:
                raise


def of_summary(run: RunSummary) -> RunEvidence:
    """Return what a list of runs shows of one."""
    found = RunEvidence(exit_code=run.exit_code if run.ended else None)
    if is_news(run.status_reason):
        found.facts.append(Fact(source=EvidenceSource.REASON, text=str(run.status_reason)))
    found.facts.append(Fact(source=EvidenceSource.STATE, text=run.status))
    return found


def of_job(job: Job) -> RunEvidence:
    """Return what the description of a job shows: states, reasons and exit codes."""
    found = RunEvidence(exit_code=_exit_code(job))
    past: list[str] = []
    present: list[str] = []
    number = _number_of(job)
    reasons = [job.status_reason, *(node.status_reason for node in job.nodes)]
    present += [str(reason) for reason in reasons if is_news(reason)]
    nodes = [attempt for node in job.nodes for attempt in node.attempts]
    for attempt in (*job.attempts, *nodes):
        said = [str(text) for text in (attempt.reason, attempt.status_reason) if is_news(text)]
        (past if attempt.number < number else present).extend(said)
    found.facts += [
        Fact(source=EvidenceSource.REASON, text=text) for text in dict.fromkeys(present)
    ]
    found.facts += [
        Fact(source=EvidenceSource.REASON, text=text, past=True)
        for text in dict.fromkeys(past)
        if text not in present
    ]
    code = "" if found.exit_code is None else f", exit code {found.exit_code}"
    again = "" if job.ended or number == 1 else f", attempt {number}"
    found.facts.append(Fact(source=EvidenceSource.STATE, text=f"{job.status}{code}{again}"))
    return found


def _number_of(job: Job) -> int:
    """Return the number of the attempt that the job's state is about."""
    if not job.ended:
        return len(job.attempts) + 1
    numbers = [attempt.number for attempt in job.attempts]
    return max(numbers, default=job.ending.number if job.ending else 1)


def _exit_code(job: Job) -> int | None:
    """Return the exit code that counts; a node that was killed explains what others report."""
    ending = job.ending if job.ended else None
    if ending is None or job.succeeded:
        return None
    last = [node.last for node in job.nodes if node.last and node.last.number >= ending.number]
    killed = any(attempt.exit_code == ExitCode.KILLED for attempt in last)
    return ExitCode.KILLED if killed and ending.exit_code == ExitCode.HOST else ending.exit_code


def read_logs(evidence: RunEvidence, service: JobService, job: Job) -> None:
    """Add the last lines of the log, and of a running job the time since the last sign of life."""
    newest: list[int] = []

    def lines() -> Iterator[Fact]:
        number = _number_of(job)
        streams = _streams(service, job, number if job.status == "RUNNING" else None)
        events: list[tuple[int, str, bool]] = []
        for stream in streams:
            earlier = stream.attempt < number
            page = _last_page(service, stream.name)
            events += [(int(e["timestamp"]), str(e["message"]), earlier) for e in page]
        newest.extend(time for time, _, _ in events)
        if job.status == "RUNNING" and not _is_silent(newest):
            return  # what a run prints while it works is no cause of anything
        said = [(text, earlier) for _, text, earlier in sorted(events, key=lambda each: each[0])]
        verdicts = [each for each in said if LAUNCHERS_VERDICT.match(each[0])]
        for text, earlier in (*verdicts, *(each for each in said if each not in verdicts)):
            yield Fact(source=EvidenceSource.LOG, text=text.rstrip(), past=earlier)

    evidence.read("log", "logs:GetLogEvents", lines)
    if job.status == "RUNNING":
        evidence.facts += _silence(job, newest)


def _last_page(service: JobService, stream: str) -> list[Mapping[str, Any]]:
    """Read the end of a stream; none of a node that has printed nothing, which has no stream."""
    try:
        page = service.logs().get_log_events(
            logGroupName=service.log_group,
            logStreamName=stream,
            startFromHead=False,
            limit=_LOG_LINES,
        )
    except Exception as error:
        if error_code(error) != "ResourceNotFoundException":
            raise
        return []
    return list(page["events"])


def _streams(service: JobService, job: Job, number: int | None) -> list[NodeLog]:
    """Choose the streams of the newest attempt, or of ``number``: the main node's first."""
    found = list(job.node_logs) or list(service.find_logs(job))
    chosen = max((stream.attempt for stream in found), default=1) if number is None else number
    codes = {node.index: node.last.exit_code for node in job.nodes if node.last}
    latest = [stream for stream in found if stream.attempt == chosen]
    # A node that ended in another way than the main node has more to tell than the others.
    latest.sort(key=lambda s: (s.node != 0, codes.get(s.node) == codes.get(0), s.node))
    return latest[:_LOG_STREAMS]


def _is_silent(times_ms: Iterable[int]) -> bool:
    newest = max(times_ms, default=None)
    return newest is not None and time.time() - newest / 1000 > SILENCE_S


def _silence(job: Job, lines_ms: Iterable[int]) -> Iterator[Fact]:
    """Yield how long a running job has printed nothing."""
    newest = max((at for at in (*lines_ms, job.started_at_ms) if at), default=None)
    if newest is not None:
        quiet = max(0.0, time.time() - newest / 1000)
        text = f"no line for {duration(quiet)}"
        yield Fact(source=EvidenceSource.SILENCE, text=text, wrong=quiet > SILENCE_S)
