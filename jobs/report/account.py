"""Combine a run's data from the bucket and the services, and compute its figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from jobs.deployment import where
from jobs.job import Job
from jobs.report.attempts import (
    AttemptEvidence,
    RunSources,
    find_attempts,
    is_repeated_lower_bound,
    reported_attempts,
    submitted_s,
)
from jobs.report.curves import StepSample, parse_timestamp, stamp
from jobs.report.document import (
    ReportDocument,
    ReportedAttempt,
    ReportedCheckpoint,
    ReportedJob,
    ReportedStep,
    SpentTime,
)
from trainium_catalogue.instances import INSTANCE_TYPES, USD_PER_JOB_HOUR_ESTIMATE
from trainium_catalogue.prices import PRICES_OF
from trainium_catalogue.wording import counted
from trainium_catalogue.workloads import WORKLOADS, Hardware

_MAX_POINTS = 1000
_NO_TOKENS = frozenset(item.name for item in WORKLOADS.values() if item.dataset_kind == "images")
"""Workloads whose samples have no tokens."""


def report_document(sources: RunSources, *, now_s: float) -> ReportDocument:
    """Compute the progress and cost of a run so far."""
    known, untimed = find_attempts(sources)
    unknown = [*sources.silent]
    reported = reported_attempts(sources, known, now_s)
    seconds = sum(item.node_seconds for item in reported)
    without_end = sum(1 for item in reported if not item.is_running and item.ended_at is None)
    without_start = sum(1 for item in known if item.record is None and not item.is_timed_by_service)
    unknown += _unknown_times(without_end, without_start, untimed)
    workload = _workload(sources)
    kind = WORKLOADS.get(workload or "")
    hardware = kind.hardware if kind is not None else Hardware.TRAINIUM
    usd = _usd(sources, reported, hardware, unknown)
    samples = [sample for span in sources.spans for sample in span.samples]
    tokens = samples[-1].tokens or None if samples and workload not in _NO_TOKENS else None
    busy_s, num_steps = sum(s.seconds for s in samples), sum(s.count for s in samples)
    spent = _spent(known, reported)
    productive = next((part.node_seconds for part in spent if part.on == "steps"), None)
    repeated = [item.repeated_steps for item in reported if item.repeated_steps is not None]
    is_lower_bound = is_repeated_lower_bound(sources.spans, known)
    if is_lower_bound and repeated:
        unknown.append(
            "the number of repeated steps is a lower bound: the newest lines of an attempt that "
            "ended without recording its end may be missing"
        )
    unknown += _unknown_steps(sources, samples, trains=kind is not None and kind.trains)
    validation = {point.step: point for s in sources.spans for point in s.validation}
    if any(s.is_emulated for s in sources.spans) or any(
        k.record and k.record.device == "cpu" for k in known if hardware is Hardware.TRAINIUM
    ):
        unknown.append(
            "the run used CPUs, as in a rehearsal: the cost is what the deployment's instance type "
            "would have cost for the same time"
        )
    jobs = _jobs(sources)
    begins = [at for at in (parse_timestamp(job.submitted_at) for job in jobs) if at is not None]
    begins += [at for item in reported if (at := parse_timestamp(item.started_at)) is not None]
    state = _state(sources, known, jobs)
    ends = [item.ended_at or item.last_seen_at for item in reported]
    per_million = None if usd is None or not tokens else usd / tokens * 1e6
    mfu = [(s.mfu, s.seconds) for s in samples if s.mfu is not None]
    weight = sum(seconds for _, seconds in mfu)
    return ReportDocument(
        **where(sources.target, sources.run),
        made_at=stamp(now_s) or "",
        workload=workload,
        state=state,
        began_at=stamp(min(begins, default=None)),
        ended_at=None
        if state in ("running", "waiting")
        else max((at for at in ends if at is not None), default=None),
        jobs=jobs,
        attempts=reported,
        steps=samples[-1].step if samples else None,
        max_steps=_whole(sources.status.get("max_steps")),
        repeated_steps=sum(repeated) if samples or repeated else None,
        is_repeated_lower_bound=is_lower_bound,
        last_loss=next((s.loss for s in reversed(samples) if s.loss is not None), None),
        last_validation=validation[max(validation)] if validation else None,
        tokens=tokens,
        tokens_per_second=_rate(samples, busy_s) if tokens else None,
        steps_per_second=num_steps / busy_s if busy_s > 0 else None,
        mfu=sum(value * seconds for value, seconds in mfu) / weight if weight > 0 else None,
        node_seconds=seconds,
        is_time_lower_bound=bool(without_end or without_start or untimed),
        spent=spent,
        goodput=None if productive is None or seconds <= 0 else min(1.0, productive / seconds),
        usd=usd,
        usd_per_million_tokens=per_million,
        prices_of=PRICES_OF,
        checkpoints=_checkpoints(sources),
        curve=tuple(_points(samples, has_tokens=tokens is not None)),
        validation=tuple(validation[step] for step in sorted(validation)),
        unknown=tuple(unknown),
    )


def _unknown_times(without_end: int, without_start: int, untimed: int) -> list[str]:
    """Describe missing times, given the number of attempts without an end, a start or any time."""
    remarks = []
    if untimed:
        remarks.append(
            f"{counted(untimed, 'attempt')} not shown: neither a record nor a service gives a time"
        )
    if without_end:
        remarks.append(
            f"{counted(without_end, 'attempt')} without a recorded end, as when the main node is "
            "killed: time is counted to when each was last seen, so time and cost are lower bounds"
        )
    if without_start:
        remarks.append(
            f"{counted(without_start, 'attempt')} without a recorded start, because of an earlier "
            "release or an early end: time is counted from when each was first seen"
        )
    return remarks


def _unknown_steps(
    sources: RunSources, samples: Sequence[StepSample], *, trains: bool
) -> list[str]:
    if sources.is_program and not samples:
        return [
            "no loss was recognized in the program's output (see `status --plot`): its steps, "
            "speed and goodput are unknown"
        ]
    if sources.is_program and not any(sample.seconds for sample in samples):
        return ["it is unknown when the program printed its losses, and so is its goodput"]
    if trains and not samples:
        return ["the run's metrics in the bucket have no steps"]
    dropped = sum(s.dropped for s in sources.spans if s.reached is None and not sources.is_program)
    if dropped:
        verb = "was" if dropped == 1 else "were"
        return [
            f"{counted(dropped, 'line')} of steps or evaluations {verb} repeated after an attempt "
            "of an earlier release, which did not record its last step"
        ]
    return []


def _workload(sources: RunSources) -> str | None:
    names = [recorded.submission.workload for recorded in sources.recorded.values()
             if recorded.submission is not None]  # fmt: skip
    names += [r.workload for recorded in sources.recorded.values() for r in recorded.attempts]
    names += [job.workload for job in sources.jobs if job.workload is not None]
    names += [str(sources.status["workload"])] if "workload" in sources.status else []
    return names[0] if names else ("program" if sources.is_program else None)


def _usd(
    sources: RunSources,
    reported: Sequence[ReportedAttempt],
    hardware: Hardware,
    unknown: list[str],
) -> float | None:
    """Compute the cost of the paid time; note assumptions and missing prices in ``unknown``."""
    if hardware is Hardware.CPU:
        return sum(item.node_seconds for item in reported) / 3600 * USD_PER_JOB_HOUR_ESTIMATE
    assumed = sources.target.instance_type.name
    total, assumes = 0.0, False
    for item in reported:
        assumes = assumes or item.instance_type is None
        kind = INSTANCE_TYPES.get(item.instance_type or assumed)
        if kind is None:
            unknown.append(f"the price of {item.instance_type} is unknown")
            return None
        total += item.node_seconds / 3600 * kind.usd_per_hour_estimate
    if assumes:
        unknown.append(
            f"the instance type of some attempts was not recorded; the deployment's is assumed: "
            f"{assumed}"
        )
    return total


def _rate(samples: Sequence[StepSample], busy_s: float) -> float | None:
    num_steps = sum(sample.count for sample in samples)
    last = samples[-1]
    return num_steps * last.tokens / last.step / busy_s if busy_s > 0 and last.step else None


def _spent(
    known: Sequence[AttemptEvidence], reported: Sequence[ReportedAttempt]
) -> tuple[SpentTime, ...]:
    """Break down the paid time; empty if no steps are known."""
    spans = [item.span for item in known if item.span is not None]
    num_steps = sum(sample.count for span in spans for sample in span.samples)
    if not num_steps or not any(span.busy_s for span in spans):
        return ()
    mean_s = sum(span.busy_s for span in spans) / num_steps
    parts = dict.fromkeys(("steps", "repeated", "checkpoints", "validation", "starting"), 0.0)
    for item, shown in zip(known, reported, strict=True):
        span, nodes = item.span, item.num_nodes
        began_s = span.began_at if span is not None else None
        started_s = item.started_s or 0.0
        if span is None or began_s is None:
            parts["starting"] += shown.node_seconds
            continue
        count = sum(sample.count for sample in span.samples)
        step_s = span.busy_s / count if count else mean_s
        parts["steps"] += nodes * span.busy_s
        parts["repeated"] += nodes * step_s * (shown.repeated_steps or 0)
        parts["checkpoints"] += nodes * span.paused_s
        parts["validation"] += nodes * span.validation_s
        parts["starting"] += nodes * (max(0.0, began_s - started_s) + span.compiling_s)
    total = sum(item.node_seconds for item in reported)
    # Estimated from the mean of other steps, so capped at the remaining time.
    rest = max(0.0, total - sum(parts.values()) + parts["repeated"])
    parts["repeated"] = min(parts["repeated"], rest)
    parts["other"] = rest - parts["repeated"]
    return tuple(SpentTime(on=name, node_seconds=value) for name, value in parts.items())


def _checkpoints(sources: RunSources) -> tuple[ReportedCheckpoint, ...]:
    """List checkpoints in order, or a program's retained snapshots."""
    if not sources.is_program:
        return tuple(item for span in sources.spans for item in span.checkpoints)
    listed = sources.status.get("snapshots")
    return tuple(
        ReportedCheckpoint(
            step=None,
            number=_whole(item.get("number")),
            at=stamp(parse_timestamp(item.get("at"))),
            bytes=_whole(item.get("bytes")),
            paused_s=None,
            failure=None,
        )
        for item in (listed if isinstance(listed, list) else ())
        if isinstance(item, Mapping)
    )


