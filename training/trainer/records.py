"""Records of logged steps and evaluations, in every output format.

The log line ``LOG``, scalar names and results.json follow AWS's reference, for existing dashboards
(neuronx-distributed, ``examples/training/llama``, tp_zero1_llama_hf_pretrain.py and logger.py).
Metrics for CloudWatch are log lines in its embedded metric format:
docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from training.storage.results import MetricsLine
from trainium_catalogue.contract import LOSS_SCALAR
from trainium_catalogue.documents import (
    Amount,
    DeviceName,
    Keywords,
    Measured,
    Natural,
    Positive,
    Timestamp,
)
from trainium_catalogue.typed_json import read_object
from trainium_catalogue.wording import counted

SCALARS: Mapping[str, str] = {
    LOSS_SCALAR: "loss",
    "learning rate": "lr",
    "throughput": "throughput",
    "grad-norm": "grad_norm",
}
"""Maps names in TensorBoard to fields of ``StepRecord``."""

_WARMUP_STEPS = 10
"""Initial steps that the reference excludes from the average throughput."""
NAMESPACE = "Trainium/Training"
_METRICS = (
    ("Loss", "loss", "None"),
    ("LearningRate", "lr", "None"),
    ("GradientNorm", "grad_norm", "None"),
    ("SequencesPerSecond", "sequences_per_second", "Count/Second"),
    ("TokensPerSecond", "tokens_per_second", "Count/Second"),
    ("ModelFlopsUtilization", "mfu", "None"),
    ("StepTime", "step_s", "Seconds"),
    ("DataTime", "data_s", "Seconds"),
    ("CheckpointTime", "checkpoint_s", "Seconds"),
    ("ValidationLoss", "val_loss", "None"),
    ("ValidationTime", "evaluation_s", "Seconds"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One logged optimizer step; times and rates are means since the previous logged step."""

    step: Positive
    """1-based."""
    max_steps: Positive
    epoch: Natural
    """Current pass over the dataset, counted from 0."""
    loss: Measured
    lr: Amount
    grad_norm: Measured
    """Norm of the gradients before clipping."""
    step_s: Amount
    """Seconds per step, excluding saves."""
    data_s: Amount
    """Seconds per step spent waiting for data."""
    sequences_per_second: Amount
    tokens_per_second: Amount
    mfu: float | None
    """Model FLOPs utilization, 0 to 1; null if the device's peak is unknown."""
    throughput: Amount
    """Sequences per second over a moving window of about ten steps, as in the reference."""
    tokens_total: Positive

    def fields(self) -> dict[str, Any]:
        """Return the fields for JSON, with null for values that are not finite."""
        return {name: _finite_or_none(value) for name, value in asdict(self).items()}

    def line(self) -> str:
        """Format the record for the log, starting with ``training: step``."""
        mfu = "" if self.mfu is None else f", MFU {self.mfu:.1%}"
        return (
            f"training: step {self.step} of {self.max_steps}: loss {self.loss:.4f}, "
            f"lr {self.lr:.2e}, grad-norm {self.grad_norm:.3f}, "
            f"{self.sequences_per_second:.2f} seq/s, {self.tokens_per_second:.0f} tok/s{mfu}, "
            f"{self.step_s:.3f} s"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecord:
    """One evaluation of the validation split."""

    step: int
    """Optimizer steps before the evaluation."""
    val_loss: float
    """Mean loss over the sequences."""
    sequences: int
    evaluation_s: float
    """Seconds that training was paused for it; not part of any step's time."""

    @property
    def perplexity(self) -> float:
        """exp(val_loss), or infinity if too large for a float."""
        try:
            return math.exp(self.val_loss)
        except OverflowError:
            return math.inf

    def fields(self) -> dict[str, Any]:
        """Return the fields for JSON, with null for values that are not finite."""
        fields = {**asdict(self), "perplexity": self.perplexity}
        return {name: _finite_or_none(value) for name, value in fields.items()}

    def line(self) -> str:
        """Format the record for the log."""
        return (
            f"training: validation after step {self.step}: loss {self.val_loss:.4f}, perplexity "
            f"{self.perplexity:.2f}, over {counted(self.sequences, 'sequence')}, "
            f"{self.evaluation_s:.3f} s"
        )


@dataclass(frozen=True, kw_only=True)
class BeginLine(MetricsLine):
    """The start of a job's training, from scratch or from a checkpoint."""

    event: Literal["start", "resume"]
    step: Natural
    """Optimizer steps completed before this job."""
    dropped: Natural
    """Number of dropped lines: damaged ones, and those of later steps, which will be repeated."""
    reached: Natural
    """Last step in the earlier lines, including dropped ones."""
    reached_at: Timestamp | None
    """Time of that line; null if there is none."""
    job_id: str
    deployment: str
    device: DeviceName
    instance_type: str | None
    neuron_release: str | None
    num_nodes: Positive
    processes_per_node: Positive
    num_ranks: Positive
    backend: Annotated[str, Keywords(enum=["native", "nxd", "xla"])]


@dataclass(frozen=True, kw_only=True)
class StepLine(StepRecord, MetricsLine):
    """An optimizer step; numbers that are not finite are null."""

    event: Literal["step"] = "step"


@dataclass(frozen=True, kw_only=True)
class EvaluationLine(MetricsLine):
    """An evaluation of the validation split, between two steps."""

    event: Literal["evaluation"] = "evaluation"
    step: Positive
    """Optimizer steps before the evaluation."""
    val_loss: Measured
    """Mean loss over the sequences."""
    perplexity: Measured
    sequences: Positive
    """Number of evaluated sequences, the same each time."""
    evaluation_s: Amount
    """Seconds that training was paused for it; not part of any step's time."""


@dataclass(frozen=True, kw_only=True)
class SaveLine(MetricsLine):
    """The start of saving a checkpoint; an asynchronous save continues during training."""

    event: Literal["save"] = "save"
    step: Positive
    checkpoint_s: Amount
    """Seconds that training was paused for it."""


@dataclass(frozen=True, kw_only=True)
class SavedLine(MetricsLine):
    """A checkpoint is complete."""

    event: Literal["saved"] = "saved"
    step: Positive
    bytes: Positive


@dataclass(frozen=True, kw_only=True)
class SaveFailedLine(MetricsLine):
    """A checkpoint could not be saved."""

    event: Literal["save-failed"] = "save-failed"
    step: Positive
    reason: str


@dataclass(frozen=True, kw_only=True)
class TrainingEndLine(MetricsLine):
    """The end of the job."""

    event: Literal["end"] = "end"
    status: Annotated[str, Keywords(enum=["finished", "paused", "stopped"])]


def _finite_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def log_line(record: StepRecord) -> str:
    """Format the ``LOG`` line."""
    return (
        f"LOG {time.asctime()} - ({record.epoch}, {record.step}) step_loss : {record.loss:.4f} "
        f"learning_rate : {record.lr:.2e} throughput : {record.throughput:.2f} seq/s "
        f"grad-norm : {record.grad_norm:.4f}"
    )


def results_document(
    earlier: bytes | None,
    *,
    parameters: Mapping[str, Any],
    throughputs: Sequence[float],
    last: StepRecord | None,
    log_every: int,
    seconds: float,
    evaluation: EvaluationRecord | None = None,
    more: Iterable[tuple[str, float, str]] = (),
) -> dict[str, Any]:
    """Build results.json: the metrics of ``earlier``, if any, followed by this job's.

    ``evaluation`` is the last one, which the reference lacks; ``more`` lists further metrics,
    each with name, value and unit.
    """
    metrics = _earlier_metrics(earlier)
    if evaluation is not None:
        more = (("Final validation loss", round(evaluation.val_loss, 4), ""), *more)
    if last is not None:
        steady = throughputs[math.ceil(_WARMUP_STEPS / log_every) :] or throughputs
        for name, value, units in (
            ("Loss", round(last.loss, 4), ""),
            ("Throughput", round(last.throughput, 4), "seq/s"),
            ("Final loss", round(last.loss, 4), ""),
            ("Time to train", round(seconds / 60, 4), "minutes"),
            ("Average throughput", round(sum(steady) / len(steady), 4), "seq/s"),
            ("Peak throughput", round(max(throughputs), 4), "seq/s"),
            *more,
        ):
            metrics.append(
                {
                    "MetricName": name,
                    "MeasuredValue": value,
                    "Units": units,
                    "Timestamp": datetime.now(UTC).isoformat(),
                    "AdditionalData": {"Epoch": last.epoch, "Global step": last.step},
                }
            )
    return {"results": {"parameters": dict(parameters), "metrics": metrics}}


def _earlier_metrics(earlier: bytes | None) -> list[dict[str, Any]]:
    if earlier is None:
        return []
    try:
        metrics = read_object(earlier)["results"]["metrics"]
    except (KeyError, TypeError, ValueError):
        return []  # ignore a file in a different format
    return list(metrics) if isinstance(metrics, list) else []


def embedded_metrics(
    record: StepRecord | EvaluationRecord,
    *,
    deployment: str,
    run: str,
    workload: str,
    time_ms: int,
    checkpoint_s: float | None = None,
) -> str:
    """Build a log line that CloudWatch converts to metrics.

    ``checkpoint_s`` is the pause for the latest checkpoint since the previous line, if any.
    """
    fields = {**record.fields(), "checkpoint_s": checkpoint_s}
    present = [
        (name, field, unit) for name, field, unit in _METRICS if fields.get(field) is not None
    ]
    document = {
        "_aws": {
            "Timestamp": time_ms,
            "CloudWatchMetrics": [
                {
                    "Namespace": NAMESPACE,
                    # Only two, because every combination of values is billed as a metric.
                    "Dimensions": [["Deployment", "Run"]],
                    "Metrics": [{"Name": name, "Unit": unit} for name, _, unit in present],
                }
            ],
        },
        **{"Deployment": deployment, "Run": run, "Workload": workload, "Step": record.step},
        **{name: fields[field] for name, field, _ in present},
    }
    return json.dumps(document)
