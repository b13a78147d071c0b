"""The steps of a run by attempt, read from its metrics in the bucket."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from jobs.bucket.objects import Bucket
from jobs.output.console import parse_time
from jobs.report.document import ReportedCheckpoint, ValidationPoint
from trainium_catalogue import contract
from trainium_catalogue.typed_json import read_object

_MAX_NUMBER = 1e15
"""Larger numbers in metrics are ignored, as implausible."""
_LOSSES = re.compile(r"(?P<began>\d{8}T\d{6}Z)-attempt-(?P<attempt>\d{1,9})\.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSample:
    """Steps from the previous sample up to this one that no later attempt recomputed."""

    step: int
    at: float | None
    """Seconds since the epoch."""
    count: int
    seconds: float
    """Total duration of the steps."""
    loss: float | None
    tokens: int = 0
    """Total tokens so far."""
    mfu: float | None = None


@dataclass(slots=True, kw_only=True)
class TrainingSpan:
    """Training progress of one attempt."""

    job_id: str | None
    """None for a program."""
    attempt: int
    began_at: float
    from_step: int | None
    """Steps completed before it; None for a program."""
    num_nodes: int | None = None
    instance_type: str | None = None
    is_emulated: bool = False
    """True if it ran on CPUs."""
    samples: list[StepSample] = field(default_factory=list)
    compiling_s: float = 0.0
    """Extra seconds of the first sample compared with the others, for compiling or loading graphs.
    """
    checkpoints: list[ReportedCheckpoint] = field(default_factory=list)
    validation: list[ValidationPoint] = field(default_factory=list)
    validation_s: float = 0.0
    last_at: float = 0.0
    reached: int | None = None
    """Last step it ever logged; None if the next attempt did not record it."""
    dropped: int = 0
    """Number of its lines that the next attempt dropped."""

    @property
    def paused_s(self) -> float:
        """Seconds of training paused for checkpoints."""
        return sum(item.paused_s or 0.0 for item in self.checkpoints)

    @property
    def busy_s(self) -> float:
        """Total seconds of the steps that no later attempt recomputed."""
        return sum(sample.seconds for sample in self.samples)


def parse_timestamp(text: object) -> float | None:
    """Parse a time; None for anything else."""
    then = parse_time(text)
    if then is None or not datetime.min.year < then.year < datetime.max.year:
        return None  # it may be out of range in another time zone
    return then.timestamp()


def stamp(seconds: float | None) -> str | None:
    """Format a time for documents."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def read_training(bucket: Bucket, run: str) -> list[TrainingSpan]:
    """Read the training progress of each attempt of a training run, in order."""
    data = bucket.read(contract.run_key(run, contract.TRAIN_METRICS)) or b""
    spans: list[TrainingSpan] = []
    # Sorted by time: on a resume, the trainer writes other events after the checkpoint's lines.
    for at, line in sorted(_lines(data), key=lambda pair: pair[0]):
        try:
            if line["event"] in ("start", "resume"):
                if spans:
                    reached = line.get("reached")
                    spans[-1].reached = None if reached is None else int(reached)
                    spans[-1].dropped = int(line["dropped"])
                    reached_at = parse_timestamp(line.get("reached_at")) or 0.0
                    spans[-1].last_at = max(spans[-1].last_at, reached_at)
                spans.append(_new_span(at, line))
            elif spans:
                _add(spans[-1], at, line)
        except (KeyError, TypeError, ValueError, OverflowError):
            continue  # not a line of the trainer
    for span in spans:
        _separate_compiling(span)
    return spans


def _separate_compiling(span: TrainingSpan) -> None:
    """Reduce the first sample to the pace of the others, if there are any."""
    if not span.samples:
        return
    first, *others = span.samples
    count = sum(sample.count for sample in others)
    if not count:
        return
    seconds = first.count * sum(sample.seconds for sample in others) / count
    if not 0 < seconds < first.seconds:
        return
    mfu = None if first.mfu is None else _number(first.mfu * first.seconds / seconds)
    span.samples[0] = replace(first, seconds=seconds, mfu=mfu)
    span.compiling_s = first.seconds - seconds


def _lines(data: bytes) -> Iterator[tuple[float, dict[str, Any]]]:
    for text in data.decode(errors="replace").splitlines():
        try:
            line = read_object(text)
        except ValueError:
            continue  # a partial line
        if (at := parse_timestamp(line.get("time"))) is not None:
            yield at, line