def _jobs(sources: RunSources) -> tuple[ReportedJob, ...]:
    jobs = {job.job_id: job for job in sources.jobs}
    ids = [*sources.recorded, *(job_id for job_id in jobs if job_id not in sources.recorded)]
    listed = [_job(sources, job_id, jobs.get(job_id)) for job_id in ids]
    return tuple(sorted(listed, key=lambda job: _first_seen_s(sources, job)))


def _job(sources: RunSources, job_id: str, job: Job | None) -> ReportedJob:
    recorded = sources.recorded.get(job_id)
    submission = recorded.submission if recorded is not None else None
    first = next(iter(recorded.attempts), None) if recorded is not None else None
    source = submission or first
    return ReportedJob(
        job_id=job_id,
        orchestrator=job.orchestrator if job else source.orchestrator if source else None,
        num_nodes=job.num_nodes if job else source.num_nodes if source else None,
        submitted_at=stamp(submitted_s(sources, job_id)),
        status=job.status if job else None,
        status_reason=job.status_reason if job else None,
    )


def _first_seen_s(sources: RunSources, job: ReportedJob) -> float:
    recorded = sources.recorded.get(job.job_id)
    starts = [parse_timestamp(item.started_at) for item in recorded.attempts] if recorded else []
    return min(
        (at for at in (parse_timestamp(job.submitted_at), *starts) if at is not None), default=0.0
    )


