"""The files of a training run: train.jsonl, status.json, results.json and TensorBoard events."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from training.core.heartbeat import Pacer
from training.storage import Objects, StorageUnavailable
from training.storage.results import MetricsLine, Uploads, now_utc
from training.trainer.records import (
    SCALARS,
    BeginLine,
    EvaluationLine,
    EvaluationRecord,
    SaveLine,
    StepLine,
    StepRecord,
    embedded_metrics,
    log_line,
    results_document,
)
from trainium_catalogue.contract import RUN_STATUS, TRAIN_METRICS, VALIDATION_LOSS_SCALAR
from trainium_catalogue.documents import Natural, Positive, Timestamp
from trainium_catalogue.typed_json import read_object

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from training.core.config import TrainConfig
    from training.core.contract import NodeContract

RESULTS = "results/results.json"
TENSORBOARD = "logs/tensorboard"
_BETWEEN_UPLOADS_S = 5.0
_METRICS_INTERVAL_S = 60.0
"""Custom metrics have a resolution of one minute, so more frequent lines would only cost more."""
_CLOSE_TIMEOUT_S = 60.0
_EVALUATION = "evaluation"
_STEP_EVENTS = ("step", _EVALUATION)
"""Events of a step; if a later attempt repeats the step, its lines replace the earlier ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The progress of a training run; written every few seconds and at every change of state."""

    run: str
    workload: str
    state: Literal["starting", "compiling", "training", "saving", "finished", "failed", "stopped"]
    """finished: at max_steps; stopped: on request or after steps-this-run, with a checkpoint."""
    step: Natural
    """Optimizer steps completed."""
    max_steps: Positive
    loss: float | None = None
    lr: float | None = None
    grad_norm: float | None = None
    """Gradient norm before clipping."""
    val_loss: float | None = None
    """Loss on the validation split; null until it is evaluated."""
    val_step: Positive | None = None
    """Step after which it was evaluated."""
    tokens_per_second: float | None = None
    sequences_per_second: float | None = None
    mfu: float | None = None
    """Model FLOPs utilization, 0 to 1; null if the device's peak is unknown."""
    step_seconds: float | None = None
    eta_seconds: float | None = None
    """Time until max_steps; null when not training."""
    last_checkpoint_step: int | None = None
    last_checkpoint_time: Timestamp | None = None
    error: str | None = None
    """Reason for the failure."""
    tokens_total: Natural
    attempt: Positive
    job_id: str
    num_nodes: Positive
    failed_saves: Natural
    """Number of failed checkpoints in this attempt."""
    time: Timestamp
    """Time of this document, in UTC."""