def _new_span(at: float, line: dict[str, Any]) -> TrainingSpan:
    return TrainingSpan(
        job_id=str(line["job_id"]),
        attempt=int(line["attempt"]),
        began_at=at,
        from_step=int(line["step"]),
        num_nodes=max(1, int(line["num_nodes"])),
        instance_type=None if (kind := line.get("instance_type")) is None else str(kind),
        is_emulated=line.get("device") == "cpu",
        last_at=at,
    )


def _add(span: TrainingSpan, at: float, line: dict[str, Any]) -> None:
    span.last_at = max(span.last_at, at)
    match line["event"]:
        case "step":
            before = span.samples[-1].step if span.samples else span.from_step or 0
            step = int(line["step"])
            count = max(0, step - before)
            span.samples.append(
                StepSample(
                    step=step,
                    at=at,
                    count=count,
                    seconds=count * _amount(line["step_s"]),
                    loss=_number(line.get("loss")),
                    tokens=int(line["tokens_total"]),
                    mfu=_number(line.get("mfu")),
                )
            )
        case "evaluation":
            span.validation_s += _amount(line["evaluation_s"])
            if (loss := _number(line.get("val_loss"))) is not None:
                span.validation.append(ValidationPoint(step=int(line["step"]), loss=loss))
        case "save":
            paused_s = _amount(line["checkpoint_s"])
            _note_checkpoint(span, int(line["step"]), paused_s=paused_s)
        case "saved":
            _note_checkpoint(span, int(line["step"]), at=stamp(at), bytes=int(line["bytes"]))
        case "save-failed":
            _note_checkpoint(span, int(line["step"]), failure=str(line["reason"]))


def _note_checkpoint(span: TrainingSpan, step: int, **known: Any) -> None:
    """Merge a line about a checkpoint, since such lines may come in any order."""
    fields: dict[str, Any] = {"at": None, "bytes": None, "paused_s": None, "failure": None}
    for index, found in enumerate(span.checkpoints):
        if found.step == step:
            fields = {name: getattr(found, name) for name in fields} | known
            span.checkpoints[index] = ReportedCheckpoint(step=step, number=None, **fields)
            return
    span.checkpoints.append(ReportedCheckpoint(step=step, number=None, **(fields | known)))


def read_program(bucket: Bucket, run: str) -> list[TrainingSpan]:
    """Read the losses printed by each attempt of a program, without repeated steps."""
    prefix = contract.run_key(run, contract.PROGRAM_LOSSES)
    spans: list[TrainingSpan] = []
    for key in sorted(item.key for item in bucket.objects(prefix)):
        if (name := _LOSSES.fullmatch(key.removeprefix(prefix))) is None:
            continue
        began = datetime.strptime(name["began"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
        samples = list(_printed(bucket.read(key) or b""))
        if not samples:
            continue
        first = samples[0].step
        for earlier in spans:
            earlier.samples = [sample for sample in earlier.samples if sample.step < first]
        last_at = max((sample.at for sample in samples if sample.at is not None), default=began)
        spans.append(
            TrainingSpan(
                job_id=None,
                attempt=int(name["attempt"]),
                began_at=samples[0].at or began,
                from_step=None,
                samples=samples,
                last_at=last_at,
                reached=samples[-1].step,
            )
        )
    return spans


def _printed(data: bytes) -> Iterator[StepSample]:
    before: StepSample | None = None
    for text in data.decode(errors="replace").splitlines():
        try:
            line = read_object(text)
            step, loss = int(line["step"]), _number(line["loss"])
            at = parse_timestamp(line.get("time"))
        except (KeyError, TypeError, ValueError, OverflowError):
            continue  # not a line of the launcher
        count, seconds = 0, 0.0
        if before is not None and before.at is not None and at is not None:
            count, seconds = max(0, step - before.step), max(0.0, at - before.at)
        before = StepSample(step=step, at=at, count=count, seconds=seconds, loss=loss)
        yield before


def _number(value: object) -> float | None:
    """Read a number; None if it is missing, not finite or implausibly large."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    number = float(value)
    return number if abs(number) <= _MAX_NUMBER else None


def _amount(value: object) -> float:
    """Read a number of seconds; raise ``ValueError`` for anything else."""
    number = _number(value)
    if number is None or number < 0:
        raise ValueError(f"{value} is not a number of seconds")
    return number
