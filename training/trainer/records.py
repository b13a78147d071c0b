"""Records of logged steps and evaluations, in every format we write.

The log line ``LOG``, the scalars' names and results.json are those of AWS's reference, which
dashboards parse (neuronx-distributed, ``examples/training/llama``, tp_zero1_llama_hf_pretrain.py
and logger.py). Metrics for CloudWatch are log lines in its embedded metric format:
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
from trainium_catalogue.documents import Amount, DeviceName, Keywords, Measured, Natural, Positive
from trainium_catalogue.typed_json import read_object

SCALARS: Mapping[str, str] = {
    LOSS_SCALAR: "loss",
    "learning rate": "lr",
    "throughput": "throughput",
    "grad-norm": "grad_norm",
}
"""Maps names in TensorBoard to fields of ``StepRecord``."""

_WARM_STEPS = 10
"""First steps, which the reference excludes from the average throughput."""
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
)
_VALIDATION_METRICS = (
    ("ValidationLoss", "val_loss", "None"),
    ("ValidationTime", "evaluation_s", "Seconds"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One logged optimizer step; times and rates are means since the previous logged step."""

    step: Positive
    """Counted from 1."""
    max_steps: Positive
    epoch: Natural
    """Completed passes over the dataset, from 0."""
    loss: Measured
    lr: Amount
    grad_norm: Measured
    """Norm of the gradients before clipping."""
    step_s: Amount
    """Seconds of one step, without saving."""
    data_s: Amount
    """Part of them spent waiting for data."""
    sequences_per_second: Amount
    tokens_per_second: Amount
    mfu: float | None
    """Model FLOPs utilization, 0 to 1; null where the device's peak is unknown."""
    throughput: Amount
    """Sequences per second over a moving window of about ten steps, as in the reference."""
    tokens_total: Positive

    def fields(self) -> dict[str, Any]:
        """Fields for JSON: values that JSON cannot hold become null."""
        return {name: _finite(value) for name, value in asdict(self).items()}

    def line(self) -> str:
        """Format for the log; begins with ``training: step``."""
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
    """Optimizer steps made before it."""
    val_loss: float
    """Mean over the sequences."""
    sequences: int
    evaluation_s: float
    """Seconds that training was paused for it; part of no step's time."""

    @property
    def perplexity(self) -> float:
        """exp(val_loss); infinite if too large for a float."""
        try:
            return math.exp(self.val_loss)
        except OverflowError:
            return math.inf

    def fields(self) -> dict[str, Any]:
        """Fields for JSON: values that JSON cannot hold become null."""
        known = {**asdict(self), "perplexity": self.perplexity}
        return {name: _finite(value) for name, value in known.items()}

    def line(self) -> str:
        """Format for the log."""
        return (
            f"training: validation after step {self.step}: loss {self.val_loss:.4f}, perplexity "
            f"{self.perplexity:.2f}, of {self.sequences} sequences, {self.evaluation_s:.3f} s"
        )


@dataclass(frozen=True, kw_only=True)
class BeginLine(MetricsLine):
    """A job begins to train, from nothing or from a checkpoint."""

    event: Literal["start", "resume"]
    step: Natural
    """Steps behind it."""
    dropped: Natural
    """Lines of later steps, which are made again."""
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
    """An optimizer step; a number that is not finite is null."""

    event: Literal["step"] = "step"


@dataclass(frozen=True, kw_only=True)
class EvaluationLine(MetricsLine):
    """The validation split was evaluated, between two steps."""

    event: Literal["evaluation"] = "evaluation"
    step: Positive
    """Optimizer steps made before it."""
    val_loss: Measured
    """Mean over the sequences."""
    perplexity: Measured
    sequences: Positive
    """Number that was evaluated, the same each time."""
    evaluation_s: Amount
    """Seconds that training was paused for it; part of no step's time."""


@dataclass(frozen=True, kw_only=True)
class SaveLine(MetricsLine):
    """A checkpoint was taken, and training continues or ends."""

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
    """A checkpoint could not be written."""

    event: Literal["save-failed"] = "save-failed"
    step: Positive
    reason: str


@dataclass(frozen=True, kw_only=True)
class TrainingEndLine(MetricsLine):
    """The job ends."""

    event: Literal["end"] = "end"
    status: Annotated[str, Keywords(enum=["finished", "paused", "stopped"])]


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def log_line(record: StepRecord) -> str:
    """The ``LOG`` line."""
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

    The reference does not evaluate; ``evaluation``, the last one, goes beside its own metrics.
    """
    metrics = _earlier_metrics(earlier)
    if evaluation is not None:
        more = (("Final validation loss", round(evaluation.val_loss, 4), ""), *more)
    if last is not None:
        warm = throughputs[math.ceil(_WARM_STEPS / log_every) :] or throughputs
        for name, value, units in (
            ("Loss", round(last.loss, 4), ""),
            ("Throughput", round(last.throughput, 4), "seq/s"),
            ("Final loss", round(last.loss, 4), ""),
            ("Time to train", round(seconds / 60, 4), "minutes"),
            ("Average throughput", round(sum(warm) / len(warm), 4), "seq/s"),
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
        found = read_object(earlier)["results"]["metrics"]
    except (KeyError, TypeError, ValueError):
        return []  # a file put there by somebody else is no reason to stop
    return list(found) if isinstance(found, list) else []


def embedded_metrics(
    record: StepRecord,
    *,
    deployment: str,
    run: str,
    workload: str,
    time_ms: int,
    checkpoint_s: float | None = None,
) -> str:
    """Build one log line that CloudWatch turns into metrics.

    ``checkpoint_s``: seconds that training was paused for the latest checkpoint since the previous
    line, if there was one.
    """
    fields = {**record.fields(), "checkpoint_s": checkpoint_s}
    return _embedded(
        _METRICS,
        fields,
        {"Deployment": deployment, "Run": run, "Workload": workload, "Step": record.step},
        time_ms=time_ms,
    )


def embedded_validation(
    record: EvaluationRecord, *, deployment: str, run: str, workload: str, time_ms: int
) -> str:
    """Build one such line for an evaluation of the validation split."""
    return _embedded(
        _VALIDATION_METRICS,
        record.fields(),
        {"Deployment": deployment, "Run": run, "Workload": workload, "Step": record.step},
        time_ms=time_ms,
    )


def _embedded(
    metrics: tuple[tuple[str, str, str], ...],
    fields: Mapping[str, Any],
    origin: Mapping[str, Any],
    *,
    time_ms: int,
) -> str:
    known = [(name, field, unit) for name, field, unit in metrics if fields[field] is not None]
    document = {
        "_aws": {
            "Timestamp": time_ms,
            "CloudWatchMetrics": [
                {
                    "Namespace": NAMESPACE,
                    # At most two names: every combination of values is a billed metric.
                    "Dimensions": [["Deployment", "Run"]],
                    "Metrics": [{"Name": name, "Unit": unit} for name, _, unit in known],
                }
            ],
        },
        **origin,
        **{name: fields[field] for name, field, _ in known},
    }
    return json.dumps(document)
