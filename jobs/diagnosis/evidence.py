"""Evidence about a run: facts with their sources, and failed reads."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from jobs.errors import Refusal, as_refusal, error_code, is_denied
from jobs.job import LAUNCHER_VERDICT, Job, NodeLog, RunSummary
from jobs.orchestrators import JobService
from jobs.output.console import duration
from jobs.output.explain import is_informative
from trainium_catalogue.exit_codes import ExitCode

_LOG_LINES = 100
_LOG_STREAMS = 4
"""Maximum number of streams to read: the main node's, then nodes with other exit codes."""
SILENCE_S = 1800.0
"""The launcher's default hang limit for programs (hang-limit-s)."""


class EvidenceSource(StrEnum):
    """Source of a fact, as in documents."""

    heading: str
    """Its name in text output."""

    def __new__(cls, value: str, heading: str) -> EvidenceSource:
        source = str.__new__(cls, value)
        source._value_, source.heading = value, heading
        return source

    STATE = "state", "status of the job"
    REASON = "reason", "status reasons of the job and its nodes"
    LOG = "log", "last lines of the log"
    SILENCE = "silence", "time since the last line"
    DEPENDENCY = "dependency", "jobs it waits for"
    QUEUE = "queue", "job queue"
    ENVIRONMENT = "environment", "compute environment"
    LIMIT = "limit", "size limit of the deployment"
    AHEAD = "ahead", "runs ahead"
    QUOTA = "quota", "account quota"
    RESERVATION = "reservation", "capacity reservation"
    ACTIVITY = "activity", "scaling activities"
    ADDRESSES = "addresses", "subnet addresses"
    HOST = "host", "instances and their console output"
    GROUP = "group", "default security group"
    NODE_GROUP = "node-group", "node group"
    NODES = "nodes", "number of nodes"
    NODE = "node", "node conditions"
    SCALER = "scaler", "node scaler"
    EVENT = "event", "cluster events"
    TERMINATING_PODS = "terminating-pods", "pods of the previous attempt"
    OFFERING = "offering", "zones that offer the type"
    IMAGE = "image", "image"
    HOST_IMAGE = "host-image", "AMI"
    CLUSTER = "cluster", "cluster"
    BUCKET = "bucket", "bucket"
    KEY = "key", "KMS key of the bucket"
    ENDPOINT = "endpoint", "VPC endpoints"
    PERMISSION = "permission", "permissions of the caller"
    REQUEST = "request", "submission"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A single piece of evidence."""

    source: EvidenceSource
    text: str
    is_problem: bool = False
    """True if it keeps the job from running."""
    past: bool = False
    """True if it belongs to an earlier attempt."""


@dataclass(slots=True)
class RunEvidence:
    """Facts about a run, most direct first."""

    facts: list[Fact] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    """Failed reads, with the missing permission or the error."""
    exit_code: int | None = None
    """Exit code that decided the outcome of the job or its last attempt."""
    quotas: dict[str, int] = field(default_factory=dict)
    """Values of the account's vCPU quotas, by code."""
    names: dict[str, str] = field(default_factory=dict)
    """Values of placeholders in remedies that are known only from evidence; they override those of
    ``fields`` in cause.py."""

    def read(self, what: str, permission: str, facts: Callable[[], Iterable[Fact]]) -> None:
        """Add facts; if they cannot be read, note the missing permission or the error."""
        try:
            # Atomically, so that a partial list is not taken for a complete one.
            self.facts += list(facts())
        except Exception as error:
            refusal = as_refusal(error, region=None) or _cluster_refusal(error)
            if is_denied(error):
                self.unread.append(f"{what}: missing permission: {permission}")
            elif refusal is not None or hasattr(error, "status"):
                reason = refusal.message if refusal else f"{error_code(error) or error}"
                self.unread.append(f"{what}: {reason}")
            else:
                raise


def _cluster_refusal(error: Exception) -> Refusal | None:
    """Turn an error from the cluster into a refusal; None for any other."""
    if "kubernetes" not in sys.modules:
        return None
    from jobs.eks.cluster import from_kubernetes

    return from_kubernetes(error)


def of_summary(run: RunSummary) -> RunEvidence:
    """Return the evidence in a run's summary."""
    found = RunEvidence(exit_code=run.exit_code if run.ended else None)
    if is_informative(run.status_reason):
        found.facts.append(Fact(source=EvidenceSource.REASON, text=str(run.status_reason)))
    found.facts.append(Fact(source=EvidenceSource.STATE, text=run.status))
    return found


