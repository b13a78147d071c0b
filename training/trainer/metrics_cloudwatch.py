"""CloudWatch metrics as log lines: the embedded metric format.

docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from training.trainer.metrics import EvaluationRecord, StepRecord

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
_BETWEEN_LINES_S = 60.0
"""A custom metric has a value a minute; more lines cost and show nothing more."""


def embedded_metrics(
    record: StepRecord,
    *,
    deployment: str,
    run: str,
    workload: str,
    time_ms: int,
    checkpoint_s: float | None = None,
) -> str:
    """One log line that CloudWatch turns into metrics.

    ``checkpoint_s``: seconds that training stood still for the latest checkpoint since the line
    before, if there was one.
    """
    fields = {**record.fields(), "checkpoint_s": checkpoint_s}
    return _line(
        _METRICS,
        fields,
        {"Deployment": deployment, "Run": run, "Workload": workload, "Step": record.step},
        time_ms=time_ms,
    )


def embedded_validation(
    record: EvaluationRecord, *, deployment: str, run: str, workload: str, time_ms: int
) -> str:
    """The same of an evaluation of the validation split."""
    return _line(
        _VALIDATION_METRICS,
        record.fields(),
        {"Deployment": deployment, "Run": run, "Workload": workload, "Step": record.step},
        time_ms=time_ms,
    )


def _line(
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
                    # Two names at most: every combination of values is a metric that is paid for.
                    "Dimensions": [["Deployment", "Run"]],
                    "Metrics": [{"Name": name, "Unit": unit} for name, _, unit in known],
                }
            ],
        },
        **origin,
        **{name: fields[field] for name, field, _ in known},
    }
    return json.dumps(document)


class Pacer:
    """Lets one line through a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_s = float("-inf")

    def due(self) -> bool:
        """Whether a line may be written now; if so, the next one may in a minute."""
        now = self._clock()
        if now - self._last_s < _BETWEEN_LINES_S:
            return False
        self._last_s = now
        return True