class RunFiles:
    """The files that rank 0 writes to a run's storage, TensorBoard's via a local or Lustre folder.

    Only the start, which continues the files of earlier attempts, and the end wait for storage.
    """

    def __init__(
        self,
        objects: Objects,
        folder: Path,
        *,
        context: NodeContract,
        workload: str,
        lustre: Path | None = None,
        holds: Callable[[], bool] = lambda: True,
    ) -> None:
        """Open the files and start their uploads; TensorBoard's go below ``lustre`` or ``folder``.

        ``holds`` returns whether this job still holds the run's lock.
        """
        self._context, self._workload = context, workload
        self._objects = objects
        self._uploads = Uploads.open(objects, every_s=_BETWEEN_UPLOADS_S, holds=holds)
        self._tensorboard = (lustre or folder) / TENSORBOARD
        # In memory: on one machine, a replaced job would share a file with its successor.
        self._history = bytearray()
        self._events_suffix = f".{context.job_id}.{context.attempt}"
        self._writer: Any = None
        self._status: dict[str, Any] = {}
        self._pacer = Pacer(_METRICS_INTERVAL_S)
        self._validation_pacer = Pacer(_METRICS_INTERVAL_S)
        self._checkpoint_s: float | None = None
        """Pause for the newest checkpoint since the last line for CloudWatch; None without one."""
        self._earlier_results: bytes | None = None
        self._throughputs: list[float] = []
        self._last: StepRecord | None = None
        self._evaluation: EvaluationRecord | None = None
        self._began_s = time.monotonic()

    def announce(self, *, max_steps: int) -> None:
        """Write the initial status."""
        context = self._context
        self._uploads.claim(RUN_STATUS)
        self.status(
            now=True,
            run=context.run,
            workload=self._workload,
            state="starting",
            step=0,
            max_steps=max_steps,
            tokens_total=0,
            attempt=context.attempt,
            job_id=context.job_id,
            num_nodes=context.num_nodes,
            failed_saves=0,
        )

    def begin(
        self, step: int, *, num_ranks: int, backend: str, history: bytes | None = None
    ) -> None:
        """Continue the run's metrics after ``step`` steps; drop later ones, which will be repeated.

        ``history`` contains the lines attached to the checkpoint, if any.
        """
        stored = self._uploads.claim(TRAIN_METRICS)
        kept, dropped = _lines_until(history, stored, step)
        reached, reached_at = _last_step(stored)
        self._earlier_results = self._uploads.claim(RESULTS)
        self._history = bytearray("".join(f"{line}\n" for line in kept).encode())
        self._status.update(_last_validation(kept))
        # Importing TensorBoard takes a second.
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(
            str(self._tensorboard),
            purge_step=step + 1 if step else None,
            flush_secs=5,
            filename_suffix=self._events_suffix,
        )
        context = self._context
        self.event(
            BeginLine,
            {
                "event": "start" if step == 0 else "resume",
                "step": step,
                "dropped": dropped,
                "reached": reached,
                "reached_at": reached_at,
                "job_id": context.job_id,
                "deployment": context.deployment,
                "device": context.device,
                "instance_type": context.instance_type,
                "neuron_release": context.neuron_release,
                "num_nodes": context.num_nodes,
                "processes_per_node": context.processes_per_node,
                "num_ranks": num_ranks,
                "backend": backend,
            },
        )

    def event(self, kind: type[MetricsLine], fields: Mapping[str, Any]) -> None:
        """Write one line of ``kind`` to train.jsonl."""
        context = self._context
        self._history += kind.of(context.run, self._workload, context.attempt, fields).encode()
        self._uploads.offer(TRAIN_METRICS, self.history)

    def step(self, record: StepRecord) -> None:
        """Write one logged step, in every format."""
        self._last = record
        self._throughputs.append(record.throughput)
        self.event(StepLine, record.fields())
        log.info("%s", record.line())
        log.info("%s", log_line(record))
        for name, field in SCALARS.items():
            self._writer.add_scalar(name, getattr(record, field), record.step)
        if self._log_metrics(record, self._pacer, self._checkpoint_s):
            self._checkpoint_s = None
        self._offer_tensorboard()

    def evaluation(self, record: EvaluationRecord) -> None:
        """Write one evaluation of the validation split, in every format."""
        self._evaluation = record
        fields = record.fields()
        self.event(EvaluationLine, fields)
        log.info("%s", record.line())
        self._writer.add_scalar(VALIDATION_LOSS_SCALAR, record.val_loss, record.step)
        self._log_metrics(record, self._validation_pacer)
        self.status(val_loss=fields["val_loss"], val_step=record.step)
        self._offer_tensorboard()

    def save(self, step: int, *, stall_s: float) -> None:
        """Record the start of a checkpoint that paused training for ``stall_s`` seconds."""
        self._checkpoint_s = round(stall_s, 4)
        self.event(SaveLine, {"step": step, "checkpoint_s": self._checkpoint_s})

    def status(self, *, now: bool = False, **fields: Any) -> None:
        """Update fields of status.json; ``now`` uploads it immediately."""
        self._status.update(fields)
        if "run" not in self._status:
            return  # the job failed before ``announce``, so the run has no status yet
        document = asdict(RunStatus(**self._status, time=now_utc()))
        self._uploads.offer(RUN_STATUS, json.dumps(document, indent=2).encode() + b"\n", now=now)

    def history(self) -> bytes:
        """Return the lines so far, to attach to checkpoints for resuming."""
        return bytes(self._history)

    def finish(
        self,
        *,
        parameters: Mapping[str, Any],
        log_every: int,
        more: Iterable[tuple[str, float, str]] = (),
    ) -> None:
        """Write results.json, with ``more`` metrics and their units, and upload everything."""
        document = results_document(
            self._earlier_results,
            parameters=parameters,
            throughputs=self._throughputs,
            last=self._last,
            evaluation=self._evaluation,
            log_every=log_every,
            seconds=time.monotonic() - self._began_s,
            more=more,
        )
        self._uploads.offer(RESULTS, json.dumps(document, indent=2).encode() + b"\n", now=True)
        self.close()

    def close(self, *, within_s: float = _CLOSE_TIMEOUT_S) -> None:
        """Upload the rest within ``within_s`` seconds, or raise ``StorageUnavailable``."""
        if self._writer is not None:
            self._writer.close()
            self._offer_tensorboard()
        if not self._uploads.close(within_s=within_s):
            raise StorageUnavailable(
                f"status and metrics are incomplete in {self._objects.uri}: the upload did not "
                f"finish within {within_s:g} s; resubmit the run; no step is repeated"
            )

    def abandon(self) -> None:
        """Stop writing: the run's files now belong to another job."""
        if self._writer is not None:
            self._writer.close()
        self._uploads.abandon()

    def _log_metrics(
        self,
        record: StepRecord | EvaluationRecord,
        pacer: Pacer,
        checkpoint_s: float | None = None,
    ) -> bool:
        """Log a line for CloudWatch if one is due; return whether it was."""
        if self._context.bucket is None or not pacer.due(time.monotonic()):
            return False
        line = embedded_metrics(
            record,
            deployment=self._context.deployment,
            run=self._context.run,
            workload=self._workload,
            time_ms=int(time.time() * 1000),
            checkpoint_s=checkpoint_s,
        )
        log.info("%s", line)
        return True

    def _offer_tensorboard(self) -> None:
        # Skip other attempts' files in the same folder, which those upload themselves.
        for path in sorted(self._tensorboard.glob(f"events.*{self._events_suffix}")):
            self._uploads.offer(f"{TENSORBOARD}/{path.name}", path)