def of_job(job: Job) -> RunEvidence:
    """Return the evidence in a job's description: status, reasons and exit codes."""
    found = RunEvidence(exit_code=_exit_code(job))
    past: list[str] = []
    present: list[str] = []
    number = _attempt_number(job)
    reasons = [job.status_reason, *(node.status_reason for node in job.nodes)]
    present += [str(reason) for reason in reasons if is_informative(reason)]
    nodes = [attempt for node in job.nodes for attempt in node.attempts]
    for attempt in (*job.attempts, *nodes):
        texts = [
            str(text) for text in (attempt.reason, attempt.status_reason) if is_informative(text)
        ]
        (past if attempt.number < number else present).extend(texts)
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


def _attempt_number(job: Job) -> int:
    """Return the number of the attempt that the job's status describes."""
    if not job.ended:
        return len(job.attempts) + 1
    numbers = [attempt.number for attempt in job.attempts]
    return max(numbers, default=job.ending.number if job.ending else 1)


def _exit_code(job: Job) -> int | None:
    """Return the decisive exit code; a killed node explains the exit codes of the others."""
    ending = job.ending if job.ended else None
    if ending is None or job.succeeded:
        return None
    last = [node.last for node in job.nodes if node.last and node.last.number >= ending.number]
    killed = any(attempt.exit_code == ExitCode.KILLED for attempt in last)
    return ExitCode.KILLED if killed and ending.exit_code == ExitCode.HOST else ending.exit_code


def read_logs(evidence: RunEvidence, service: JobService, job: Job) -> None:
    """Add the last lines of the log, and for a running job the time since the last line."""
    newest: list[int] = []

    def log_facts() -> Iterator[Fact]:
        number = _attempt_number(job)
        streams = _streams(service, job, number if job.status == "RUNNING" else None)
        events: list[tuple[int, str, bool]] = []
        for stream in streams:
            earlier = stream.attempt < number
            page = _last_page(service, stream.name)
            events += [(int(e["timestamp"]), str(e["message"]), earlier) for e in page]
        newest.extend(at_ms for at_ms, _, _ in events)
        if job.status == "RUNNING" and not _is_silent(newest):
            return  # the output of a working run is not evidence of a problem
        lines = [(text, earlier) for _, text, earlier in sorted(events, key=lambda each: each[0])]
        verdicts = [each for each in lines if LAUNCHER_VERDICT.match(each[0])]
        for text, earlier in (*verdicts, *(each for each in lines if each not in verdicts)):
            yield Fact(source=EvidenceSource.LOG, text=text.rstrip(), past=earlier)

    evidence.read("log", "logs:GetLogEvents", log_facts)
    if job.status == "RUNNING":
        evidence.facts += _silence(job, newest)


def _last_page(service: JobService, stream: str) -> list[Mapping[str, Any]]:
    """Read the tail of a stream; empty if the node has printed nothing and so has no stream."""
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
    """Choose streams of the newest attempt, or of attempt ``number``, the main node's first."""
    found = list(job.node_logs) or list(service.find_logs(job))
    chosen = max((stream.attempt for stream in found), default=1) if number is None else number
    codes = {node.index: node.last.exit_code for node in job.nodes if node.last}
    if job.shape.is_large:
        others = [node for node, code in codes.items() if code != codes.get(0)]
        found += [
            each for each in service.find_logs(job, others[:_LOG_STREAMS]) if each not in found
        ]
    latest = [stream for stream in found if stream.attempt == chosen]
    # Nodes whose exit code differs from the main node's are more informative than the others.
    latest.sort(key=lambda s: (s.node != 0, codes.get(s.node) == codes.get(0), s.node))
    return latest[:_LOG_STREAMS]


def _is_silent(times_ms: Iterable[int]) -> bool:
    newest = max(times_ms, default=None)
    return newest is not None and time.time() - newest / 1000 > SILENCE_S


def _silence(job: Job, lines_ms: Iterable[int]) -> Iterator[Fact]:
    """Yield the time since a running job's last line."""
    newest = max((at for at in (*lines_ms, job.started_at_ms) if at), default=None)
    if newest is not None:
        quiet = max(0.0, time.time() - newest / 1000)
        text = f"no line for {duration(quiet)}"
        yield Fact(source=EvidenceSource.SILENCE, text=text, is_problem=quiet > SILENCE_S)