def _state(
    sources: RunSources, known: Sequence[AttemptEvidence], jobs: Sequence[ReportedJob]
) -> str:
    """Return the state of the newest submission."""
    newest = jobs[-1] if jobs else None
    if newest is not None and newest.status is not None:
        return {"SUCCEEDED": "succeeded", "FAILED": "failed", "RUNNING": "running"}.get(
            newest.status, "waiting"
        )
    own = [item for item in known if newest is None or item.job_id == newest.job_id]
    if own and own[-1].code is not None:
        return "succeeded" if all(_last_code(own, item) == 0 for item in own) else "failed"
    state = str(sources.status.get("state"))
    return {"finished": "succeeded", "failed": "failed"}.get(state, "unknown")


def _last_code(own: Sequence[AttemptEvidence], item: AttemptEvidence) -> int | None:
    """Return the exit code of the last attempt of the same child."""
    return [other.code for other in own if other.child == item.child][-1]


def _points(samples: Sequence[StepSample], *, has_tokens: bool) -> Iterator[ReportedStep]:
    """Yield evenly sampled points of the curve, including the first and the last."""
    every = max(1, -(-len(samples) // _MAX_POINTS))
    for index, sample in enumerate(samples):
        if index % every and index != len(samples) - 1:
            continue
        pace = sample.count / sample.seconds if sample.seconds > 0 and sample.count else None
        each = sample.tokens / sample.step if sample.step else 0.0
        yield ReportedStep(
            step=sample.step,
            loss=sample.loss,
            tokens_per_second=pace * each if pace is not None and has_tokens else None,
            steps_per_second=pace,
        )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
