"""The forms in which AWS's reference tells of a run, which dashboards parse.

The log line, the scalars' names and results.json are those of neuronx-distributed's
``examples/training/llama`` (tp_zero1_llama_hf_pretrain.py and logger.py).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from trainium_catalogue.contract import LOSS_SCALAR

if TYPE_CHECKING:
    from training.trainer.metrics import EvaluationRecord, StepRecord

SCALARS: Mapping[str, str] = {
    LOSS_SCALAR: "loss",
    "learning rate": "lr",
    "throughput": "throughput",
    "grad-norm": "grad_norm",
}
"""Names in TensorBoard to fields of ``StepRecord``."""

_WARM_STEPS = 10
"""The reference leaves them out of the average throughput."""


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
    """results.json: ``earlier``'s metrics, if it has any, and this job's after them.

    The reference evaluates nothing; ``evaluation``, the last one, is beside its own metrics.
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
        found = json.loads(earlier)["results"]["metrics"]
    except (KeyError, TypeError, ValueError):
        return []  # a file that somebody else has put there is no reason to stop
    return list(found) if isinstance(found, list) else []