def _lines_until(history: bytes | None, stored: bytes | None, step: int) -> tuple[list[str], int]:
    """Return earlier attempts' lines to keep when resuming after ``step``, and the number dropped.

    Steps and evaluations are from the checkpoint's ``history``, if any, since the last upload of
    the ``stored`` lines may have failed. Other events are from both.
    """
    kept, dropped = _split(history or stored, step)
    if history is not None:
        known = set(kept)
        others, dropped = _split(stored, step)
        kept += [line for line in others if line not in known and not _is_step_event(line)]
    return kept, dropped


def _split(data: bytes | None, step: int) -> tuple[list[str], int]:
    """Return the lines up to ``step``, and the number of later or damaged ones."""
    lines = (data or b"").decode(errors="replace").splitlines()
    kept = []
    for line in lines:
        try:
            if not _is_step_event(line) or read_object(line)["step"] <= step:
                kept.append(line)
        except (KeyError, TypeError, ValueError):
            continue  # a partial line, or one in another format
    return kept, len(lines) - len(kept)


def _last_step(stored: bytes | None) -> tuple[int, str | None]:
    """Return step and time from the last step's line; 0 and None if there is none."""
    for line in reversed((stored or b"").decode(errors="replace").splitlines()):
        try:
            document = read_object(line)
            if document["event"] == "step":
                return int(document["step"]), str(document["time"])
        except (KeyError, TypeError, ValueError, OverflowError):
            continue  # a partial line, or one in another format
    return 0, None


def _is_step_event(line: str) -> bool:
    return read_object(line)["event"] in _STEP_EVENTS


def _last_validation(lines: list[str]) -> dict[str, Any]:
    """Return the status fields of the latest evaluation in earlier attempts, if any."""
    for line in reversed(lines):
        document = read_object(line)
        if document["event"] == _EVALUATION:
            return {"val_loss": document.get("val_loss"), "val_step": document["step"]}
    return {}


def reference_parameters(
    config: TrainConfig,
    *,
    model: str,
    dataset: str,
    device: str,
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """Return the ``parameters`` of results.json, under the reference's names."""
    plan = config.plan
    return {
        "Model": model,
        "Model configuration": dataclasses.asdict(config.shape),
        "World size": plan.num_ranks,
        "Data parallel degree": plan.data_parallel,
        "Batch size": plan.micro_batch,
        "Total steps": config.max_steps,
        "Seed": config.seed,
        "Optimizer": config.optimizer.value,
        "Data type": "bfloat16" if config.mixed and device != "cpu" else "float32",
        "Gradient accumulation microsteps": plan.accumulation_steps,
        "Warmup steps": config.warmup_steps,
        "Dataset": dataset,
        "Environment variables": dict(environment),
    }
